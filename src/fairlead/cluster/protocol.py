"""What running things on nodes looks like to a caller: commands in, one result a node out. No I/O here.

Three promises hold for every backend. Every node asked gets a result, whatever the others do. Every call has a time
limit, a number the caller chose. What a call started on a node ends with the call: a command's leftovers are stopped.
"""

from __future__ import annotations

import abc
import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec

from fairlead.base.nodeset import NodeSet

DEFAULT_KEEP_BYTES = 1 << 20
MAX_STDIN_BYTES = 64 << 20
"""A command's standard input is held in memory on the node; larger things are pushed as files."""


class State(enum.StrEnum):
    """How it ended on one node."""

    DONE = "done"
    """Ran, exit status 0."""
    FAILED = "failed"
    """The node was reached, and the command ended otherwise or could not be started there."""
    TIMEOUT = "timeout"
    """Ran into the time limit on the node and was stopped."""
    UNREACHABLE = "unreachable"
    """Never started, as the node could not be reached; or the connection was lost on the way."""
    CANCELLED = "cancelled"
    """Stopped, or never started: an interrupt, or another rank of the group had failed."""


@dataclass(frozen=True, slots=True)
class Output:
    """What a stream said, at most `keep_bytes` of it: the first half and the last half, what lies between counted."""

    head: bytes = b""
    tail: bytes = b""
    num_bytes: int = 0
    """All that was written, kept or not."""

    @property
    def num_left_out(self) -> int:
        """How many bytes of the middle are not kept."""
        return self.num_bytes - len(self.head) - len(self.tail)

    @property
    def is_truncated(self) -> bool:
        """Whether `data` is not all that was written."""
        return self.num_left_out > 0

    @property
    def data(self) -> bytes:
        """The bytes kept, with a line that says so where some are left out."""
        if not self.is_truncated:
            return self.head + self.tail
        return self.head + f"\n[... {self.num_left_out} bytes left out ...]\n".encode() + self.tail

    @property
    def text(self) -> str:
        r"""`data` as text; bytes that are not UTF-8 show as `\xff`."""
        return self.data.decode("utf-8", "backslashreplace")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What to run on a node: no shell is involved, `argv` arrives there exactly as it stands here."""

    argv: tuple[str, ...]
    stdin: bytes = b""
    env: Mapping[str, str] = field(default_factory=dict)
    """Laid over the node's own environment. FAIRLEAD_NODE is always set to the node's name."""
    cwd: str = ""
    """On the node; empty means where the backend lands."""
    in_container: bool = False
    """Inside the container image the cluster file names, where it names one."""
    may_leave: bool = False
    """What it leaves behind once it has ended by itself may live on: for starting a service."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "argv", tuple(self.argv))
        assert self.argv, "a command needs at least a program name"
        assert len(self.stdin) <= MAX_STDIN_BYTES, "push a file instead of a standard input this large"

    @classmethod
    def of(cls, command: Command | Sequence[str]) -> Command:
        """A command, or the words of one."""
        return command if isinstance(command, Command) else cls(argv=tuple(command))


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How one command, one rank or one file copy ended on one node."""

    node: str
    state: State
    rc: int | None = None
    """Exit status; -N where signal N ended it; None where it never ran to an end."""
    stdout: Output = Output()
    stderr: Output = Output()
    duration_s: float = 0.0
    error: str = ""
    """One sentence, without the node's name so that equal ones fold; empty when done."""
    hint: str = ""
    """What to type next, where there is something."""
    code: str = ""
    """What is explained of it under `fairlead explain`, where something is: `cluster/bad-answer`."""
    rank: int | None = None
    local_rank: int | None = None

    @property
    def ok(self) -> bool:
        """Whether it ran and ended with status 0."""
        return self.state is State.DONE

    def __str__(self) -> str:
        who = self.node if self.rank is None else f"{self.node} rank {self.rank}"
        return f"{who}  {self.state}" + (f"  {self.error}" if self.error else "")


class Line(NamedTuple):
    """One line a command wrote, as soon as it is whole, without its line end; or a frame of a program's channel."""

    node: str
    rank: int | None
    stream: str
    """`stdout` or `stderr`; `frame` for bytes, see channel.py."""
    text: str
    data: bytes = b""
    """The payload of a frame."""


Message = str | bytes
"""What is said to a live process: text is a line, bytes are a frame."""


class CommandRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One call, for the run folder's `commands.jsonl`: what was run where, and how it went. Holds no output."""

    via: str
    argv: tuple[str, ...]
    nodes: str
    """Folded."""
    at: str
    """UTC."""
    ms: int
    limit_s: float
    states: dict[str, str]
    """State -> folded nodes."""
    rc: dict[str, str]
    """Exit status -> folded nodes."""
    bytes_in: int = 0
    bytes_out: int = 0
    errors: dict[str, str] = {}
    """Error sentence -> folded nodes."""


OnLine = Callable[[Line], None]
Recorder = Callable[[CommandRecord], None]


class AsyncCluster(abc.ABC):
    """What every backend offers. `limit_s` bounds each node's part once it is reached.

    Reaching it may take as long, and at least `reach_s` of the backend: by ssh the time to connect and to log in.

    At most `fanout` nodes are being worked on at once; a group of ranks lives on all its nodes at once, and there
    `fanout` bounds how many are being reached at once. Results come in the order of the node set.
    Raises UsageError for an empty or unknown node set, MissingTool or SchedulerError where nothing can be run at all.
    """

    last: list[Result]
    """The results of the latest call, also where it was cancelled and could not return them."""

    async def run(
        self,
        nodes: NodeSet | str,
        command: Command | Sequence[str],
        *,
        limit_s: float,
        on_line: OnLine | None = None,
        keep_bytes: int = DEFAULT_KEEP_BYTES,
    ) -> list[Result]:
        """The same command on every node."""
        commands = dict.fromkeys(NodeSet(nodes), Command.of(command))
        return await self.run_each(commands, limit_s=limit_s, on_line=on_line, keep_bytes=keep_bytes)

    @abc.abstractmethod
    async def run_each(
        self,
        commands: Mapping[str, Command],
        *,
        limit_s: float,
        on_line: OnLine | None = None,
        keep_bytes: int = DEFAULT_KEEP_BYTES,
    ) -> list[Result]:
        """Each node its own command, at the same time: both ends of a pair, for example."""

    @abc.abstractmethod
    async def run_ranks(
        self,
        nodes: NodeSet | str,
        command: Command | Sequence[str],
        *,
        per_node: int,
        limit_s: float,
        on_line: OnLine | None = None,
        keep_bytes: int = DEFAULT_KEEP_BYTES,
        stop_on_failure: bool = True,
    ) -> list[Result]:
        """`per_node` copies on every node, with RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE and GROUP_RANK set.

        One result a rank, in rank order. With `stop_on_failure`, the first rank that does not end well stops the
        others, which are then `cancelled`.
        """

    @abc.abstractmethod
    async def push(
        self,
        nodes: NodeSet | str,
        source: Path,
        target: str,
        *,
        limit_s: float,
        mode: int = 0o644,
        addresses: Mapping[str, str] | None = None,
    ) -> list[Result]:
        """Copy a local file, or a folder, to the same path on every node: whole, checked, renamed into place; or not.

        With `addresses`, at which the nodes reach each other, the bytes are sent once and fan out from node to node;
        where they do not reach each other after all, each is sent its own. A folder takes the place of an older one;
        `mode` is a file's.
        """

    @abc.abstractmethod
    async def fetch(
        self, nodes: NodeSet | str, source: str, into: Path, *, limit_s: float, max_bytes: int
    ) -> list[Result]:
        """Copy one file from every node to `into/<node>/<name>`; a larger file than `max_bytes` is a failed result."""

    @abc.abstractmethod
    async def close(self) -> None:
        """Give back what the backend holds: an allocation, connections."""


class Interrupted(KeyboardInterrupt):
    """The user stopped a call; everything it had started was stopped, and `results` holds one result a node."""

    def __init__(self, message: str, results: Sequence[Result] = ()) -> None:
        super().__init__(message)
        self.results = tuple(results)


class Refusal(NamedTuple):
    """Why nothing ran on a node: the state, one sentence without the node's name, what to type next, and a code."""

    state: State
    error: str
    hint: str = ""
    code: str = ""


def nodes_in(results: Iterable[Result], *states: State) -> NodeSet:
    """The nodes with a result in one of these states."""
    return NodeSet(r.node for r in results if r.state in states)


def interrupt_text(results: Iterable[Result], why: str) -> str:
    """What an interrupt stopped, and where, folded by what became of it."""
    groups: dict[str, list[str]] = {}
    for result in results:
        if result.state is State.CANCELLED:
            groups.setdefault(result.error, []).append(result.node)
    said = [f"{what} on {(nodes := NodeSet(members))} ({len(nodes)})" for what, members in groups.items()]
    return "; ".join([why, *said])

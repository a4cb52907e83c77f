"""What came out of commands: collected with a bound, cut into lines as it comes, made into results. Pure."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Annotated

import msgspec
from msgspec import Meta

from fairlead.base.nodeset import NodeSet
from fairlead.base.units import duration
from fairlead.cluster.backend import last_line
from fairlead.cluster.channel import A_FRAME, A_LINE, Incoming
from fairlead.cluster.onnode.frames import Kept
from fairlead.cluster.protocol import CommandRecord, Line, OnLine, Output, Refusal, Result, State
from fairlead.cluster.talk import Ending
from fairlead.records.border import Border, Breach, Count, Word

_MAX_LINE = 1 << 20
BAD_ANSWER = "cluster/bad-answer"
BAD_ANSWER_HINT = "look at what that node runs, as this is not what was sent there: fairlead explain cluster/bad-answer"


class Exit(msgspec.Struct, frozen=True, kw_only=True):
    """How a node says that one rank or copy has ended, in a frame `x` (onnode/)."""

    rc: Annotated[int, Meta(ge=-255, le=255)]
    stopped: Word = ""
    error: Annotated[str, Meta(max_length=1 << 14)] = ""
    out: Count = 0
    err: Count = 0
    sha256: Word = ""


_exit = Border(Exit, "the end of a command", max_bytes=1 << 17)


class Stream:
    """One stream of one rank."""

    def __init__(self, keep_bytes: int, on_line: Callable[[str], None] | None) -> None:
        self._kept = Kept(keep_bytes)
        self._head = bytearray()
        self._tail = b""
        self._on_line = on_line
        self._partial = bytearray()

    def feed(self, data: bytes) -> None:
        """The next piece."""
        self._head += self._kept.feed(data)
        if self._on_line:
            self._partial += data
            if b"\n" in data:  # what comes byte by byte must not be gone through anew with each
                *whole, self._partial = self._partial.split(b"\n")
                for line in whole:
                    self._on_line(_text(line))
            if len(self._partial) > _MAX_LINE:
                self.flush()

    def end(self, tail: bytes) -> None:
        """The last part, where the node left out the middle."""
        self._tail = tail

    def flush(self) -> None:
        """A last line without a line end is a line too."""
        if self._on_line and self._partial:
            self._on_line(_text(self._partial))
        self._partial = bytearray()

    def output(self, num_bytes: int = 0) -> Output:
        """What is kept; `num_bytes` is what the node counted."""
        tail = self._tail or self._kept.tail()
        return Output(bytes(self._head), tail, max(num_bytes, self._kept.num_bytes))


class Messages(Stream):
    """The standard output of a program with a channel: its frames and beats are taken out of the text."""

    def __init__(self, keep_bytes: int, on_message: Callable[[str, bytes], None]) -> None:
        super().__init__(keep_bytes, None)
        self._incoming, self._on_message = Incoming(), on_message

    def feed(self, data: bytes) -> None:
        """The next piece."""
        self._head += self._kept.feed(data)
        for kind, payload in self._incoming.feed(data):
            self._on_message(kind, payload)

    def flush(self) -> None:
        """A last line without a line end is a line too."""
        for kind, payload in self._incoming.end():
            self._on_message(kind, payload)


class Gathered:
    """All that one rank, or one plain command, sent back."""

    def __init__(
        self,
        node: str,
        rank: int | None = None,
        local_rank: int | None = None,
        *,
        keep_bytes: int = 0,
        on_line: OnLine | None = None,
        on_beat: Callable[[str], None] | None = None,
    ) -> None:
        """With `on_beat` it is a program with a channel, and frames come as lines do."""
        self.node, self.rank, self.local_rank = node, rank, local_rank
        self.exit: Exit | None = None

        def liner(stream: str) -> Callable[[str], None] | None:
            return (lambda text: on_line(Line(node, rank, stream, text))) if on_line else None

        def message(kind: str, payload: bytes) -> None:
            assert on_line is not None
            assert on_beat is not None
            if kind == A_LINE:
                on_line(Line(node, rank, "stdout", _text(payload)))
            elif kind == A_FRAME:
                on_line(Line(node, rank, "frame", "", payload))
            else:
                on_beat(_text(payload))

        out = Messages(keep_bytes, message) if on_beat else Stream(keep_bytes, liner("stdout"))
        self._streams = {b"o": out, b"e": Stream(keep_bytes, liner("stderr"))}

    def on_frame(self, kind: bytes, _: int, payload: bytes) -> None:
        """One frame of this rank's. Raises Breach."""
        if self.exit is not None:
            if kind == b"x":
                raise Breach("a second end of one command", payload)
            return  # what something out of its reach still wrote into its pipes
        if kind == b"x":
            self.exit = _exit(payload)
            for stream in self._streams.values():
                stream.flush()
        elif kind.lower() not in self._streams:
            raise Breach("a frame of a kind that does not belong here", kind + payload)
        elif kind.islower():
            self._streams[kind].feed(payload)
        else:
            self._streams[kind.lower()].end(payload)

    @property
    def has_failed(self) -> bool:
        """Whether it ended by itself, and not well."""
        return self.exit is not None and not self.exit.stopped and self.exit.rc != 0

    def result(self, ending: Ending) -> Result:
        """What to tell."""
        told = self.exit
        state, error, hint, code = judge(told, ending)
        return Result(
            node=self.node,
            state=state,
            rc=told.rc if told else None,
            stdout=self._streams[b"o"].output(told.out if told else 0),
            stderr=self._streams[b"e"].output(told.err if told else 0),
            duration_s=ending.duration_s,
            error=error,
            hint=hint,
            code=code,
            rank=self.rank,
            local_rank=self.local_rank,
        )


def judge(told: Exit | None, ending: Ending) -> Refusal:
    """State and sentence, from what the node told and how the conversation ended."""
    limit = f"ran into the limit of {duration(ending.limit_s)}"
    if told is not None:
        return _judge_told(told, ending, limit)
    if ending.breach is not None:
        return Refusal(State.FAILED, f"it sent {ending.breach}", BAD_ANSWER_HINT, BAD_ANSWER)
    if ending.cut == "cancelled":
        doubt = " without an answer; its own limit ends it there" if ending.here and not ending.whole else ""
        return Refusal(State.CANCELLED, f"stopped{doubt}")
    if ending.cut == "limit" and ending.here:
        return Refusal(State.TIMEOUT, f"{limit} and did not answer when told to stop")
    if ending.refusal is not None:
        return ending.refusal
    why = last_line(ending.said)
    return Refusal(State.UNREACHABLE, "the connection was lost" + (f": {why}" if why else ""))


def _judge_told(told: Exit, ending: Ending, limit: str) -> Refusal:
    if told.stopped:
        if told.stopped == "limit" or ending.cut == "limit":
            return Refusal(State.TIMEOUT, limit)
        if ending.cut == "cancelled":
            return Refusal(State.CANCELLED, "stopped")
        return Refusal(State.FAILED, "stopped by a signal from outside", "look for a cancelled job or an admin's kill")
    if told.error:
        return Refusal(State.FAILED, told.error)
    return Refusal(State.FAILED, exit_text(told.rc)) if told.rc else Refusal(State.DONE, "")


def exit_text(rc: int) -> str:
    """An exit status in words.

    >>> exit_text(3), exit_text(-9)
    ('exit status 3', 'killed by SIGKILL')
    """
    if rc >= 0:
        return f"exit status {rc}"
    try:
        return f"killed by {signal.Signals(-rc).name}"
    except ValueError:
        return f"killed by signal {-rc}"


def record(
    via: str,
    argv: tuple[str, ...],
    nodes: NodeSet,
    results: list[Result],
    *,
    at: str,
    ms: int,
    limit_s: float,
    bytes_in: int,
) -> CommandRecord:
    """A call as the run folder keeps it."""

    def folded(key: Callable[[Result], str | None]) -> dict[str, str]:
        groups: dict[str, list[str]] = {}
        for result in results:
            if (name := key(result)) is not None:
                groups.setdefault(name, []).append(result.node)
        return {name: str(NodeSet(members)) for name, members in groups.items()}

    return CommandRecord(
        via=via,
        argv=argv,
        nodes=str(nodes),
        at=at,
        ms=ms,
        limit_s=limit_s,
        states=folded(lambda r: str(r.state)),
        rc=folded(lambda r: None if r.rc is None else str(r.rc)),
        bytes_in=bytes_in,
        bytes_out=sum(r.stdout.num_bytes + r.stderr.num_bytes for r in results),
        errors=folded(lambda r: r.error or None),
    )


def _text(line: bytes | bytearray) -> str:
    return line.decode("utf-8", "backslashreplace").removesuffix("\r")

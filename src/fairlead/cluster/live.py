"""Processes that run while their caller talks to them: lines in for all, lines out as they come, ends as they end.

    with cluster.live("n[0-3]", Command(argv=..., stdin=program), limit_s=60) as group:
        group.send("go")                 # one line to the standard input of every process, behind Command.stdin
        line = group.read(5.0)           # the next line of any of them; None after 5 s, and whenever one has ended
        group.ended                      # (node, rank) -> Result, of those that ended so far
    # leaving stops whatever still runs

LiveGroup holds one conversation a node, as every call does, so that each node's fault is its own. Where it must be real
tasks of a job, tasks.py does the same with one step of a scheduler.
"""

from __future__ import annotations

import abc
import asyncio
from collections.abc import AsyncIterable, Callable, Mapping
from types import TracebackType
from typing import Self

from fairlead.base.nodeset import NodeSet
from fairlead.cluster.backend import Backend
from fairlead.cluster.fanout import Slots, make_room
from fairlead.cluster.outputs import Gathered
from fairlead.cluster.protocol import Command, Interrupted, Line, Refusal, Result, State, interrupt_text
from fairlead.cluster.talk import UNBOUNDED, Talk, pieces, run_job

Key = tuple[str, int | None]
"""A node, and the rank there; None where a node runs one process."""

_KEEP_BYTES = 1 << 16
_MAX_LINES = 10_000
"""Lines that may wait to be read; then the nodes' output waits where it is."""
_MAX_SENT = 1_000
"""Lines that may wait to be taken by a node's way; one that lets more pile up is stopped."""


class Group(abc.ABC):
    """What both kinds share: the lines that wait to be read, and who has ended."""

    def __init__(self, record: Callable[[list[Result]], None]) -> None:
        """`record` is told the results at the end."""
        self._record = record
        self.ended: dict[Key, Result] = {}
        self._lines: asyncio.Queue[Line | None] = asyncio.Queue()
        self._wanted = asyncio.Event()
        self._wanted.set()

    @property
    @abc.abstractmethod
    def num_running(self) -> int:
        """Conversations that still go on."""

    async def read(self, timeout_s: float) -> Line | None:
        """The next line; None if none came in time, if a process ended, or if all have."""
        if self._lines.empty() and not self.num_running:
            return None
        try:
            async with asyncio.timeout(timeout_s):
                line = await self._lines.get()
        except TimeoutError:
            return None
        if self._lines.qsize() <= _MAX_LINES // 2:
            self._wanted.set()
        return line

    @property
    def has_unread(self) -> bool:
        """See Live."""
        return not self._lines.empty()

    @abc.abstractmethod
    def send(self, text: str) -> None:
        """One line to every process that still runs; never waits."""

    async def close(self, grace_s: float = 0.0) -> list[Result]:
        """Wait `grace_s` for them to end, stop those that have not, and return a result for each, in order."""
        results = await self._close(grace_s)
        self._record(results)
        return results

    @abc.abstractmethod
    async def _close(self, grace_s: float) -> list[Result]: ...

    def _heard(self, line: Line) -> None:
        self._lines.put_nowait(line)
        if self._lines.qsize() >= _MAX_LINES:
            self._wanted.clear()

    def _end(self, key: Key, result: Result) -> None:
        self.ended[key] = result
        self._lines.put_nowait(None)


class LiveGroup(Group):
    """One process a node, or `per_node` ranks on each."""

    def __init__(
        self,
        backend: Backend,
        nodes: NodeSet,
        command: Command,
        *,
        python_of: Callable[[str], str],
        envs: Mapping[str, list[dict[str, str]]] | None,
        limit_s: float,
        record: Callable[[list[Result]], None] = lambda _: None,
    ) -> None:
        """`envs` holds, for each node, one environment a rank; None for a plain process a node."""
        super().__init__(record)
        self._backend, self._python_of, self._nodes, self._command = backend, python_of, nodes, command
        self._envs, self._limit_s = envs, limit_s
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._inputs: dict[str, asyncio.Queue[bytes]] = {}

    @property
    def num_running(self) -> int:
        """Nodes whose conversation still goes on."""
        return sum(not task.done() for task in self._tasks.values())

    async def start(self, fanout: int) -> Self:
        """Begin on every usable node. Raises what `ready` raises where nothing can be run at all."""
        refusals = await self._backend.ready(self._nodes)
        make_room(len(self._nodes))
        slots = Slots(fanout)
        for node in self._nodes:
            if node in refusals:
                self._blank(node, refusals[node])
            else:
                self._inputs[node] = asyncio.Queue(_MAX_SENT)
                self._tasks[node] = asyncio.create_task(self._talk(node, slots), name=node)
        return self

    def send(self, text: str) -> None:
        """One line to every process that still runs; never waits."""
        for node, queue in self._inputs.items():
            if queue.full():
                self._tasks[node].cancel()
            elif not self._tasks[node].done():
                queue.put_nowait(text.encode() + b"\n")

    async def _close(self, grace_s: float) -> list[Result]:
        running = [task for task in self._tasks.values() if not task.done()]
        if running and grace_s:
            _, late = await asyncio.wait(running, timeout=grace_s)
            running = list(late)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
        faults = [fault for task in self._tasks.values() if not task.cancelled() and (fault := task.exception())]
        if faults:
            raise faults[0]
        for node in self._tasks:
            for key, _ in self._members(node):
                if key not in self.ended:  # cancelled before it had begun
                    self._blank(node, Refusal(State.CANCELLED, "not started"))
        return [self.ended[key] for node in self._nodes for key, _ in self._members(node)]

    def _members(self, node: str) -> list[tuple[Key, int | None]]:
        """(key, local rank) of what runs on a node."""
        if self._envs is None:
            return [((node, None), None)]
        return [((node, int(env["RANK"])), local) for local, env in enumerate(self._envs[node])]

    def _blank(self, node: str, why: Refusal) -> None:
        for (_, rank), local in self._members(node):
            result = Result(node=node, state=why.state, error=why.error, hint=why.hint, rank=rank, local_rank=local)
            self._end((node, rank), result)

    async def _talk(self, node: str, slots: Slots) -> None:
        slot = await slots.take()
        talk = Talk(self._backend, node, self._python_of(node), self._limit_s, slot.since_s)
        ranks = [
            Gathered(node, rank, local, keep_bytes=_KEEP_BYTES, on_line=self._heard)
            for (_, rank), local in self._members(node)
        ]

        def on_frame(kind: bytes, local: int, payload: bytes) -> None:
            rank = ranks[local]
            rank.on_frame(kind, 0, payload)
            if kind == b"x":
                self._end((node, rank.rank), rank.result(talk.ending))

        envs = self._envs[node] if self._envs else [{}]
        job = run_job(self._command, node, envs, UNBOUNDED, is_live=True)
        try:
            ending = await talk.hold(
                job,
                self._input(node),
                on_frame,
                on_here=slot.give,
                when_wanted=self._wanted.wait,
                in_container=self._command.in_container,
            )
        finally:
            slot.give()
        for rank in ranks:
            self._end((node, rank.rank), rank.result(ending))

    async def _input(self, node: str) -> AsyncIterable[bytes]:
        async for data in pieces(self._command.stdin):
            yield data
        while True:
            yield await self._inputs[node].get()


class Live:
    """The sync face of a group; leaving the `with` stops it."""

    def __init__(self, group: Group, wait: Callable[..., object]) -> None:
        self._group, self._wait = group, wait
        self.results: list[Result] = []
        """Filled by `close`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        results = self.close()
        if isinstance(error, Interrupted):
            raise Interrupted(interrupt_text(results, str(error)), results) from None

    @property
    def ended(self) -> Mapping[Key, Result]:
        """Those that ended so far, and how."""
        return self._group.ended

    @property
    def has_unread(self) -> bool:
        """Whether something that was said has not been read yet: an end is known before the last words are read."""
        return self._group.has_unread

    def send(self, text: str) -> None:
        """One line to every process that still runs; never waits."""
        self._group.send(text)

    def read(self, timeout_s: float) -> Line | None:
        """The next line; None if none came in time, or if a process or all of them ended."""
        line = self._wait(self._group.read(timeout_s))
        assert line is None or isinstance(line, Line)
        return line

    def close(self, grace_s: float = 0.0) -> list[Result]:
        """Wait `grace_s` for them to end, stop those that have not; one result each, in order."""
        if not self.results:
            found = self._wait(self._group.close(grace_s))
            assert isinstance(found, list)
            self.results = found
        return self.results

"""Processes that run while their caller talks to them: messages to all or to one, messages back, ends as they end.

    with cluster.start(AGENT, "n[0-3]", limit_s=60) as group:
        group.send("go")                 # one line to every process
        group.send(b"...", to="n2")      # a frame to what runs on one node; to=3: to rank 3
        line = group.read(5.0)           # the next line or frame of any; None after 5 s, and whenever one has ended
        lines = group.read_all(5.0)      # all that wait
        group.ended                      # (node, rank) -> Result, of those that ended so far
        group.beats                      # (node, rank) -> the last sign of life
    # leaving stops whatever still runs

What all groups share is group.py. LiveGroup holds one conversation a node, as every call does, so that each node's
fault is its own. Where it must be real tasks of a job, tasks.py does the same with one step of a scheduler. What a
program on the node includes to take part is channel.py; any other process speaks and hears plain lines.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Self

from fairlead.base.nodeset import NodeSet
from fairlead.cluster.backend import Backend
from fairlead.cluster.channel import encoded
from fairlead.cluster.fanout import Slots, make_room
from fairlead.cluster.group import Group, Outbox
from fairlead.cluster.heard import Beat, Heard, Key, Source
from fairlead.cluster.outputs import Gathered
from fairlead.cluster.protocol import Command, Interrupted, Line, Message, Refusal, Result, State, interrupt_text
from fairlead.cluster.talk import UNBOUNDED, Talk, pieces, run_job
from fairlead.records.border import Border, Breach, Index, Text

_KEEP_BYTES = 8 << 10
"""Of each stream of each process, for its result; every line was handed out as it came."""
_beats = Border(dict[Index, Text], "signs of life")


class LiveGroup(Group):
    """One process a node, or `per_node` ranks on each."""

    def __init__(
        self,
        backend: Backend,
        nodes: NodeSet,
        command_of: Callable[[str], Command],
        *,
        python_of: Callable[[str], str],
        envs: Mapping[str, list[dict[str, str]]] | None,
        limit_s: float,
        record: Callable[[list[Result]], None] = lambda _: None,
    ) -> None:
        """`envs` holds, for each node, one environment a rank; None for a plain process a node."""
        super().__init__(Heard(len(nodes)), record)
        self._backend, self._python_of, self._nodes, self._command_of = backend, python_of, nodes, command_of
        self._envs, self._limit_s = envs, limit_s
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._talks: dict[str, Talk] = {}
        self._outboxes: dict[str, Outbox] = {}
        self._starting: set[str] = set()
        self._node_of = {rank: node for node in nodes for (_, rank), _ in self._members(node)}

    @property
    def num_running(self) -> int:
        """Nodes whose conversation still goes on."""
        return len(self._outboxes)

    @property
    def num_starting(self) -> int:
        """Nodes that have not been reached yet, and not been given up."""
        return len(self._starting)

    async def start(self, fanout: int) -> Self:
        """Begin on every usable node. Raises what `ready` raises where nothing can be run at all."""
        refusals = await self._backend.ready(self._nodes)
        make_room(len(self._nodes))
        slots = Slots(fanout)
        for node in self._nodes:
            if node in refusals:
                self._blank(node, refusals[node])
            else:
                self._outboxes[node] = Outbox()
                self._starting.add(node)
                self._tasks[node] = task = asyncio.create_task(self._talk(node, slots), name=node)
                task.add_done_callback(self._over)
        return self

    def has(self, to: str | int) -> bool:
        """See Group."""
        return to in (self._node_of if isinstance(to, int) else self._nodes)

    def ways(self, to: str | int | None) -> list[Outbox]:
        """One a node."""
        if to is None:
            return list(self._outboxes.values())
        assert self.has(to), f"{to} is not in this group"
        node = self._node_of[to] if isinstance(to, int) else to
        return [self._outboxes[node]] if node in self._outboxes else []

    def address(self, message: Message, to: str | int | None) -> list[bytes]:
        """All that run on a node share its way."""
        return [encoded(message, to) if isinstance(to, int) else encoded(message)]

    def stop_way(self, way: Outbox) -> None:
        """Stop its node's processes."""
        node = next(node for node, outbox in self._outboxes.items() if outbox is way)
        self._tasks[node].cancel()
        del self._outboxes[node]

    def give_up(self, node: str) -> None:
        """See Group."""
        if node in self._talks:
            self._talks[node].is_given_up = True
        if node in self._tasks:
            self._tasks[node].cancel()

    async def stop(self, grace_s: float) -> list[Result]:
        """See Group."""
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
            if any(key not in self.heard.ended for key, _ in self._members(node)):  # cancelled before it had begun
                self._blank(node, Refusal(State.CANCELLED, "not started"))
        return [self.heard.ended[key] for node in self._nodes for key, _ in self._members(node)]

    def _over(self, task: asyncio.Task[None]) -> None:
        self._outboxes.pop(task.get_name(), None)
        self._starting.discard(task.get_name())
        self.heard.wake()

    def _members(self, node: str) -> list[tuple[Key, int | None]]:
        """(key, local rank) of what runs on a node."""
        if self._envs is None:
            return [((node, None), None)]
        return [((node, int(env["RANK"])), local) for local, env in enumerate(self._envs[node])]

    def _blank(self, node: str, why: Refusal) -> None:
        for (_, rank), local in self._members(node):
            result = Result(
                node=node, state=why.state, error=why.error, hint=why.hint, code=why.code, rank=rank, local_rank=local
            )
            self.heard.end((node, rank), result)

    async def _talk(self, node: str, slots: Slots) -> None:
        slot = await slots.take()
        command, source = self._command_of(node), self.heard.source()
        talk = self._talks[node] = Talk(self._backend, node, self._python_of(node), self._limit_s, slot.since_s)
        self.heard.begun[node] = slot.since_s
        keys = [key for key, _ in self._members(node)]
        ranks = [self._gathered(key, local, source) for key, local in self._members(node)]

        def on_here() -> None:
            slot.give()
            self._starting.discard(node)
            self.heard.alive[node] = time.monotonic()

        def on_frame(kind: bytes, local: int, payload: bytes) -> None:
            self.heard.alive[node] = now = time.monotonic()
            if kind == b"b":
                for number, text in _beats(payload).items():
                    if number >= len(keys):
                        raise Breach(f"a sign of life of rank {number}, where there are {len(keys)}", payload)
                    self.heard.beats[keys[number]] = Beat(now, text)
                return
            ranks[local].on_frame(kind, 0, payload)
            if kind == b"x":
                self.heard.end(keys[local], ranks[local].result(talk.ending))

        job = run_job(command, node, self._envs[node] if self._envs else [{}], UNBOUNDED, is_live=True)
        try:
            ending = await talk.hold(
                job,
                self._input(command.stdin, self._outboxes[node]),
                on_frame,
                on_here=on_here,
                when_wanted=source.wanted.wait,
                in_container=command.in_container,
            )
        finally:
            slot.give()
        for key, rank in zip(keys, ranks, strict=True):
            if key not in self.heard.ended:
                self.heard.end(key, rank.result(ending))

    def _gathered(self, key: Key, local: int | None, source: Source) -> Gathered:
        def on_beat(text: str) -> None:
            self.heard.beats[key] = Beat(time.monotonic(), text)

        def on_line(line: Line) -> None:
            self.heard.hear(source, line)

        return Gathered(*key, local, keep_bytes=_KEEP_BYTES, on_line=on_line, on_beat=on_beat)

    async def _input(self, first: bytes, outbox: Outbox) -> AsyncIterable[bytes]:
        async for data in pieces(first):
            yield data
        while True:
            yield await outbox.take()


class JoinedGroup(Group):
    """Several groups as one: the steps of pools that differ in their Python or their container. They share `heard`."""

    kind = "tasks"

    def __init__(self, groups: Sequence[Group], heard: Heard, record: Callable[[list[Result]], None]) -> None:
        super().__init__(heard, record)
        self._groups = groups

    @property
    def knows_places(self) -> bool:  # type: ignore[override]
        """See Group."""
        return all(group.knows_places for group in self._groups)

    @property
    def num_running(self) -> int:
        """Conversations that still go on."""
        return sum(group.num_running for group in self._groups)

    @property
    def num_starting(self) -> int:
        """Nodes that have not been reached yet."""
        return sum(group.num_starting for group in self._groups)

    def has(self, to: str | int) -> bool:
        """See Group."""
        return any(group.has(to) for group in self._groups)

    def ways(self, to: str | int | None) -> list[Outbox]:
        """Of the one that has it."""
        return [way for group in self._having(to) for way in group.ways(to)]

    def address(self, message: Message, to: str | int | None) -> list[bytes]:
        """As the one that has it does."""
        return self._having(to)[0].address(message, to)

    def stop_way(self, way: Outbox) -> None:
        """Of whichever has it."""
        for group in self._groups:
            if way in group.ways(None):
                group.stop_way(way)

    async def stop(self, grace_s: float) -> list[Result]:
        """All at once."""
        each = await asyncio.gather(*(group.stop(grace_s) for group in self._groups))
        return sorted((result for results in each for result in results), key=lambda r: r.rank or 0)

    def _having(self, to: str | int | None) -> list[Group]:
        found = [group for group in self._groups if to is None or group.has(to)]
        assert found, f"{to} is not in this group"
        return found


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
    def kind(self) -> str:
        """`tasks` where a scheduler runs them, else `processes`."""
        return self._group.kind

    @property
    def knows_places(self) -> bool:
        """Whether `node` of what they say is sure: the scheduler said it, or they were reached one by one."""
        return self._group.knows_places

    @property
    def ended(self) -> Mapping[Key, Result]:
        """Those that ended so far, and how."""
        return self._group.heard.ended

    def take_ended(self) -> list[tuple[Key, Result]]:
        """Those that ended since this was last asked."""
        return self._group.heard.take_ended()

    @property
    def beats(self) -> Mapping[Key, Beat]:
        """The last sign of life of each process that has given one."""
        return self._group.heard.beats

    @property
    def num_starting(self) -> int:
        """Nodes that have not been reached yet, and not been given up: patience begins when this is 0."""
        return self._group.num_starting

    @property
    def begun(self) -> Mapping[str, float]:
        """When each node's turn came to be reached, behind the fan-out; by time.monotonic()."""
        return self._group.heard.begun

    @property
    def alive(self) -> Mapping[str, float]:
        """When something last came from each node that was reached; by time.monotonic().

        What runs around a program there sends something once a second, whatever the program does: a node of which
        nothing comes is stopped as a whole, or cut off. Ranks that are tasks of a scheduler give signs of their own.
        """
        return self._group.heard.alive

    def give_up(self, node: str) -> None:
        """Cut off a node that gives no sign of life; others of its group go on."""
        self._group.give_up(node)

    @property
    def has_unread(self) -> bool:
        """Whether something that was said has not been read yet: an end is known before the last words are read."""
        return self._group.heard.has_unread

    def send(self, message: Message, to: str | int | None = None) -> None:
        """A line (str) or a frame (bytes) to every process that still runs; `to` names one node, or numbers one rank.

        Waits only while more than MAX_UNSENT_BYTES wait to be taken.
        """
        if self._group.is_full(to):
            self._wait(self._group.room(to))
        self._group.send(message, to)

    def read(self, timeout_s: float) -> Line | None:
        """The next line or frame; None if none came in time, or if a process or all of them ended."""
        if waiting := self._group.heard.take(1):
            return waiting[0]
        line = self._wait(self._group.read(timeout_s))
        assert line is None or isinstance(line, Line)
        return line

    def read_all(self, timeout_s: float) -> Sequence[Line]:
        """All lines and frames that wait, after waiting for the first as `read` does: for many who say much."""
        lines = self._wait(self._group.read_all(timeout_s))
        assert isinstance(lines, list)
        return lines

    def close(self, grace_s: float = 0.0) -> list[Result]:
        """Wait `grace_s` for them to end, stop those that have not; one result each, in order."""
        if not self.results:
            found = self._wait(self._group.close(grace_s))
            assert isinstance(found, list)
            self.results = found
        return self.results

"""What callers ask for, done through any backend: commands, groups of ranks and file copies on many nodes at once.

Every call goes one way: check the names, make the nodes usable, one conversation a node, one result a node, a record.
"""

from __future__ import annotations

import asyncio
import logging
import shlex
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairlead.base.nodeset import NodeSet
from fairlead.base.program import Program
from fairlead.base.suggest import did_you_mean
from fairlead.base.units import counted
from fairlead.cluster import slurmsteps
from fairlead.cluster.backend import Backend
from fairlead.cluster.channel import encoded
from fairlead.cluster.child import Captured, capture
from fairlead.cluster.copies import fetch_one, file_size, push_one, whole_path
from fairlead.cluster.fanout import DEFAULT_FANOUT, Slot, Slots, Watcher, each, make_room
from fairlead.cluster.group import Group
from fairlead.cluster.heard import Heard
from fairlead.cluster.live import JoinedGroup, LiveGroup
from fairlead.cluster.outputs import Gathered, record
from fairlead.cluster.protocol import (
    DEFAULT_KEEP_BYTES,
    AsyncCluster,
    Command,
    Message,
    OnLine,
    Recorder,
    Refusal,
    Result,
    State,
)
from fairlead.cluster.spread import Spread, relay_program, source_of
from fairlead.cluster.talk import UNBOUNDED, Talk, pieces, run_job
from fairlead.cluster.tasks import TaskGroup
from fairlead.errors import UsageError
from fairlead.records.log import tell
from fairlead.records.runs import now_utc

log = logging.getLogger("fairlead.cluster")
_LOG_CHARS = 120


class Engine(AsyncCluster):
    """An AsyncCluster over any backend."""

    def __init__(
        self,
        backend: Backend,
        *,
        fanout: int = DEFAULT_FANOUT,
        python_of: Callable[[str], str] = lambda _: "python3",
        known: NodeSet | None = None,
        recorder: Recorder | None = None,
        watch: Watcher | None = None,
    ) -> None:
        """`known` are the nodes there are, where somebody says; `python_of` names the Python to use on a node."""
        self.last: list[Result] = []
        self._backend, self._fanout, self._python_of = backend, fanout, python_of
        self._known, self._recorder, self._watch = known, recorder, watch

    async def run_each(
        self,
        commands: Mapping[str, Command],
        *,
        limit_s: float,
        on_line: OnLine | None = None,
        keep_bytes: int = DEFAULT_KEEP_BYTES,
    ) -> list[Result]:
        """Each node its own command, at the same time."""
        nodes = check_nodes(NodeSet(commands), self._known)

        async def work(talk: Talk, slot: Slot) -> list[Result]:
            command = commands[talk.node]
            gathered = Gathered(talk.node, keep_bytes=keep_bytes, on_line=on_line)
            job = run_job(command, talk.node, [{}], UNBOUNDED if on_line else keep_bytes)
            ending = await talk.hold(job, pieces(command.stdin), gathered.on_frame, in_container=command.in_container)
            return [gathered.result(ending)]

        argv, num_bytes = commands[nodes[0]].argv, sum(len(c.stdin) for c in commands.values())
        return await self._do(nodes, work, _one_blank, argv, limit_s=limit_s, bytes_in=num_bytes)

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
        """`per_node` copies on every node; one result a rank, in rank order."""
        found, one = check_nodes(nodes, self._known), Command.of(command)
        group_of = {node: group for group, node in enumerate(found)}
        stop = asyncio.Event() if stop_on_failure else None

        async def work(talk: Talk, slot: Slot) -> list[Result]:
            group = group_of[talk.node]
            ranks = [
                Gathered(talk.node, group * per_node + local, local, keep_bytes=keep_bytes, on_line=on_line)
                for local in range(per_node)
            ]

            def on_frame(kind: bytes, local: int, payload: bytes) -> None:
                ranks[local].on_frame(kind, 0, payload)
                if stop and ranks[local].has_failed:
                    stop.set()

            envs = [_rank_env(group, local, per_node, len(found)) for local in range(per_node)]
            job = run_job(one, talk.node, envs, UNBOUNDED if on_line else keep_bytes)
            # the whole group lives at once: a slot is for reaching a node, not for the life of its ranks
            ending = await talk.hold(job, pieces(one.stdin), on_frame, on_here=slot.give, in_container=one.in_container)
            if stop and not ending.whole:
                stop.set()
            return [rank.result(ending) for rank in ranks]

        def blank(node: str, why: Refusal) -> list[Result]:
            first = group_of[node] * per_node
            return [_blank(node, why, first + local, local) for local in range(per_node)]

        make_room(len(found))
        num_bytes = len(one.stdin) * len(found)
        return await self._do(found, work, blank, one.argv, limit_s=limit_s, bytes_in=num_bytes, stop=stop)

    async def live(
        self, nodes: NodeSet | str, command: Command | Sequence[str], *, limit_s: float, per_node: int | None = None
    ) -> LiveGroup:
        """A process on every node, or `per_node` ranks, to talk to while they run. Close the group, always."""
        found, one = check_nodes(nodes, self._known), Command.of(command)
        envs = per_node and {
            node: [_rank_env(group, local, per_node, len(found)) for local in range(per_node)]
            for group, node in enumerate(found)
        }
        done = self._begun(one.argv, found, limit_s, len(one.stdin) * len(found))
        group = LiveGroup(
            self._backend,
            found,
            lambda _: one,
            python_of=self._python_of,
            envs=envs or None,
            limit_s=limit_s,
            record=done,
        )
        return await group.start(self._fanout)

    async def start(
        self,
        program: Program,
        nodes: NodeSet | str,
        *,
        limit_s: float,
        args: Sequence[str] = (),
        first: Message | None = None,
        env: Mapping[str, str] | None = None,
        per_node: int | None = None,
        in_container: bool = False,
        as_tasks: bool = False,
        options: Sequence[str] = (),
    ) -> Group:
        """A program on every node, or `per_node` ranks of it, each in the Python and container of its own pool.

        `first` is a message to each of them that is there before any other. `as_tasks`: real tasks of a scheduler, with
        more `options` of its own, where there is one; ranks are then numbered pool by pool where pools differ. Close
        the group, always.
        """
        found = check_nodes(nodes, self._known)
        stdin = program.stdin + (b"" if first is None else encoded(first))

        def command(node: str) -> Command:
            words = program.words(self._python_of(node), args)
            return Command(argv=words, stdin=stdin, env=env or {}, in_container=in_container)

        done = self._begun(command(found[0]).argv, found, limit_s, len(stdin) * len(found))
        if as_tasks and per_node:
            group = await self._tasks(found, command, per_node=per_node, options=options, limit_s=limit_s, done=done)
            if group is not None:
                return group
        envs = per_node and {
            node: [_rank_env(group, local, per_node, len(found)) for local in range(per_node)]
            for group, node in enumerate(found)
        }
        live = LiveGroup(
            self._backend,
            found,
            command,
            python_of=self._python_of,
            envs=envs or None,
            limit_s=limit_s,
            record=done,
        )
        return await live.start(self._fanout)

    async def _tasks(
        self,
        nodes: NodeSet,
        command: Callable[[str], Command],
        *,
        per_node: int,
        options: Sequence[str],
        limit_s: float,
        done: Callable[[list[Result]], None],
    ) -> Group | None:
        """One step for the pools that are alike; several share what is heard."""
        await self._backend.ready(nodes)
        kinds: dict[tuple[str, str], list[str]] = {}
        for node in nodes:
            kinds.setdefault((self._python_of(node), self._backend.container_of(node)), []).append(node)
        steps, first_rank = [], 0
        for members in kinds.values():
            own = NodeSet(members)
            places = {
                "FAIRLEAD_WIRE": "lines",
                "FAIRLEAD_FIRST_RANK": str(first_rank),
                "FAIRLEAD_WORLD": str(per_node * len(nodes)),
            }
            one = command(own[0])
            one = replace(one, env={**one.env, **places})
            argv = self._backend.wrap_tasks(own, per_node, one, options)
            if argv is None:
                return None
            steps.append((argv, own, one, first_rank))
            first_rank += per_node * len(own)
        heard, env = Heard(len(steps)), self._backend.environ()
        groups = [
            TaskGroup(
                argv,
                own,
                one,
                env=env,
                per_node=per_node,
                heard=heard,
                first_rank=first,
                places=self._places(argv, own, per_node),
            )
            for argv, own, one, first in steps
        ]
        for group in groups:
            await group.start(limit_s)
        return JoinedGroup(groups, heard, done)

    async def live_tasks(
        self,
        nodes: NodeSet | str,
        command: Command | Sequence[str],
        *,
        limit_s: float,
        per_node: int,
        options: Sequence[str] = (),
    ) -> TaskGroup | None:
        """The same as real tasks of a scheduler, with more options of its own; None where there is no scheduler."""
        found, one = check_nodes(nodes, self._known), Command.of(command)
        await self._backend.ready(found)
        argv = self._backend.wrap_tasks(found, per_node, one, options)
        if argv is None:
            return None
        done = self._begun(one.argv, found, limit_s, len(one.stdin) * len(found))
        env = self._backend.environ()
        places = self._places(argv, found, per_node)
        group = TaskGroup(argv, found, one, env=env, per_node=per_node, record=done, places=places)
        return await group.start(limit_s)

    def _places(self, argv: Sequence[str], nodes: NodeSet, per_node: int) -> Callable[[], Awaitable[list[str]]]:
        """Asks the scheduler for the node of each task of a step."""

        async def ask(words: Sequence[str]) -> Captured | None:
            return await self.control(words, limit_s=slurmsteps.LIMIT_S)

        async def places() -> list[str]:
            found = await slurmsteps.places(ask, slurmsteps.name_of(argv), nodes, per_node)
            if not found:
                text = "the scheduler does not say which task runs where: what tasks say of it is believed"
                tell(log, text, level=logging.WARNING, nodes=str(nodes), step=slurmsteps.name_of(argv))
            return found

        return places

    async def control(self, argv: Sequence[str], *, limit_s: float) -> Captured | None:
        """A short command of the scheduler itself, such as `scontrol show node`; None where there is no scheduler."""
        wrapped = self._backend.wrap_control(argv)
        return await capture(wrapped, limit_s=limit_s, env=self._backend.environ()) if wrapped else None

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
        """Copy a local file or folder to the same path on every node; from node to node where addresses are given."""
        found = check_nodes(nodes, self._known)
        whole_path(target)
        if addresses is not None or source.is_dir():  # noqa: ASYNC240 - one look at a local disk
            return await self._spread(found, source, target, limit_s=limit_s, mode=mode, addresses=addresses or {})
        num_bytes = file_size(source) * len(found)

        async def work(talk: Talk, slot: Slot) -> list[Result]:
            return [await push_one(talk, source, target, mode)]

        return await self._do(
            found, work, _one_blank, ("push", str(source), target), limit_s=limit_s, bytes_in=num_bytes
        )

    async def _spread(
        self, nodes: NodeSet, source: Path, target: str, *, limit_s: float, mode: int, addresses: Mapping[str, str]
    ) -> list[Result]:
        what = await asyncio.to_thread(source_of, source, mode)
        done = self._begun(("push", str(source), target), nodes, limit_s, what.size)
        program = relay_program()
        group = LiveGroup(
            self._backend,
            nodes,
            lambda node: Command(argv=program.words(self._python_of(node)), stdin=program.stdin),
            python_of=self._python_of,
            envs=None,
            limit_s=limit_s,
        )
        await group.start(self._fanout)
        results: list[Result] = []
        try:
            push = Spread(group, what, target, addresses, fanout=self._fanout, limit_s=limit_s)
            results = await push.run(nodes)
        finally:
            done(results or await group.close())
        return self.last

    async def fetch(
        self, nodes: NodeSet | str, source: str, into: Path, *, limit_s: float, max_bytes: int
    ) -> list[Result]:
        """Copy one file from every node to `into/<node>/<name>`."""
        found = check_nodes(nodes, self._known)
        whole_path(source)

        async def work(talk: Talk, slot: Slot) -> list[Result]:
            return [await fetch_one(talk, source, into / talk.node / Path(source).name, max_bytes)]

        return await self._do(found, work, _one_blank, ("fetch", source, str(into)), limit_s=limit_s, bytes_in=0)

    async def close(self) -> None:
        """Give back what the backend holds."""
        await self._backend.close()

    # ---- what all calls share --------------------------------------------------------------------------------------

    async def _do(
        self,
        nodes: NodeSet,
        work: Callable[[Talk, Slot], Awaitable[list[Result]]],
        blank: Callable[[str, Refusal], list[Result]],
        argv: tuple[str, ...],
        *,
        limit_s: float,
        bytes_in: int,
        stop: asyncio.Event | None = None,
    ) -> list[Result]:
        """Work on every node that is usable; `blank` makes the results of the others."""
        ended = self._begun(argv, nodes, limit_s, bytes_in)
        make_room(min(self._fanout, len(nodes)))
        slots = Slots(self._fanout)
        refusals: Mapping[str, Refusal] = {}
        outcomes: dict[str, list[Result]] = {}

        async def in_slot(node: str) -> list[Result]:
            slot = await slots.take()
            talk = Talk(self._backend, node, self._python_of(node), limit_s, slot.since_s)
            try:
                return await work(talk, slot)
            finally:
                slot.give()

        try:
            refusals = await self._backend.ready(nodes)
            if not (stop and refusals):  # a group that must be whole is not begun without a member
                usable = NodeSet(n for n in nodes if n not in refusals)
                await each(usable, in_slot, outcomes, stop=stop, watch=self._watch)
        finally:
            default = Refusal(State.CANCELLED, "not started")
            by_node = (outcomes.get(node) or blank(node, refusals.get(node, default)) for node in nodes)
            ended([result for results in by_node for result in results])
        return self.last

    def _begun(
        self, argv: tuple[str, ...], nodes: NodeSet, limit_s: float, bytes_in: int
    ) -> Callable[[list[Result]], None]:
        """A call has begun; returns what takes its results at the end, and records it."""
        at, started = now_utc(), time.monotonic()
        self.last = []
        via, words = self._backend.name, _words(argv)
        tell(log, f"asks {counted(len(nodes), 'node')}", via=via, argv=words, nodes=str(nodes), limit_s=limit_s)

        def ended(results: list[Result]) -> None:
            self.last = results
            if not (self._recorder or log.isEnabledFor(logging.INFO)):
                return
            ms = round((time.monotonic() - started) * 1000)
            call = record(via, argv, nodes, results, at=at, ms=ms, limit_s=limit_s, bytes_in=bytes_in)
            level = logging.INFO if all(r.ok for r in results) else logging.WARNING
            said: dict[str, Any] = {"states": call.states, "errors": call.errors, "took_ms": ms}
            tell(log, f"{counted(len(nodes), 'node')} answered", level=level, via=via, argv=words, **said)
            if self._recorder:
                self._recorder(call)

        return ended


def check_nodes(nodes: NodeSet | str, known: NodeSet | None) -> NodeSet:
    """The node set, if it is not empty and names only nodes the cluster has. Raises UsageError."""
    found = nodes if isinstance(nodes, NodeSet) else NodeSet(nodes)
    if not found:
        raise UsageError("nodes/empty", "the node set is empty", hint="name nodes with -w")
    if known is not None and (unknown := found - known):
        guess = did_you_mean(unknown[0], known) if len(unknown) == 1 else ""
        there = guess if guess.startswith("did you mean") else f"it has {known}"
        raise UsageError("nodes/unknown", f"the cluster has no {unknown}; {there}", hint="fairlead check")
    return found


def _words(argv: Sequence[str]) -> str:
    """A command for the log, where the beginning of a long one is enough: `commands.jsonl` has it whole."""
    text = shlex.join(argv)
    return text if len(text) <= _LOG_CHARS else text[:_LOG_CHARS] + "..."


def _rank_env(group: int, local: int, per_node: int, num_nodes: int) -> dict[str, str]:
    """A rank's place in its group, under the names torchrun gives."""
    return {
        "RANK": str(group * per_node + local),
        "LOCAL_RANK": str(local),
        "WORLD_SIZE": str(per_node * num_nodes),
        "LOCAL_WORLD_SIZE": str(per_node),
        "GROUP_RANK": str(group),
    }


def _blank(node: str, why: Refusal, rank: int | None = None, local_rank: int | None = None) -> Result:
    """The result of something that was never started."""
    return Result(
        node=node, state=why.state, error=why.error, hint=why.hint, code=why.code, rank=rank, local_rank=local_rank
    )


def _one_blank(node: str, why: Refusal) -> list[Result]:
    return [_blank(node, why)]

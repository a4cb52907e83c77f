"""Ranks as real tasks of a scheduler: one step over all nodes, talked to while it runs; see live.py for the face.

Knows how srun labels lines and what it says about tasks that fail. What a step's words are is the backend's business.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import AsyncIterable, Awaitable, Callable, Mapping, Sequence
from typing import Self

from fairlead.base.nodeset import NodeSet
from fairlead.cluster.backend import last_line
from fairlead.cluster.channel import A_BEAT, A_FRAME, PIECE, Incoming, encoded
from fairlead.cluster.group import Group, Outbox
from fairlead.cluster.heard import Beat, Heard
from fairlead.cluster.local import LocalBackend
from fairlead.cluster.outputs import Exit, Gathered, exit_text, judge
from fairlead.cluster.protocol import Command, Line, Message, Refusal, Result, State
from fairlead.cluster.slurm import NO_BINDING
from fairlead.cluster.talk import UNBOUNDED, Ending, Talk, pieces, run_job

_PIECE = PIECE.decode()
_CANCEL_S = 5.0
"""How long the scheduler's program has to end its tasks and give the nodes back, should this process be killed."""


class _Here(LocalBackend):
    """This machine, where the scheduler's program runs."""

    def __init__(self, env: Mapping[str, str] | None) -> None:
        self._env = env

    def environ(self) -> Mapping[str, str] | None:
        """Without the shape of an enclosing job."""
        return self._env


class TaskGroup(Group):
    """Ranks are counted from `first_rank`; which node each is on, `places` is asked once the first of them speaks.

    Where that says nothing, rank r is taken to be on the (r div per_node)-th node. `argv` is the step; it labels every
    line, and that label is all that says who speaks.

    The step runs below a node-side program on this machine, so that it ends as everything does: at the limit, at an
    interrupt, and when this process is killed. The scheduler's program then ends the tasks. It hands its input to every
    task, so a message for one of them carries its rank, and the others leave it alone (channel.py).
    """

    kind = "tasks"

    def __init__(
        self,
        argv: Sequence[str],
        nodes: NodeSet,
        command: Command,
        *,
        env: Mapping[str, str] | None,
        per_node: int,
        heard: Heard | None = None,
        first_rank: int = 0,
        record: Callable[[list[Result]], None] = lambda _: None,
        places: Callable[[], Awaitable[Sequence[str]]] | None = None,
    ) -> None:
        super().__init__(heard or Heard(1), record)
        self._argv, self._env, self._nodes, self._command, self._per_node = argv, env, nodes, command, per_node
        self._first = first_rank
        self._lay([node for node in nodes for _ in range(per_node)])
        self.knows_places, self._places = False, places
        self._asked: asyncio.Task[None] | None = None
        self._early: list[tuple[str, str]] = []
        """Lines that came before it was known which node a task is on."""
        self._task: asyncio.Task[None] | None = None
        self._outbox, self._source = Outbox(), self.heard.source()
        self._cut: dict[int, Incoming] = {}
        """Of the ranks that sent messages cut into lines, what is not whole yet."""
        self._own_words: list[str] = []
        self._has_begun = False
        self._started_s = 0.0

    @property
    def num_running(self) -> int:
        """1 while the step runs."""
        return int(self._task is not None and not self._task.done())

    @property
    def num_starting(self) -> int:
        """All of them until the first task speaks: a step begins as a whole."""
        return 0 if self._has_begun or not self.num_running else len(self._nodes)

    async def start(self, limit_s: float) -> Self:
        """Begin the step."""
        self._started_s = asyncio.get_running_loop().time()
        self._task = asyncio.create_task(self._run(limit_s))
        self._task.add_done_callback(lambda _: self.heard.wake())
        return self

    def has(self, to: str | int) -> bool:
        """See Group."""
        return bool(self._ranks_of(to))

    def ways(self, to: str | int | None) -> list[Outbox]:
        """The step's own, whoever it is for."""
        assert to is None or self.has(to), f"{to} is not in this group"
        return [self._outbox] if self.num_running else []

    def address(self, message: Message, to: str | int | None) -> list[bytes]:
        """A copy for each rank of a node."""
        return [encoded(message)] if to is None else [encoded(message, rank) for rank in self._ranks_of(to)]

    def stop_way(self, way: Outbox) -> None:
        """End the step."""
        assert self._task is not None
        self._task.cancel()

    async def stop(self, grace_s: float) -> list[Result]:
        """See Group."""
        assert self._task is not None
        if not self._task.done() and grace_s:
            await asyncio.wait([self._task], timeout=grace_s)
        if not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])
        if not self._task.cancelled() and (fault := self._task.exception()):
            raise fault
        for node, rank in self._keys():
            if (node, rank) not in self.heard.ended:  # cancelled before it had begun
                self._finish(node, rank, Refusal(State.CANCELLED, "not started"), None)
        return [self.heard.ended[key] for key in self._keys()]

    def _lay(self, node_of: list[str]) -> None:
        """Each task on its node."""
        self._node_of = node_of
        self._ranks: dict[str, list[int]] = {}
        for task, node in enumerate(node_of):
            self._ranks.setdefault(node, []).append(self._first + task)

    def _keys(self) -> list[tuple[str, int]]:
        return [(node, self._first + task) for task, node in enumerate(self._node_of)]

    def _ranks_of(self, to: str | int) -> list[int]:
        if isinstance(to, int):
            return [to] if 0 <= to - self._first < len(self._node_of) else []
        return self._ranks.get(to, [])

    async def _run(self, limit_s: float) -> None:
        talk = Talk(_Here(self._env), "", sys.executable, limit_s, self._started_s)
        step = Gathered("", keep_bytes=0, on_line=lambda line: self._line(line.stream, line.text, talk.ending))
        step_command = Command(argv=tuple(self._argv), stdin=self._command.stdin)
        job = run_job(step_command, "", [{}], UNBOUNDED, is_live=True) | {"grace_s": _CANCEL_S}

        def on_frame(kind: bytes, local: int, payload: bytes) -> None:
            if kind != b"b":  # this machine lives, and tasks give their own signs of life
                step.on_frame(kind, local, payload)

        ending = await talk.hold(job, self._input(), on_frame, when_wanted=self._wanted)
        if self._asked is not None and not self._asked.done():
            self._asked.cancel()
            await asyncio.wait([self._asked])
        how = step.result(ending)
        # a step that fails without naming a task failed as a whole: refused, cancelled, or its way broke
        said = last_line("\n".join(self._own_words)).removeprefix("srun: error: ")
        rest = Refusal(how.state, how.error)
        ended = self.heard.ended
        if how.state is State.FAILED:
            named = any(ended[key].rc for key in self._keys() if key in ended)
            rest = Refusal(State.DONE, "") if named else Refusal(State.FAILED, said or how.error)
        for node, rank in self._keys():
            if (node, rank) not in ended:
                self._finish(node, rank, rest, 0 if rest.state is State.DONE else None)

    async def _input(self) -> AsyncIterable[bytes]:
        async for data in pieces(self._command.stdin):
            yield data
        while True:
            yield await self._outbox.take()

    async def _wanted(self) -> None:
        """No more is read before it is known who speaks, and before what was read is wanted."""
        if self._asked is not None and not self._asked.done():
            await asyncio.wait([self._asked])
        await self._source.wanted.wait()

    async def _ask_places(self, ending: Ending) -> None:
        assert self._places is not None
        try:
            if found := list(await self._places()):
                self._lay(found)
                self.knows_places = True
        finally:
            early, self._early = self._early, []
            for name, text in early:
                self._heard(name, text, ending)

    def _line(self, name: str, text: str, ending: Ending) -> None:
        if self._asked is None and self._places is not None and _LABEL.match(text):
            self._has_begun = True
            self._asked = asyncio.create_task(self._ask_places(ending))
        if self._asked is not None and not self._asked.done():
            self._early.append((name, text))
        else:
            self._heard(name, text, ending)

    def _heard(self, name: str, text: str, ending: Ending) -> None:
        label, colon, said = text.partition(": ")
        task = label.strip()
        if colon and task.isdecimal() and len(task) < 10 and int(task) < len(self._node_of):
            self._has_begun = True
            self._said(int(task), name, said)
            return
        if text.endswith(NO_BINDING):  # an answer to our own --cpu-bind=none, which asks for just that
            return
        self.heard.hear(self._source, Line("", None, name, text))  # the scheduler's own: that it queues the step, say
        self._own_words.append(text)
        del self._own_words[:-64]
        for tasks, how, rc in task_ends(text):
            for task_number in tasks:
                if task_number < len(self._node_of):
                    told = Exit(rc=rc, error=how, stopped=ending.cut)
                    self._finish(self._node_of[task_number], self._first + task_number, judge(told, ending), rc)

    def _said(self, task: int, name: str, text: str) -> None:
        """One line of one task; it may be a part of a message."""
        rank, node = self._first + task, self._node_of[task]
        if not text.startswith(_PIECE):
            self.heard.hear(self._source, Line(node, rank, name, text))
            return
        found: list[tuple[str, bytes]] = []
        self._cut.setdefault(rank, Incoming()).line(text.encode(), found)
        for kind, payload in found:
            if kind == A_BEAT:
                self.heard.beats[node, rank] = Beat(time.monotonic(), payload.decode("utf-8", "backslashreplace"))
            elif kind == A_FRAME:
                self.heard.hear(self._source, Line(node, rank, "frame", "", payload))
            else:
                self.heard.hear(self._source, Line(node, rank, name, payload.decode("utf-8", "backslashreplace")))

    def _finish(self, node: str, rank: int, why: Refusal, rc: int | None) -> None:
        took_s = asyncio.get_running_loop().time() - self._started_s
        local = self._ranks[node].index(rank)
        self.heard.end(
            (node, rank),
            Result(node=node, state=why.state, rc=rc, error=why.error, rank=rank, local_rank=local, duration_s=took_s),
        )


_LABEL = re.compile(r" *[0-9]{1,9}: ")
_TASK_END = re.compile(r"srun: error: \S+: tasks? ([\d,\-\[\]]+): (.+)")
_SIGNALS = {"Killed": 9, "Segmentation fault": 11, "Aborted": 6, "Terminated": 15, "Bus error": 7, "Interrupt": 2}


def task_ends(text: str) -> list[tuple[list[int], str, int]]:
    """What srun says about tasks that did not end well: (ranks, in words, exit status or minus the signal).

    >>> task_ends("srun: error: n1: tasks 2-3: Exited with exit code 7")
    [([2, 3], 'exit status 7', 7)]
    >>> task_ends("srun: error: n0: task 0: Killed")
    [([0], 'killed by SIGKILL', -9)]
    """
    found = _TASK_END.match(text)
    if not found:
        return []
    ranks = [int(n) for n in NodeSet(f"[{found[1].strip('[]')}]")]
    how = found[2].strip()
    if status := re.search(r"exit code (\d{1,9})\b", how):
        return [(ranks, f"exit status {status[1]}", int(status[1]))]
    for word, number in _SIGNALS.items():
        if how.startswith(word):
            return [(ranks, exit_text(-number), -number)]
    return [(ranks, how, 1)]

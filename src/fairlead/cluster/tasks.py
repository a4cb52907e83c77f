"""Ranks as real tasks of a scheduler: one step over all nodes, talked to while it runs; see live.py for the face.

Knows how srun labels lines and what it says about tasks that fail. What a step's words are is the backend's business.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterable, Callable, Mapping, Sequence
from itertools import product
from typing import Self

from fairlead.base.nodeset import NodeSet
from fairlead.cluster.backend import last_line
from fairlead.cluster.live import Group
from fairlead.cluster.local import LocalBackend
from fairlead.cluster.outputs import Gathered, exit_text, judge
from fairlead.cluster.protocol import Command, Line, Refusal, Result, State
from fairlead.cluster.talk import UNBOUNDED, Ending, Talk, pieces, run_job

_MAX_SENT = 1_000
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
    """Rank r is on the (r div per_node)-th node. `argv` is the step; it labels every line with the rank.

    The step runs below a node-side program on this machine, so that it ends as everything does: at the limit, at an
    interrupt, and when this process is killed. The scheduler's program then ends the tasks.
    """

    def __init__(
        self,
        argv: Sequence[str],
        nodes: NodeSet,
        command: Command,
        *,
        env: Mapping[str, str] | None,
        per_node: int,
        record: Callable[[list[Result]], None] = lambda _: None,
    ) -> None:
        super().__init__(record)
        self._argv, self._env, self._nodes, self._command, self._per_node = argv, env, nodes, command, per_node
        self._task: asyncio.Task[None] | None = None
        self._to_write: asyncio.Queue[bytes] = asyncio.Queue(_MAX_SENT)
        self._own_words: list[str] = []
        self._started_s = 0.0

    @property
    def num_running(self) -> int:
        """1 while the step runs."""
        return int(self._task is not None and not self._task.done())

    async def start(self, limit_s: float) -> Self:
        """Begin the step."""
        self._started_s = asyncio.get_running_loop().time()
        self._task = asyncio.create_task(self._run(limit_s))
        return self

    def send(self, text: str) -> None:
        """One line to every task; never waits."""
        assert self._task is not None
        if self._to_write.full():
            self._task.cancel()
        else:
            self._to_write.put_nowait(text.encode() + b"\n")

    async def _close(self, grace_s: float) -> list[Result]:
        assert self._task is not None
        if not self._task.done() and grace_s:
            await asyncio.wait([self._task], timeout=grace_s)
        if not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])
        if not self._task.cancelled() and (fault := self._task.exception()):
            raise fault
        for node, rank in self._keys():
            if (node, rank) not in self.ended:  # cancelled before it had begun
                self._finish(node, rank, Refusal(State.CANCELLED, "not started"), None)
        return [self.ended[key] for key in self._keys()]

    def _keys(self) -> list[tuple[str, int]]:
        return [
            (node, i * self._per_node + local)
            for (i, node), local in product(enumerate(self._nodes), range(self._per_node))
        ]

    async def _run(self, limit_s: float) -> None:
        talk = Talk(_Here(self._env), "", sys.executable, limit_s, self._started_s)
        step = Gathered("", keep_bytes=0, on_line=lambda line: self._line(line.stream, line.text, talk.ending))
        step_command = Command(argv=tuple(self._argv), stdin=self._command.stdin)
        job = run_job(step_command, "", [{}], UNBOUNDED, is_live=True) | {"grace_s": _CANCEL_S}
        ending = await talk.hold(job, self._input(), step.on_frame, when_wanted=self._wanted.wait)
        how = step.result(ending)
        # a step that fails without naming a task failed as a whole: refused, cancelled, or its way broke
        said = last_line("\n".join(self._own_words)).removeprefix("srun: error: ")
        rest = Refusal(how.state, how.error)
        if how.state is State.FAILED:
            named = any(r.rc for r in self.ended.values())
            rest = Refusal(State.DONE, "") if named else Refusal(State.FAILED, said or how.error)
        for node, rank in self._keys():
            if (node, rank) not in self.ended:
                self._finish(node, rank, rest, 0 if rest.state is State.DONE else None)

    async def _input(self) -> AsyncIterable[bytes]:
        async for data in pieces(self._command.stdin):
            yield data
        while True:
            yield await self._to_write.get()

    def _line(self, name: str, text: str, ending: Ending) -> None:
        if label := re.match(r" *(\d+): ", text):
            rank = int(label[1])
            node = self._nodes[min(rank // self._per_node, len(self._nodes) - 1)]
            self._heard(Line(node, rank, name, text[label.end() :]))
            return
        self._heard(Line("", None, name, text))  # the scheduler's own: that it queues the step, say
        self._own_words.append(text)
        del self._own_words[:-64]
        for ranks, how, rc in task_ends(text):
            for rank in ranks:
                if rank < len(self._nodes) * self._per_node:
                    told = {"rc": rc, "error": how, "stopped": ending.cut}
                    self._finish(self._nodes[rank // self._per_node], rank, judge(told, ending), rc)

    def _finish(self, node: str, rank: int | None, why: Refusal, rc: int | None) -> None:
        took_s = asyncio.get_running_loop().time() - self._started_s
        local = rank % self._per_node if rank is not None else None
        self._end(
            (node, rank),
            Result(node=node, state=why.state, rc=rc, error=why.error, rank=rank, local_rank=local, duration_s=took_s),
        )


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
    if status := re.search(r"exit code (\d+)", how):
        return [(ranks, f"exit status {status[1]}", int(status[1]))]
    for word, number in _SIGNALS.items():
        if how.startswith(word):
            return [(ranks, exit_text(-number), -number)]
    return [(ranks, how, 1)]

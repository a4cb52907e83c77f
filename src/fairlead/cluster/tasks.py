"""Ranks as real tasks of a scheduler: one step over all nodes, talked to while it runs; see live.py for the face.

Knows how srun labels lines and what it says about tasks that fail. What a step's words are is the backend's business.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Self

from fairlead.base.nodeset import NodeSet
from fairlead.base.units import duration
from fairlead.cluster.backend import last_line
from fairlead.cluster.child import Child
from fairlead.cluster.live import Group, Key
from fairlead.cluster.outputs import Stream, exit_text
from fairlead.cluster.protocol import Command, Line, Refusal, Result, State

_KEEP_BYTES = 1 << 16
_LAST_WORDS_S = 0.5


class TaskGroup(Group):
    """Rank r is on the (r div per_node)-th node. `argv` is the step; it labels every line with the rank."""

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
        self._child: Child | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._to_write: asyncio.Queue[bytes] = asyncio.Queue()
        self._own_words: list[str] = []
        self._started_s = 0.0

    @property
    def num_running(self) -> int:
        """1 while the step runs."""
        return int(bool(self._tasks) and not self._tasks[0].done())

    async def start(self, limit_s: float) -> Self:
        """Begin the step. Raises OSError where the scheduler's program cannot be started."""
        loop = asyncio.get_running_loop()
        self._started_s = loop.time()
        self._child = Child(self._argv, self._env)
        self._to_write.put_nowait(self._command.stdin)
        self._tasks = [
            asyncio.create_task(self._run(self._child, limit_s)),
            asyncio.create_task(self._write(self._child)),
        ]
        return self

    def send(self, text: str) -> None:
        """One line to every task; never waits."""
        self._to_write.put_nowait(text.encode() + b"\n")

    async def _close(self, grace_s: float) -> list[Result]:
        """A step that does not end is told by the end of its input, then killed."""
        assert self._child is not None
        main, writer = self._tasks
        if not main.done() and grace_s:
            await asyncio.wait([main], timeout=grace_s)
        writer.cancel()
        if not main.done():
            self._child.end_input()
            await asyncio.wait([main], timeout=_LAST_WORDS_S)
        main.cancel()
        await asyncio.wait([main, writer])
        self._child.close()
        took_s = asyncio.get_running_loop().time() - self._started_s
        return [
            self.ended.get(key)
            or Result(node=key[0], state=State.CANCELLED, error="stopped", rank=key[1], duration_s=took_s)
            for key in self._keys()
        ]

    def _keys(self) -> list[Key]:
        return [
            (node, i * self._per_node + local)
            for (i, node), local in product(enumerate(self._nodes), range(self._per_node))
        ]

    async def _run(self, child: Child, limit_s: float) -> None:
        hearing = [
            asyncio.create_task(self._hear(child, fd, name))
            for fd, name in ((child.stdout, "stdout"), (child.stderr, "stderr"))
        ]
        rest = Refusal(State.TIMEOUT, f"ran into the limit of {duration(limit_s)}")
        try:
            async with asyncio.timeout(limit_s):
                await asyncio.wait(hearing)
                rc = await child.wait(_LAST_WORDS_S)
            # a step that fails without naming a task failed as a whole: refused, cancelled, or its way broke
            said = last_line("\n".join(self._own_words)).removeprefix("srun: error: ")
            why = said or f"the step ended with status {rc}"
            named = any(r.rc for r in self.ended.values())
            rest = Refusal(State.DONE, "") if rc == 0 or named else Refusal(State.FAILED, why)
        except TimeoutError:
            pass
        finally:
            for task in hearing:
                task.cancel()
        for node, rank in self._keys():
            if (node, rank) not in self.ended:
                self._finish(node, rank, rest, 0 if rest.state is State.DONE else None)

    async def _write(self, child: Child) -> None:
        try:
            while True:
                await child.write(await self._to_write.get())
        except BrokenPipeError:
            pass

    async def _hear(self, child: Child, fd: int, name: str) -> None:
        stream = Stream(_KEEP_BYTES, lambda text: self._line(name, text))
        while data := await child.read(fd):
            stream.feed(data)
        stream.flush()

    def _line(self, name: str, text: str) -> None:
        if label := re.match(r" *(\d+): ", text):
            rank = int(label[1])
            node = self._nodes[min(rank // self._per_node, len(self._nodes) - 1)]
            self._heard(Line(node, rank, name, text[label.end() :]))
            return
        self._own_words.append(text)
        del self._own_words[:-64]
        for ranks, how, rc in task_ends(text):
            for rank in ranks:
                if rank < len(self._nodes) * self._per_node:
                    self._finish(self._nodes[rank // self._per_node], rank, Refusal(State.FAILED, how), rc)

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

"""Many nodes at once: one task a node, so many at a time, none outlives the call. Knows results, not commands."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Awaitable, Callable

from fairlead.base.nodeset import NodeSet
from fairlead.cluster.protocol import Result
from fairlead.errors import ClusterError

DEFAULT_FANOUT = 64
Work = Callable[[str], Awaitable[list[Result]]]
Watcher = Callable[[int, int, NodeSet], None]
"""Called about once a second and at the end: nodes done, nodes in all, the nodes still out."""

_FILES_PER_NODE = 4
_OWN_FILES = 128
_TICK_S = 1.0


class Slot:
    """The right to work on one node."""

    def __init__(self, free: asyncio.Semaphore, since_s: float) -> None:
        self.since_s = since_s
        """When it was there, by the loop's clock; the node's time begins here, however busy this machine is."""
        self._free: asyncio.Semaphore | None = free

    def give(self) -> None:
        """Give it back; it may be given back before the work is over, and again."""
        if self._free:
            self._free.release()
            self._free = None


class Slots:
    """How many nodes may be worked on at once."""

    def __init__(self, num: int) -> None:
        self._free = asyncio.Semaphore(num)
        self._opened_s = asyncio.get_running_loop().time()

    async def take(self) -> Slot:
        """Wait for a slot."""
        must_wait = self._free.locked()
        await self._free.acquire()
        return Slot(self._free, asyncio.get_running_loop().time() if must_wait else self._opened_s)


async def each(
    nodes: NodeSet,
    work: Work,
    outcomes: dict[str, list[Result]],
    *,
    stop: asyncio.Event | None = None,
    watch: Watcher | None = None,
) -> None:
    """Do the work on every node; fills `outcomes` as nodes end. Setting `stop` cancels those still at it.

    Work that is cancelled stops what it started and still returns results; work that had not begun returns none.
    Cancelled itself, or failed by an exception of one node's work, this stops all work before it leaves.
    """

    async def one(node: str) -> None:
        outcomes[node] = await work(node)

    tasks = [asyncio.create_task(one(node), name=node) for node in nodes]
    pending = set(tasks)
    stopper = asyncio.create_task(_cancel_when(stop, tasks)) if stop else None
    try:
        while pending:
            done, pending = await asyncio.wait(pending, timeout=_TICK_S, return_when=asyncio.FIRST_EXCEPTION)
            if watch:
                watch(len(tasks) - len(pending), len(tasks), NodeSet(t.get_name() for t in pending))
            if any(not t.cancelled() and t.exception() for t in done):
                break
    finally:
        if stopper:
            stopper.cancel()
        for task in pending:
            task.cancel()
        if pending:
            await asyncio.wait(pending)
    faults = [fault for task in tasks if not task.cancelled() and (fault := task.exception())]
    if faults:
        raise faults[0]


async def _cancel_when(stop: asyncio.Event, tasks: list[asyncio.Task[None]]) -> None:
    await stop.wait()
    for task in tasks:
        task.cancel()


def make_room(num_nodes: int) -> None:
    """Raise this process's own limit of open files where that many connections need it. Raises ClusterError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = num_nodes * _FILES_PER_NODE + _OWN_FILES
    if need <= soft or soft == resource.RLIM_INFINITY:
        return
    if need > hard != resource.RLIM_INFINITY:
        raise ClusterError(
            "cluster/too-many-files",
            f"{num_nodes} connections at once need {need} open files, and this process may have {hard}",
            hint=f"ulimit -n {need}, or a smaller fan-out",
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (need, hard))

"""The members of a process group: calls as tasks of one event loop, and what ends the group.

A rank that is lost ends everything of its group, at every rank, with `fabric/rank-lost` that names it.

Must not know: collectives, schedules.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from fairlead.errors import FabricError
from fairlead.fabric.torch.meeting import meet, process
from fairlead.fabric.torch.peers import Says, lost
from fairlead.fabric.torch.work import Work

LOOK_S = 0.2
LIVES_S = 5.0
"""So often a rank writes to every other one, that also one on which nobody waits is found when it answers no more."""
GOODBYE_S = 2.0
TOLD_S = 1.0
"""So long a failed call waits at most for the others to have heard why."""
HARMLESS = frozenset({"fabric/size-mismatch"})
"""Errors of one call that leave the group as it was."""


class Membership(dist.ProcessGroup):
    """The peers of one rank, and the work that it has with them."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta, name: str) -> None:
        super().__init__(rank, size)
        self._rank, self._size, self._name = rank, size, name
        self._limit_s = timeout.total_seconds()
        self._process = process()
        self._peers, self._queue = meet(store, rank, size, self._limit_s)
        self._by_qp = {peer.qp.qp_num: peer for peer in self._peers.values()}
        self._turn = asyncio.Lock()
        self._num = 0
        self._error: FabricError | None = None
        self._is_open = True
        self._lives_at = 0.0
        self._told: list[asyncio.Future[bool]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._sorters: list[asyncio.Task[None]] = []
        self._loop = self._process.loop
        self._process.groups.append(self)
        self._loop.call_soon_threadsafe(self._begin)

    # --- the loop's side ---------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._loop.add_reader(self._queue.fileno(), self._drain)
        self._sorters = [self._loop.create_task(self._sort(peer)) for peer in self._peers.values()]
        self._look()

    async def _sort(self, peer: Any) -> None:
        with contextlib.suppress(FabricError):  # whoever waits for the peer is told by `_fail`
            await peer.sort()

    def _drain(self) -> None:
        for done in self._queue.wait(0, 1024):
            peer = self._by_qp[done.qp_num]
            if said := peer.on(done):
                self._hear(peer.rank, *said)

    def _hear(self, teller: int, what: Says, rank: int) -> None:
        """Another rank gives the group up: say who, and why."""
        own = f"; this rank waits for {waited}" if (waited := self._waited()) else ""
        match what:
            case Says.LOST:
                self._fail(lost(rank, None, teller), None)
            case Says.GIVES_UP:
                for_whom = f" waiting for rank {rank}" if rank != teller else ""
                error = FabricError(
                    "fabric/collective-timeout",
                    f"rank {teller} gave up{for_whom}, as its time was over{own}",
                    hint=f"see what rank {rank} does, or give the group a longer timeout",
                )
                self._fail(error, None)
            case _:
                error = FabricError(
                    "fabric/rank-lost",
                    f"rank {teller} gave up: what came from rank {rank} does not fit its call{own}",
                    hint=f"look at the error of rank {teller}; all ranks must call the same collectives in one order",
                )
                self._fail(error, None)

    def _waited(self) -> str:
        """Whom this rank waits for, in words."""
        ranks = [str(p.rank) for p in self._peers.values() if p.num_awaited]
        return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks)}" if ranks else ""

    def _look(self) -> None:
        """Now and then: has a peer ended without a word, or one that somebody waits for?"""
        if not self._is_open:
            return
        self._loop.call_later(LOOK_S, self._look)
        now = self._loop.time()
        if now >= self._lives_at and self._error is None:
            self._lives_at = now + LIVES_S
            self._tell(Says.LIVES, 0)
        self._find_lost()

    def _find_lost(self) -> None:
        """Peers whose queue pair has failed since the last look."""
        for peer in self._peers.values():
            if peer.error is None and (error := peer.qp.error) is not None:
                self._drain()
                peer.error = error
                if not peer.has_left:
                    self._fail(lost(peer.rank, error), Says.LOST, peer.rank)
                peer.wake()

    def _fail(self, error: FabricError, what: Says | None, rank: int = 0) -> None:
        """The group is over; the others are told what, but where they know."""
        if self._error is not None:
            return
        self._error = error
        if what is not None:
            self._tell(what, rank)
        current = asyncio.current_task()
        for task in self._tasks:
            if task is not current:
                task.cancel()

    def _tell(self, what: Says, rank: int) -> None:
        """Say it to all that can hear."""
        for peer in self._peers.values():
            if not (peer.has_left or peer.error or (what is Says.LOST and peer.rank == rank)):
                with contextlib.suppress(FabricError):
                    told = peer.tell(what, rank)
                    if what is not Says.LIVES:
                        self._told.append(told)

    def _start(self, result: list[Any], job: Callable[[], Coroutine[Any, Any, None]]) -> Work:
        work = Work(result)

        async def run() -> None:
            error: BaseException | None = None
            try:
                if self._error:
                    raise self._error  # noqa: TRY301
                async with asyncio.timeout(self._limit_s or None):
                    await job()
            except asyncio.CancelledError:
                error = self._error or _destroyed()
            except TimeoutError:
                waited = self._waited()
                error = FabricError(
                    "fabric/collective-timeout",
                    f"not done after {self._limit_s:g} s; rank {self._rank} waits for {waited or 'room at the others'}",
                    hint="see what those ranks do, or give the group a longer timeout",
                )
                self._fail(error, Says.GIVES_UP, self._first_awaited())
            except BaseException as exc:  # noqa: BLE001 - the caller of wait() is told
                error = exc
                if isinstance(exc, FabricError) and exc.code not in HARMLESS:
                    self._find_lost()  # a queue pair that has just failed is the cause, where there is one
                    self._fail(exc, Says.FAILS, self._first_awaited())
                    error = self._error
            if error is not None and self._told:  # a program may end as soon as it knows
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait(self._told, timeout=TOLD_S)
            work.finish(error)

        def end(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if not work.is_completed():  # cancelled before its first step
                work.finish(self._error or _destroyed())

        def begin() -> None:
            task = self._loop.create_task(run())
            self._tasks.add(task)
            task.add_done_callback(end)

        if not self._is_open:
            raise FabricError("fabric/closed", "the process group was destroyed", hint="make a new one")
        self._loop.call_soon_threadsafe(begin)
        return work

    def _first_awaited(self) -> int:
        """A rank that this one waits for; itself, if there is none."""
        return next((p.rank for p in self._peers.values() if p.num_awaited), self._rank)

    @property
    def group_name(self) -> str:
        """By which torch finds it."""
        return self._name

    def set_timeout(self, timeout: timedelta) -> None:
        """For calls from now on."""
        self._limit_s = timeout.total_seconds()

    def shutdown(self) -> None:
        """Leave: the others are told, so that it is no loss to them."""
        if not self._is_open:
            return
        self._is_open = False
        asyncio.run_coroutine_threadsafe(self._leave(), self._loop).result()
        for peer in self._peers.values():
            peer.qp.close()
            self._process.context.deregister(peer.region)
        self._queue.close()
        self._process.groups.remove(self)

    abort = shutdown

    async def _leave(self) -> None:
        told = []
        for peer in self._peers.values():
            if not (peer.has_left or peer.error or self._error):
                with contextlib.suppress(FabricError):
                    told.append(peer.tell(Says.LEAVES))
        if told:
            await asyncio.wait(told, timeout=GOODBYE_S)
        tasks = [*self._tasks, *self._sorters]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._loop.remove_reader(self._queue.fileno())


def _destroyed() -> FabricError:
    return FabricError("fabric/closed", "the process group was destroyed", hint="wait for its work before")

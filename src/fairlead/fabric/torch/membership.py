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
from fairlead.fabric.torch.clock import Clock
from fairlead.fabric.torch.meeting import meet, process
from fairlead.fabric.torch.peers import Peer, RankError, Says, lost
from fairlead.fabric.torch.work import Work

LOOK_S = 0.2
LIVES_S = 5.0
LIVES_SHARE = 1 / 8
"""So often, or at such a share of a call's time, a rank writes to every other one: also one on which nobody waits
is found when it answers no more."""
PAUSE_S = 1.0
"""A look that comes so late says that this rank stood still: its clocks run on from there."""
SETTLED_S = 5.0
"""So long after it goes on again it may find who went on without it."""
TOLD_S = 1.0
"""So long a failed call waits at most for the others to have heard why."""
FAREWELL_S = 10.0
"""So long a rank whose group has failed stays at most for others that have not heard why."""
SILENT_SHARE = 0.5
"""Who has been silent for this share of a call's time is the cause that it was not done."""
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
        self._looked_at = 0.0
        self._paused_s = self._paused_at = 0.0
        """How long this rank stood still last, and until when."""
        self._told: list[asyncio.Future[bool]] = []
        self._clocks: set[Clock] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._sorters: list[asyncio.Task[None]] = []
        self._loop = self._process.loop
        self._process.groups.append(self)
        self._loop.call_soon_threadsafe(self._begin)

    # --- the loop's side ---------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._looked_at = self._loop.time()
        self._loop.add_reader(self._queue.fileno(), self._drain)
        self._sorters = [self._loop.create_task(self._sort(peer)) for peer in self._peers.values()]
        self._look()

    async def _sort(self, peer: Peer) -> None:
        with contextlib.suppress(FabricError):  # whoever waits for the peer is told by `_fail`
            await peer.sort()

    def _drain(self) -> None:
        for done in self._queue.wait(0, 1024):
            peer = self._by_qp[done.qp_num]
            if said := peer.on(done):
                self._hear(peer.rank, *said)

    def _hear(self, teller: int, what: Says, rank: int) -> None:
        """Another rank gives the group up: say who, and why."""
        waited = "" if rank == self._rank else self._waited()
        own = f"; this rank waits for {waited}" if waited else ""
        match what:
            case Says.LOST if rank == self._rank:
                self._fail(lost(rank, f"rank {teller} has waited in vain for a sign of life of this one"), None)
            case Says.LOST:
                self._fail(lost(rank, self._peers[rank].why_lost or f"rank {teller} says so"), None)
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
        """Now and then: has this rank stood still, has a peer ended without a word, or fallen silent?"""
        if not self._is_open:
            return
        self._loop.call_later(LOOK_S, self._look)
        now = self._loop.time()
        if (late_s := now - self._looked_at - LOOK_S) > PAUSE_S:
            self._go_on(now, late_s)
        self._looked_at = now
        if now >= self._lives_at and self._error is None:
            self._lives_at = now + min(LIVES_S, self._limit_s * LIVES_SHARE or LIVES_S)
            self._tell(Says.LIVES, 0)
        self._find_lost()
        self._find_silent(now)

    def _go_on(self, now: float, paused_s: float) -> None:
        """This rank stood still (stopped, frozen, moved to another machine): that time is nobody else's silence."""
        self._paused_s, self._paused_at = paused_s, now
        for peer in self._peers.values():
            peer.heard_at = now
        for clock in self._clocks:
            clock.put_off(paused_s)

    def _find_lost(self) -> None:
        """Peers whose queue pair has failed since the last look."""
        for peer in self._peers.values():
            if peer.error is None and (error := peer.qp.error) is not None:
                self._drain()  # first what it has said before
                peer.error = error
                if not peer.has_left:
                    cause = self._left_behind() or lost(peer.rank, error.message)
                    self._fail(cause, Says.LOST, cause.rank)
                peer.wake()

    def _find_silent(self, now: float) -> None:
        """Peers that have shown no life for as long as a call may take."""
        silent = self._silent(now)
        if silent is not None and silent.silent_s(now) > self._limit_s > 0:
            self._fail(_silent(silent, now), Says.LOST, silent.rank)

    def _silent(self, now: float) -> Peer | None:
        """Who has been silent for longest."""
        there = [p for p in self._peers.values() if not (p.has_left or p.error)]
        return max(there, key=lambda p: p.silent_s(now), default=None)

    def _left_behind(self) -> RankError | None:
        """Where this rank stood still so long that the others may have given it up: that is why one has gone."""
        since_s = self._loop.time() - self._paused_at
        if since_s > SETTLED_S or not self._paused_s > self._limit_s * SILENT_SHARE > 0:
            return None
        return RankError(
            "fabric/rank-lost",
            f"rank {self._rank} is lost: it stood still for {self._paused_s:.0f} s, and the others have gone",
            hint="see what stopped this process or its machine, or give the group a longer timeout",
            rank=self._rank,
        )

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
        """Say it to all that can hear; that this rank lives, to those that have nothing else to answer."""
        for peer in self._peers.values():
            if peer.has_left or peer.error or (what is Says.LIVES and peer.owes_answer):
                continue
            told = peer.tell(what, rank)
            if what is not Says.LIVES and peer.rank != rank:  # whom it is about may hear it later, or never
                self._told.append(told)

    def _start(
        self, result: list[Any], job: Callable[[Clock], Coroutine[Any, Any, None]], *, waits: bool = False
    ) -> Work:
        """`job` starts its clock by itself or, where it `waits`, as somebody begins to wait for it."""
        clock = Clock(self._limit_s)
        work = Work(result, (lambda: self._loop.call_soon_threadsafe(clock.start)) if waits else None)

        async def run() -> None:
            error: BaseException | None = None
            self._clocks.add(clock)
            try:
                if self._error:
                    raise self._error  # noqa: TRY301
                await clock.limit(job(clock))
            except asyncio.CancelledError:
                error = self._error or _destroyed()
            except BaseException as exc:  # noqa: BLE001 - the caller of wait() is told
                error = self._failed(exc)
            self._clocks.discard(clock)
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

    def _failed(self, exc: BaseException) -> BaseException:
        """A call has ended with this; what its caller is told, and the other ranks, if it is the end of the group."""
        match exc:
            case TimeoutError():
                now = self._loop.time()
                silent = self._silent(now)
                if silent is not None and silent.silent_s(now) > self._limit_s * SILENT_SHARE:
                    self._fail(_silent(silent, now), Says.LOST, silent.rank)
                else:
                    waited = self._waited() or "room at the others"
                    error = FabricError(
                        "fabric/collective-timeout",
                        f"not done after {self._limit_s:g} s; rank {self._rank} waits for {waited}",
                        hint="see what those ranks do, or give the group a longer timeout",
                    )
                    self._fail(error, Says.GIVES_UP, self._first_awaited())
            case FabricError() if exc.code not in HARMLESS:
                self._find_lost()  # a queue pair that has just failed is the cause, where there is one
                what = Says.LOST if exc.code == "fabric/rank-lost" else Says.FAILS
                self._fail(exc, what, exc.rank if isinstance(exc, RankError) else self._first_awaited())
            case _:
                return exc
        return self._error or exc

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
        """Leave: the others are told, so that it is no loss to them. Lasts until each has heard it, or is lost."""
        self._close(self._limit_s or None)

    def abort(self) -> None:
        """Leave without waiting for anybody."""
        self._close(0)

    def _close(self, linger_s: float | None) -> None:
        if not self._is_open:
            return
        self._is_open = False
        asyncio.run_coroutine_threadsafe(self._leave(linger_s), self._loop).result()
        for peer in self._peers.values():
            peer.qp.close()
            self._process.context.deregister(peer.region)
        self._queue.close()
        self._process.groups.remove(self)

    async def _leave(self, linger_s: float | None) -> None:
        if self._error:
            told, linger_s = self._told, min(FAREWELL_S, linger_s or FAREWELL_S)
        else:
            told = [peer.tell(Says.LEAVES) for peer in self._peers.values() if not (peer.has_left or peer.error)]
        if told and linger_s != 0:
            await asyncio.wait(told, timeout=linger_s)
        tasks = [*self._tasks, *self._sorters]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._loop.remove_reader(self._queue.fileno())


def _silent(peer: Peer, now: float) -> RankError:
    return lost(peer.rank, f"it has not answered for {peer.silent_s(now):.0f} s")


def _destroyed() -> FabricError:
    return FabricError("fabric/closed", "the process group was destroyed", hint="wait for its work before")

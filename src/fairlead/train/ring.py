"""Slots of device memory through which the weights of streamed blocks pass, filled ahead of their use.

One thread walks through the copies of a schedule: it waits until a slot is free and the block is updated, and lets the
copy run in the lane `in`. Whoever computes waits for the copy's mark, in its own lane.

Must not know: what is computed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from threading import Semaphore

import torch

from fairlead.train.homes import Home
from fairlead.train.lanes import Lanes, Mark
from fairlead.train.memory import arena
from fairlead.train.schedule import Schedule, Visit
from fairlead.train.trace import Trace


class Ring:
    """The slots of one device and the thread that fills them."""

    def __init__(self, lanes: Lanes, sizes: Sequence[int], dtype: torch.dtype) -> None:
        """`sizes` of slots, in elements."""
        num_slots = len(sizes)
        self.lanes = lanes
        self.slots = [arena(numel, dtype, lanes.device) for numel in sizes]
        self._free = [Semaphore(1) for _ in range(num_slots)]
        self._freed: list[Mark | None] = [None] * num_slots
        self._is_abandoned = False
        self._visits: tuple[Visit, ...] = ()
        self._stay: Mapping[int, int] = {}
        self._ready: list[Future[Mark]] = []
        self._at = 0
        self.waited_s = 0.0
        """How long `enter` waited in this step."""
        self.loaded_s = 0.0
        """How long the thread was busy with loads in this step, as the host sees it."""
        self.trace: Trace | None = None
        self._loader = ThreadPoolExecutor(1, "loader", lanes.enter_thread)
        lanes.aside(self._loader)
        self._walk: Future[None] | None = None

    def begin(self, schedule: Schedule, homes: Sequence[Home], updated: Callable[[int], None]) -> None:
        """Start filling for one step. `updated` returns once a block's weights are those of this step."""
        self.rest()
        self._visits, self._stay = schedule.visits, schedule.stay
        self._ready = [Future() for _ in schedule.visits]
        self._at, self.waited_s, self.loaded_s = 0, 0.0, 0.0
        self._walk = self._loader.submit(self._fill, schedule.visits, self._ready, homes, updated)

    def _fill(
        self,
        visits: Sequence[Visit],
        ready: Sequence[Future[Mark]],
        homes: Sequence[Home],
        updated: Callable[[int], None],
    ) -> None:
        mark: Mark | None = None
        marks: dict[int, Mark] = {}
        try:
            for visit, future in zip(visits, ready, strict=True):
                if visit.load:
                    if visit.forward:
                        updated(visit.block)
                    self._take(visit.slot)
                    with self.lanes.lane("in"):
                        self.lanes.after(self._freed[visit.slot])
                        self._load(homes[visit.block], visit)
                        mark = self.lanes.mark()
                    marks[visit.slot] = mark
                future.set_result(marks[visit.slot])  # of whatever lies there, where the visit does not read it
        except BaseException as exc:
            for future in ready:
                if not future.done():
                    future.set_exception(exc)
            raise

    def _load(self, home: Home, visit: Visit) -> None:
        slot, begin = self.slots[visit.slot][: home.block.numel], time.perf_counter()
        if self.trace is None:
            home.load(slot)
        else:
            with self.trace.span("weights in", f"block {home.block.index} into slot {visit.slot}"):
                home.load(slot)
        self.loaded_s += time.perf_counter() - begin

    def _take(self, slot: int) -> None:
        """Wait until a slot is free."""
        self._free[slot].acquire()
        if self._is_abandoned:
            raise CancelledError

    def lying(self, block: int) -> torch.Tensor | None:
        """The slot where a step has left the block's weights, if the next one has them there first."""
        return self.slots[self._stay[block]] if block in self._stay else None

    def rest(self) -> None:
        """Return when the loader has nothing left to do."""
        if self._walk is not None:
            self._walk.result()

    def enter(self, block: int, *, forward: bool) -> torch.Tensor:
        """The slot that holds a block's weights, once it does; the current lane waits for the copy."""
        visit = self._visits[self._at]
        assert (visit.block, visit.forward) == (block, forward), (
            f"the schedule says {visit}, the model asks for {block}"
        )
        begin = time.perf_counter()
        self.lanes.after(self._ready[self._at].result())
        self.waited_s += time.perf_counter() - begin
        return self.slots[visit.slot]

    def leave(self) -> None:
        """What was entered is done with, in the current lane."""
        visit = self._visits[self._at]
        self._at += 1
        if visit.last:
            self._freed[visit.slot] = self.lanes.mark()
            self._free[visit.slot].release()

    def abandon(self) -> None:
        """A step has failed: let the loader end."""
        self._is_abandoned = True
        for semaphore in self._free:
            semaphore.release()

    def close(self) -> None:
        """End the thread."""
        self.abandon()
        self._loader.shutdown(wait=True, cancel_futures=True)
        self.slots = []

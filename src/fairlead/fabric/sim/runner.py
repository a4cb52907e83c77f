"""Playing a built world to its end: threads, faults on their timeline, progress, and a clean stop.

Knows: windows, the compiled kernels, the clock on the wall. Must not know: scenarios, or what the results mean.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from fairlead.errors import FabricError
from fairlead.fabric.sim.engine import kernels
from fairlead.fabric.sim.engine import layout as at
from fairlead.fabric.sim.engine.memory import World

Change = tuple[int, Callable[[World, int], None]]
"""When something is done to the fabric, ps; and what. It happens at the next boundary between windows."""

CALL_SECONDS = 0.2  # how long the compiled loop runs before it looks at the world outside
PARALLEL_SECONDS = 300e-6  # a window shorter than this is not worth waking a second thread


class Ended(enum.StrEnum):
    """Why a run ended."""

    DONE = "done"
    TIME = "time"
    STALLED = "stalled"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Progress:
    """How far a run is."""

    time_ps: int
    messages_done: int
    messages: int
    hops: int
    wall_s: float
    goodput_bits_per_s: float
    """Payload placed in the last part of the run played, all NICs together."""


@dataclass(frozen=True)
class RunEnd:
    """How a run ended, and what it cost."""

    ended: Ended
    time_ps: int
    hops: int
    wall_s: float


def prepare(world: World, seed: int, note: Callable[[int, int], None] = lambda *_: None) -> None:
    """Compile what the run needs (`note` hears how far that is) and set up the endpoints of every flow."""
    kernels.link(world.w, note)
    kernels.start_rows()(world.address, world.state.profiles[0], seed)


def run(
    world: World,
    *,
    until_ps: int,
    events: Sequence[Change] = (),
    report: Callable[[Progress], None] = lambda *_: None,
) -> RunEnd:
    """Play until every message is complete, the time is up, nothing can happen any more, or Ctrl-C.

    Raises FabricError (`sim/memory-overflow`) if more packets were under way than there was room for.
    """
    return _Player(world, until_ps, sorted(events, key=lambda e: e[0]), report).play()


class _Player:
    def __init__(self, world: World, until_ps: int, events: list[Change], report: Callable[[Progress], None]) -> None:
        self.world, self.until, self.events, self.report = world, until_ps, events, report
        self.threads = world.tables["threads"]
        self.window = int(world.w[at.W_WINDOW])
        self.now = 0
        self.begun = time.monotonic()
        self.pool = ThreadPoolExecutor(len(self.threads) - 1) if len(self.threads) > 1 else None
        self.window_seconds = CALL_SECONDS  # unknown: begin with one window
        self.seen = (0, 0)

    def play(self) -> RunEnd:
        """The whole run."""
        try:
            ended = self._play()
        except KeyboardInterrupt:
            ended = Ended.INTERRUPTED
        finally:
            if self.pool:
                self.pool.shutdown()
        if self.threads[:, at.TH_OVERFLOW].sum() > 0:
            raise FabricError(
                "sim/memory-overflow",
                "more packets were under way than the memory for them holds",
                hint="raise run.packet_room in the scenario",
            )
        if ended is not Ended.INTERRUPTED:  # who interrupts does not want to wait for more
            self.report(self._progress())
        return RunEnd(ended, min(self.now, self.until), self._hops(), time.monotonic() - self.begun)

    def _play(self) -> Ended:
        while self.now < self.until:
            while self.events and self.events[0][0] <= self.now:
                self.events.pop(0)[1](self.world, self.now)
            self._widen_bins()
            record_end = int(self.world.w[at.W_BIN] * self.world.w[at.W_BINS]) // self.window * self.window
            horizon = min([self.until, record_end, *(-(-e[0] // self.window) * self.window for e in self.events[:1])])
            self.now = self._some_windows(horizon)
            if self.events and self.now < at.NEVER:  # nothing may be due before the next fault
                self.now = min(self.now, -(-self.events[0][0] // self.window) * self.window)
            self.report(self._progress())
            if self._is_over():
                return Ended.DONE
            if self.now >= at.NEVER:
                # nothing is under way; a later event (a repair) may set things going again
                if not self.events:
                    return Ended.STALLED
                self.now = -(-self.events[0][0] // self.window) * self.window
        return Ended.TIME

    def _some_windows(self, horizon: int) -> int:
        """Play towards the horizon for about CALL_SECONDS."""
        begun = time.monotonic()
        play, address = kernels.play(), self.world.address
        now = self.now
        while now < horizon:
            at_start = time.monotonic()
            if self.pool and self.window_seconds > PARALLEL_SECONDS:
                num = 1
                shares = [self.pool.submit(play, address, t, now, horizon, 1) for t in range(1, len(self.threads))]
                play(address, 0, now, horizon, 1)
                for share in shares:
                    share.result()
                now = int(kernels.after()(address, now))
            else:
                num = max(1, min(1 << 20, int(CALL_SECONDS / 4 / max(self.window_seconds, 1e-8))))
                now = int(play(address, -1, now, horizon, num))
            took = time.monotonic() - at_start
            # windows differ; forget slowly, learn fast that they became long
            seconds = took / num * (len(self.threads) if num == 1 and self.pool else 1)
            self.window_seconds = max(seconds, 0.7 * self.window_seconds) if num == 1 else seconds
            if self._is_over() or time.monotonic() - begun >= CALL_SECONDS:
                break
        return now

    def _widen_bins(self) -> None:
        """The record over time is full: make its bins twice as wide."""
        w, tables = self.world.w, self.world.tables
        while self.now + self.window > w[at.W_BIN] * w[at.W_BINS]:
            for name, combine in (("goodput", np.add), ("depths", np.maximum)):
                record = tables[name]
                half = record.shape[1] // 2
                record[:, :half] = combine(record[:, 0 : 2 * half : 2], record[:, 1 : 2 * half : 2])
                record[:, half:] = 0
            w[at.W_BIN] *= 2

    def _is_over(self) -> bool:
        done = int(self.threads[:, at.TH_DONE].sum())
        return done >= int(self.world.w[at.W_MESSAGES]) or bool(self.threads[:, at.TH_OVERFLOW].any())

    def _hops(self) -> int:
        return int(self.threads[:, at.TH_ARRIVALS].sum())

    def _progress(self) -> Progress:
        done = int(self.threads[:, at.TH_DONE].sum())
        now = min(self.now, self.until)
        placed = int(self.world.tables["receivers"][:, at.RC_BYTES].sum())
        (then, before), self.seen = self.seen, (now, placed)
        pace = (placed - before) * 8e12 / (now - then) if now > then else 0.0
        messages = int(self.world.w[at.W_MESSAGES])
        return Progress(now, done, messages, self._hops(), time.monotonic() - self.begun, pace)

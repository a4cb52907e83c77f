"""Lanes of work that run beside each other: compute, copies in, copies out. Streams on CUDA, plain calls on the CPU.

A mark is set in the lane that is current, and waited for by another lane (on the device) or by a thread. On the CPU
everything is done when the call returns, so marks are reached at once.

Must not know: models, schedules, stores.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Executor
from typing import Any, Protocol

import torch


class Mark(Protocol):
    """A point in a lane."""

    def synchronize(self) -> None:
        """Wait in this thread until it is reached."""


class _Reached:
    def synchronize(self) -> None:
        """Nothing to wait for."""


class Moments:
    """Points in the current lane whose distance in seconds is asked for later, when all are reached."""

    def __init__(self, lanes: Lanes) -> None:
        self.cuda = lanes.cuda
        self.at: dict[str, Any] = {}

    def now(self, name: str) -> None:
        """Set a point."""
        if self.cuda:
            self.at[name] = torch.cuda.Event(enable_timing=True)
            self.at[name].record()
        else:
            self.at[name] = time.perf_counter()

    def between(self, begin: str, end: str) -> float:
        """Seconds."""
        if self.cuda:
            self.at[end].synchronize()
            return float(self.at[begin].elapsed_time(self.at[end])) / 1e3
        return float(self.at[end] - self.at[begin])


class Lanes:
    """The lanes of one device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.cuda = device.type == "cuda"
        self._streams: dict[str, Any] = {}
        self._turns = {"in": threading.RLock(), "out": threading.RLock()}
        if self.cuda:
            self._streams = {"in": torch.cuda.Stream(device), "out": torch.cuda.Stream(device)}

    @contextlib.contextmanager
    def lane(self, name: str) -> Iterator[None]:
        """Work inside goes to the lane `in` or `out`, that of one thread after that of another; "": to no lane."""
        if not self.cuda or not name:
            yield
            return
        with self._turns[name], torch.cuda.stream(self._streams[name]):
            yield

    def mark(self) -> Mark:
        """A mark in the current lane."""
        if not self.cuda:
            return _Reached()
        event = torch.cuda.Event()
        event.record()
        return event

    def after(self, mark: Mark | None) -> None:
        """The current lane goes on when the mark is reached; for marks of the device this thread does not wait."""
        if self.cuda and isinstance(mark, torch.cuda.Event):
            torch.cuda.current_stream(self.device).wait_event(mark)
        elif mark is not None:
            mark.synchronize()

    def aside(self, worker: Executor) -> None:
        """Let a worker thread's kernels leave processors to this thread's, where both compute on the CPU.

        torch takes a number of threads for the calling thread, and as what new threads begin with: so it is set there,
        and then here to what it was. Updates give the same bits with any number.
        """
        if not self.cuda:
            before = torch.get_num_threads()
            worker.submit(torch.set_num_threads, max(1, before // 2)).result()
            torch.set_num_threads(before)

    def settle(self) -> None:
        """Wait until everything asked for is done."""
        if self.cuda:
            torch.cuda.synchronize(self.device)

    def enter_thread(self) -> None:
        """To be called once in each thread that works on the device."""
        if self.cuda:
            torch.cuda.set_device(self.device)


class Rng:
    """The state of the generators that a model draws from."""

    __slots__ = ("cpu", "device", "where")

    def __init__(self, where: torch.device) -> None:
        self.where = where
        self.cpu = torch.get_rng_state()
        self.device = torch.cuda.get_rng_state(where) if where.type == "cuda" else None

    def put(self) -> None:
        """Make it the present state."""
        torch.set_rng_state(self.cpu)
        if self.device is not None:
            torch.cuda.set_rng_state(self.device, self.where)

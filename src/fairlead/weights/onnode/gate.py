"""How much a node asks of the origin at a time. Python 3.9."""

from __future__ import annotations

import threading
import time

GOOD_RUN = 16
"""Answers in a row after which one more may be asked for at a time."""


class Gate:
    """How many may ask at a time, and how fast: less while the origin is busy, more again with every good answer."""

    def __init__(self, most: int, rate: float) -> None:
        self.most, self.now, self.rate = most, float(most), rate
        self.lock = threading.Condition()
        self.inside = self.good = self.num_busy = 0
        self.until = 0.0
        """Nobody asks before: what the origin said."""
        self.next_s = 0.0

    def __enter__(self) -> Gate:  # noqa: PYI034 - Self is not in 3.9
        with self.lock:
            while self.inside >= max(1, int(self.now)):
                self.lock.wait()
            self.inside += 1
        return self

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.inside -= 1
            self.lock.notify_all()

    def went_well(self) -> None:
        """An answer came."""
        with self.lock:
            self.good += 1
            if self.good >= GOOD_RUN and self.now < self.most:
                self.good, self.now = 0, self.now + 1
                self.lock.notify_all()

    def allow(self, most: int) -> None:
        """So many from now on, at most; what a busy origin has taken off stays off."""
        with self.lock:
            self.now = max(1.0, min(float(most), self.now + max(0, most - self.most)))
            self.most = most
            self.lock.notify_all()

    def is_busy(self, after_s: float) -> None:
        """The origin asked to be asked less."""
        with self.lock:
            self.good, self.num_busy = 0, self.num_busy + 1
            self.now = max(1.0, self.now / 2)
            self.until = max(self.until, time.monotonic() + after_s)

    def pace(self, num_bytes: int) -> None:
        """Wait so that no more than `rate` bytes a second come; 0: as many as there are."""
        if not self.rate:
            return
        with self.lock:
            now = time.monotonic()
            self.next_s = max(self.next_s, now - 0.1) + num_bytes / self.rate
            wait_s = self.next_s - now
        if wait_s > 0:
            time.sleep(wait_s)

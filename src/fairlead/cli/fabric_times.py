"""How long messages took, kept in little memory however many there are. Standard library, Python 3.9; runs on nodes.

Count, lowest, highest, mean and deviation are exact; a percentile is read from buckets 2.2 % wide (32 an octave).
"""

from __future__ import annotations

import math

STEPS = 32
"""Buckets of an octave."""
SHOWN = 2
"""Of those that a histogram shows."""


class Times:
    """Some durations, us."""

    def __init__(self) -> None:
        self.count = 0
        self.lowest = math.inf
        self.highest = self.mean = self._squares = 0.0
        self._buckets: dict[int, int] = {}

    def add(self, us: float) -> None:
        """One more (Welford's recurrence for mean and deviation)."""
        self.count += 1
        self.lowest, self.highest = min(self.lowest, us), max(self.highest, us)
        step = us - self.mean
        self.mean += step / self.count
        self._squares += step * (us - self.mean)
        bucket = math.ceil(STEPS * math.log2(max(us, 1e-3)))
        self._buckets[bucket] = self._buckets.get(bucket, 0) + 1

    @property
    def deviation(self) -> float:
        """Standard deviation of all of them; 0 of none."""
        return math.sqrt(self._squares / self.count) if self.count else 0.0

    def percentile(self, share: float) -> float:
        """The value that so large a share does not exceed, at most 2.2 % too high; 0 of none."""
        wanted, seen = math.ceil(share * self.count), 0
        for bucket, num in sorted(self._buckets.items()):
            seen += num
            if seen >= wanted:
                return float(min(max(2 ** (bucket / STEPS), self.lowest), self.highest))
        return 0.0

    def histogram(self) -> list[tuple[float, int]]:
        """(upper end, us; how many above the end before) of two buckets an octave."""
        out: dict[int, int] = {}
        for bucket, num in self._buckets.items():
            wide = math.ceil(bucket * SHOWN / STEPS)
            out[wide] = out.get(wide, 0) + num
        return [(2 ** (wide / SHOWN), num) for wide, num in sorted(out.items())]

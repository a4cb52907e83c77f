"""Faults that overlap: what a place suffers follows from the set of faults that hold there, never from their order.

    down    while any of them says so                   ports
    loss    losses are independent of each other        ports
    slow    the slowest counts                          ports
    paths   each loses packets on paths of its own      NICs
    dead    routing avoids it while any is known        links, for switches that hash

The end of a fault takes away that fault alone.

Knows: sets and how they combine. Must not know: the fabric, or when anything happens.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Values = NDArray[np.int64] | NDArray[np.float64]


class What(enum.StrEnum):
    """What a fault does to a place."""

    DOWN = "down"
    LOSS = "loss"
    SLOW = "slow"
    PATHS = "paths"
    DEAD = "dead"


# a place that nothing holds, and how two holds of one place combine
_COMBINE: dict[What, tuple[int | float, np.ufunc]] = {
    What.DOWN: (0, np.maximum),
    What.LOSS: (1.0, np.multiply),
    What.SLOW: (1.0, np.minimum),
    What.PATHS: (0, np.bitwise_or),
    What.DEAD: (0, np.maximum),
}


@dataclass(frozen=True, eq=False)
class Hold:
    """One fault while it holds."""

    what: What
    places: Ints
    """Ports, NICs or links, each once."""
    value: int | float = 1
    """DOWN, DEAD: 1. LOSS: the share of packets that gets through. SLOW: the share of the rate. PATHS: a bit."""


@dataclass
class Holds:
    """The faults that hold at a time, each under a number of its own."""

    now: dict[int, Hold] = field(default_factory=dict)

    def change(self, ends: list[int], begins: dict[int, Hold]) -> dict[What, Ints]:
        """These end and these begin, all at once; the places for which something may be different."""
        changed = [self.now.pop(number) for number in ends] + list(begins.values())
        self.now |= begins
        return {
            what: np.unique(np.concatenate([hold.places for hold in changed if hold.what is what]))
            for what in What
            if any(hold.what is what for hold in changed)
        }

    def of(self, what: What, places: Ints) -> Values:
        """What these places suffer, in the terms of `Hold.value`."""
        nothing, combine = _COMBINE[what]
        found: Values = np.full(len(places), nothing)
        for _, hold in sorted(self.now.items()):  # the same last bits, whatever came first
            if hold.what is what:
                hit = np.isin(places, hold.places)
                found[hit] = combine(found[hit], hold.value)
        return found

"""Loss so small that not every pair meets it: what a port that loses one packet in 500 looks like. Pure arithmetic.

A port that loses the same share of whatever crosses it spreads its losses over its pairs like balls thrown into boxes:
with few balls, boxes stay empty. So a port is not held against all of its pairs but against as many as that many lost
packets would have met, but for a small chance. Two lossy pairs of 100 with 25 lost packets each are no port.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import TypeAlias

CHANCE = 1e-3
"""With at most this probability a port that does lose evenly is not seen as one, in each of three looks."""

Pair: TypeAlias = tuple[int, int, int]


def least(num: int, of: int, balls: int) -> int:
    """The fewest of `num` boxes that `balls` thrown at `of` boxes, these among them, meet; but for CHANCE.

    All balls lie in j of them and the others with at most the probability C(num, j) ((of - num + j) / of)^balls.

    >>> least(3, 3, 6), least(6, 6, 12), least(254, 254, 106), least(100, 100, 50), least(1, 3, 6), least(1, 3, 20)
    (1, 3, 64, 28, 0, 1)
    """
    for j in range(num):
        ways = math.lgamma(num + 1) - math.lgamma(j + 1) - math.lgamma(num - j + 1)
        reached = of - num + j
        if not balls or (reached and ways + balls * math.log(reached / of) >= math.log(CHANCE)):
            return j
    return num


@dataclass(frozen=True)
class Spread:
    """What is known of the loss of pairs."""

    lost: Mapping[Pair, int] = field(default_factory=dict)
    """Packets that pairs lost in the first pass, none included; those alone that all sent the same."""
    again: Collection[Pair] = frozenset()
    """Pairs that were tested again, with so many packets that they do show it."""

    def is_even(
        self, pairs: Collection[Pair], bad: AbstractSet[Pair], nearly_all: float, of: Collection[Pair] = ()
    ) -> bool:
        """Whether some pairs look like parts of one loss: (nearly) all that were tested again, and enough in all.

        `of`: all pairs of the part, where `pairs` are some of them.
        """
        again = [p for p in pairs if p in self.again]
        alike, whole = [p for p in pairs if p in self.lost], [p for p in of or pairs if p in self.lost]
        num_lost = sum(self.lost[p] for p in whole)
        enough = min(nearly_all * len(alike), least(len(alike), len(whole), num_lost))
        return sum(p in bad for p in again) >= nearly_all * len(again) and sum(p in bad for p in alike) >= enough

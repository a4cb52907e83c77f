"""Whether packets were lost more often than the fabric may lose them, or by chance. Pure arithmetic.

A fabric that stays below the limit still loses packets, and of many parts that are looked at some lose more than
others.
So a part is held against the limit with all packets that needed it, and accused only if so many losses would be
unlikely at the limit: the upper tail of a binomial distribution, below a chance that is shared by all parts that are
compared (Bonferroni), so that a whole run accuses a sound fabric no more often than that.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from fairlead.preflight.pairs.facts import PairFacts
from fairlead.preflight.pairs.limits import Limits
from fairlead.preflight.pairs.parts import Culprit, Kind, Tested, Triple, contains

FOUND = 0.99
"""A loss is said to be found if it is with this probability."""


def at_least(lost: int, sent: int, share: float) -> float:
    """Probability that of `sent` packets `lost` or more are lost where each is with probability `share`.

    1.0 where that is no more than the mean: it is no small one then.

    >>> round(at_least(1, 100, 0.0001), 6), at_least(3, 10_000, 0.0004), at_least(1, 100, 0.0)
    (0.009951, 1.0, 0.0)
    """
    if lost <= sent * share:
        return 1.0
    if share <= 0:
        return 0.0
    log = math.lgamma(sent + 1) - math.lgamma(lost + 1) - math.lgamma(sent - lost + 1)
    term = math.exp(log + lost * math.log(share) + (sent - lost) * math.log1p(-share))
    total, k = term, lost
    while k < sent and term > 1e-12 * total:
        term *= (sent - k) / (k + 1) * share / (1 - share)
        total, k = total + term, k + 1
    return total


def fewest(sent: int, share: float, chance: float) -> int:
    """The fewest losses of `sent` packets that chance alone does not explain.

    >>> fewest(3600, 0.0004, 1e-6), fewest(3600, 0.0, 1e-6)
    (11, 1)
    """
    lost = math.floor(sent * share) + 1
    while lost < sent and at_least(lost, sent, share) > chance:
        lost += 1
    return lost


def least_found(windows: Sequence[int], limits: Limits, num_compared: int) -> float:
    """The smallest share that is found, with probability FOUND, in so many packets: each window has to lose one, and
    all together more than chance explains.
    """
    sent = sum(windows)
    most = fewest(sent, limits.loss, limits.loss_chance / num_compared)
    low, high = 0.0, 1.0
    for _ in range(40):
        share = (low + high) / 2
        is_seen = math.prod(1 - (1 - share) ** window for window in windows) >= FOUND
        low, high = (low, share) if is_seen and at_least_many(most, sent, share) >= FOUND else (share, high)
    return high


def at_least_many(lost: int, sent: int, share: float) -> float:
    """As `at_least`, where that is likely: 1 less the probability that more than `sent - lost` packets arrive.

    >>> round(at_least_many(11, 3600, 0.006), 3)
    0.996
    """
    return 1.0 - at_least(sent - lost + 1, sent, 1 - share) if 0 < share < 1 else share


class Losses:
    """Packets of every pair that was tested again: those of a first pass are there only where some were missing."""

    def __init__(self, facts: PairFacts, limits: Limits) -> None:
        self.share = limits.loss
        self.sent: Counter[Triple] = Counter()
        self.lost: Counter[Triple] = Counter()
        self.around: defaultdict[int, set[Triple]] = defaultdict(set)
        for burst in facts.again:
            triple = Triple(burst.src, burst.dst, burst.path)
            self.sent[triple] += facts.num_sent(burst, again=True) + facts.full
            self.lost[triple] += facts.num_lost(burst, again=True)
            self.around[burst.src].add(triple)
            self.around[burst.dst].add(triple)
        self.tested = Tested((), (), groups=facts.groups, ways=facts.ways)
        self.chance = limits.loss_chance / compared(len(self.sent), len(facts.nodes), len(facts.paths))

    def is_beyond(self, culprit: Culprit) -> bool:
        """Whether a part loses more than the limit allows and chance explains: all that was sent over it together, or
        one of its pairs, as only some may meet it.
        """
        return self._is(self._of(culprit)) or any(self._is((triple,)) for triple in culprit.pairs)

    def _of(self, culprit: Culprit) -> Iterable[Triple]:
        part = culprit.part
        if part.kind in (Kind.PAIR, Kind.LINK):
            return culprit.pairs
        near = self.around[part.key[0]] if part.kind in (Kind.PORT, Kind.NODE) else self.sent
        links = part.kind in (Kind.TRUNK, Kind.SPINE)  # others meet them by chance
        return (t for t in near if contains(part, t, self.tested) and (t.path in self.tested.ways or not links))

    def _is(self, triples: Iterable[Triple]) -> bool:
        own = set(triples)
        sent, lost = sum(self.sent[t] for t in own), sum(self.lost[t] for t in own)
        return lost > 0 and at_least(lost, sent, self.share) <= self.chance


def compared(num_tests: int, num_nodes: int, num_paths: int) -> int:
    """How many parts are compared: each directed pair on a path and each pair in both directions, and each port and
    node in, out and both ways.
    """
    return max(1, 2 * num_tests + 3 * num_nodes * (num_paths + 1))

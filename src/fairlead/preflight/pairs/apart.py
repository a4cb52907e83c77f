"""Nodes that stand apart from others: in another hall or zone, so that a round trip between takes longer. Pure.

Two nodes or more that are well among themselves and late with all others are far away, not ill: whatever ailed one of
them would ail it among its own as well. One node alone that is late with all others may be ill.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from itertools import chain

from fairlead.preflight.pairs.facts import PairFacts
from fairlead.preflight.pairs.parts import Triple

MIN_NEAR = 2


def groups_apart(late: Collection[Triple], facts: PairFacts) -> dict[int, list[list[int]]]:
    """Path -> groups of nodes, the largest first, of which each reaches the others of its own without being late; of
    paths where there are several such groups. `late`: directed pairs.
    """
    timed = {Triple(s.src, s.dst, s.path) for s in chain(facts.speeds, facts.speeds_again) if s.rtt_ns}
    out = {}
    for path in sorted({t.path for t in late if t.path not in facts.ways}):
        own = [t for t in timed if t.path == path]
        groups = _joined({n for t in own for n in t[:2]}, [(t.src, t.dst) for t in own if t not in late])
        apart = sorted((g for g in groups if len(g) >= MIN_NEAR), key=lambda g: (-len(g), g))
        if len(apart) > 1:
            out[path] = apart
    return out


def without_distance(late: set[Triple], facts: PairFacts) -> set[Triple]:
    """Late pairs without those between two groups that stand apart."""
    group = {(path, n): i for path, own in groups_apart(late, facts).items() for i, g in enumerate(own) for n in g}

    def is_far(triple: Triple) -> bool:
        a, b = (group.get((triple.path, n)) for n in triple[:2])
        return a is not None and b is not None and a != b

    return {t for t in late if not is_far(t)}


def _joined(nodes: Iterable[int], pairs: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Nodes that pairs join, directly or over others.

    >>> _joined(range(5), [(0, 2), (2, 4), (1, 3)])
    [[0, 2, 4], [1, 3]]
    """
    head = {n: n for n in nodes}

    def top(n: int) -> int:
        while head[n] != n:
            head[n] = n = head[head[n]]
        return n

    for a, b in pairs:
        head[top(a)] = top(b)
    out: defaultdict[int, list[int]] = defaultdict(list)
    for n in sorted(head):
        out[top(n)].append(n)
    return list(out.values())

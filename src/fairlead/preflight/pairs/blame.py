"""From pairs that failed to the part that is guilty: the fewest parts that explain every failed pair. Pure.

Knows: when evidence is enough. Must not know: how pairs were tested, what a symptom means, nodes' names. What parts
there are, and which pairs need each, is parts.py.

A link is guilty if nearly all steered tests over it failed, and the same two ports hear each other without it; pairs
that may have met it by chance are then explained by it, and prove nothing. Where nobody can steer, what fails by chance
is laid to what lies between two switches, or between one and the rest of the plane.

A part is guilty if (nearly) every tested pair that needs it failed, pairs that another guilty part already explains
left aside. Of the parts that qualify the one that explains most is taken, then the rest is looked at again. Large
parts need witnesses: a port or a node fails with at least two different partners, a switch with at least three ports
below it, a plane or the whole fabric with at least three nodes. What has no such witnesses stays a pair: that is all
that is known.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from fairlead.preflight.pairs.parts import (
    MAX_SHOWN,
    SIZE,
    Culprit,
    Kind,
    Part,
    Tested,
    Triple,
    Way,
    contains,
    link_of,
    parts_of,
    parts_of_steered,
)
from fairlead.preflight.pairs.spread import least as fewest
from fairlead.preflight.pairs.steered import T0_ALONE, without_link

NEARLY_ALL = 0.9
"""Share of its pairs that must have failed: among ten pairs or fewer every one, among a thousand a few may differ."""

FLOW_SHARE = 0.2
"""Share of pairs that must have failed where only some flows of each meet a fault: of 8 flows over 32 ways, a fifth."""

MIN_PARTNERS = 2
MIN_SWITCH_PORTS = 3
MIN_PLANE_NODES = 3
MIN_SPINE_LINKS = 2
MIN_SCATTERED = 3


def explain(bad: Collection[Triple], tested: Tested) -> list[Culprit]:
    """The guilty parts, in the order found: the one that explains most first. `bad` must be among the tested."""
    left = set(bad)
    found: list[Culprit] = []
    num = tested.num_of_paths()
    for part in _whole_paths(left, tested, num):
        mine = [t for t in left if not part.key or tested.plane(t.path) == part.key[0]]
        found.append(_culprit(part, mine, sum(num[p] for p in part.key or tested.paths)))
        left.difference_update(mine)
    silent = {c.part.key[0] for c in found if c.part.kind is Kind.PLANE}
    rest = _Unexplained(left, silent, tested)
    while rest.left and (best := rest.best()):
        part, members = best
        shown = [t for t in members if part.kind not in _LINKS or t.path in tested.ways]
        found.append(_culprit(part, [t for t in shown if t in rest.left], len(shown)))
        rest.settle(members)
    return found


def _whole_paths(bad: set[Triple], tested: Tested, num: Mapping[int, int]) -> list[Part]:
    """The whole fabric, or whole planes, settled by counting before anything smaller is looked at.

    A plane on which steered tests pass is not dead: its pairs failed for a few links that all of them met.
    """
    if len(tested.nodes) < MIN_PLANE_NODES:
        return []
    count = Counter(t.path for t in bad)
    steered = Counter(tested.plane(t.path) for t in tested.steered if t not in tested.but)
    failed = Counter(tested.plane(t.path) for t in bad if t.path in tested.ways)
    whole = [
        p for p in tested.paths if count[p] and count[p] >= NEARLY_ALL * num[p] and failed[p] >= NEARLY_ALL * steered[p]
    ]
    if len(whole) == len(tested.paths):
        return [Part(Kind.FABRIC)]
    return [Part(Kind.PLANE, (p,)) for p in whole]


class _Unexplained:
    """Failed pairs that no part explains yet, and every part that might, by how many it would explain.

    Settling a part changes only the parts it shares pairs with, so only those are weighed again.
    """

    def __init__(self, left: set[Triple], silent: set[int], tested: Tested) -> None:
        self.left, self.silent, self.tested = left, silent, tested
        self.cleared: set[Triple] = set()
        self.over_links = frozenset(
            t
            for t in left
            if tested.ways.get(t.path, (0, -1))[1] >= 0 and Triple(*without_link(t, tested.ways)) not in left
        )
        """Failed steered tests for which the ports at their ends are no reason."""
        self.suspects = frozenset(link_of(t, tested) for t in self.over_links)
        """The links between switches that they went over, as (group, t1, path)."""
        self.counts: Counter[Part] = Counter()
        self.lost: Counter[Part] = Counter()
        """Packets that pairs of a port lost in the first pass."""
        for triple in left:
            self._count(triple, self._parts_of(triple), 1)
        self.sizes: dict[Part, int] = {}
        """Tested pairs of a part that nothing found so far explains, where they were counted."""
        self.heap = [self._weight(part, num) for part, num in self.counts.items()]
        heapq.heapify(self.heap)

    def best(self) -> tuple[Part, list[Triple]] | None:
        """The part that explains most, the larger of equals, with its tested pairs that nothing explains yet.

        None where no part explains what is left.
        """
        while self.heap:
            _, minus_num, _, part = heapq.heappop(self.heap)
            num, share = -minus_num, FLOW_SHARE if part.kind in _BY_CHANCE else NEARLY_ALL
            if num != self.counts[part] or (part.kind not in _LINKS and num < self._enough(part, share)):
                continue
            needed = [t for t in self.tested.of(part) if self._is_open(t)]
            self.sizes[part] = len(needed)
            bad = [t for t in needed if t in self.left]
            is_whole = self._is_hit(part, needed, share) and self._all_near(part, needed)
            if bad and is_whole and _has_witnesses(part, bad, self.tested):
                if part.kind in _LINKS:  # what met it by chance is explained, too
                    met = {t for t in self.left if t.path not in self.tested.ways and contains(part, t, self.tested)}
                    needed += sorted(met)
                return part, needed
        return None

    def settle(self, members: Iterable[Triple]) -> None:
        """These pairs are explained, also those that did not fail."""
        changed: set[Part] = set()
        for triple in members:
            parts = self._parts_of(triple)
            changed.update(parts)
            self.cleared.add(triple)
            for part in parts:
                if part in self.sizes:
                    self.sizes[part] -= 1
            if triple in self.left:
                self.left.remove(triple)
                self._count(triple, parts, -1)
        for part in changed:
            if self.counts[part] > 0:
                heapq.heappush(self.heap, self._weight(part, self.counts[part]))

    def _all_near(self, part: Part, needed: Sequence[Triple]) -> bool:
        """Whether also pairs below one switch failed: where they pass, the fault lies above it and with none below."""
        groups, ways = self.tested.groups, self.tested.ways
        if not groups or part.kind not in (Kind.NODE, Kind.SWITCH, Kind.PORT):
            return True
        near = [t for t in needed if ways.get(t.path, (0, T0_ALONE))[1] == T0_ALONE and groups[t.src] == groups[t.dst]]
        return self._is_hit(part, near, NEARLY_ALL, needed)

    def _is_hit(self, part: Part, needed: Sequence[Triple], share: float, of: Sequence[Triple] = ()) -> bool:
        """Whether enough of a part's pairs failed; `of`: all of its pairs, where these are some."""
        spread = self.tested.spread
        if spread and self._is_port(part):
            return spread.is_even(needed, self.left, share, of)
        return sum(t in self.left for t in needed) >= share * len(needed)

    def _enough(self, part: Part, share: float) -> float:
        """So many of its pairs must have failed, at least: most parts fall at this, before each pair is looked at."""
        least, spread = self._at_least(part), self.tested.spread
        if spread and self._is_port(part):
            return min(share * least, fewest(least, least, self.lost[part]))
        return share * least

    def _is_port(self, part: Part) -> bool:
        """Whether a part is one port: a node with a single one is."""
        return part.kind is Kind.PORT or (part.kind is Kind.NODE and len(self.tested.paths) == 1)

    def _count(self, triple: Triple, parts: Sequence[Part], sign: int) -> None:
        """A failed pair, of each of its parts."""
        lost = self.tested.spread.lost.get(triple, 0) if self.tested.spread else 0
        for part in parts:
            self.counts[part] += sign
            if lost:
                self.lost[part] += sign * lost

    def _is_open(self, triple: Triple) -> bool:
        return self.tested.plane(triple.path) not in self.silent and triple not in self.cleared

    def _at_least(self, part: Part) -> int:
        """So many tested pairs the part has for sure."""
        if part in self.sizes:
            return self.sizes[part]
        if part.kind not in (Kind.NODE, Kind.PORT) or self.tested.only is not None or self.tested.stopped:
            return 0
        ways = 2 if part.way is Way.BOTH else 1
        paths = 1 if part.kind is Kind.PORT else len(self.tested.paths) - len(self.silent)
        return ways * paths * (len(self.tested.nodes) - 1) - len(self.tested.but) - len(self.cleared)

    def _weight(self, part: Part, num: int) -> tuple[int, int, int, Part]:
        """What is taken first: what explains most, the larger of equals.

        Where parts between switches are known by chance alone, they come after everything that a fault hits whole, and
        before single pairs.
        """
        tier = 0
        if self.tested.by_chance:
            tier = 1 if part.kind in _BY_CHANCE else 2 if part.kind in (Kind.PAIR, Kind.LINK) else 0
        return tier, -num, SIZE[part.kind], part

    def _parts_of(self, triple: Triple) -> list[Part]:
        if triple.path in self.tested.ways:
            return parts_of_steered(triple, self.tested, is_over_link=triple in self.over_links)
        parts = parts_of(triple, self.tested)
        if self.suspects or self.tested.by_chance:
            a, b = self.tested.groups[triple.src], self.tested.groups[triple.dst]
            if a != b and self.tested.by_chance:
                parts += [Part(Kind.BETWEEN, (min(a, b), max(a, b), triple.path))]
                parts += [Part(Kind.UPLINKS, (g, triple.path)) for g in (a, b)]
            elif a != b:
                met = [s for s in self.suspects if s[2] == triple.path]
                parts += [Part(Kind.TRUNK, s) for s in met if s[0] in (a, b)]
                parts += {Part(Kind.SPINE, s[1:]) for s in met}
        return parts


_BY_CHANCE = (Kind.UPLINKS, Kind.BETWEEN)
_LINKS = (Kind.SPINE, Kind.TRUNK)


def _has_witnesses(part: Part, bad: list[Triple], tested: Tested) -> bool:
    match part.kind:
        case Kind.NODE | Kind.PORT:
            both_ways = part.way is not Way.BOTH or len({t.src == part.key[0] for t in bad}) == 2
            across = part.kind is Kind.PORT or len(tested.paths) == 1 or len({t.path for t in bad}) > 1
            return both_ways and across and len(_partners(part, bad)) >= MIN_PARTNERS
        case Kind.SWITCH:
            return len({n for t in bad for n in t[:2] if tested.groups[n] == part.key[0]}) >= MIN_SWITCH_PORTS
        case Kind.SPINE:
            return len({link_of(t, tested) for t in bad}) >= MIN_SPINE_LINKS
        case Kind.TRUNK:
            return True
        case Kind.UPLINKS:
            others = {tested.groups[n] for t in bad for n in t[:2]} - {part.key[0]}
            return len(others) >= MIN_PARTNERS and _is_scattered(bad)
        case Kind.BETWEEN:
            return _is_scattered(bad)
        case Kind.LINK if bad and bad[0].path in tested.ways:
            return True
        case Kind.PAIR | Kind.LINK:
            several = part.kind is Kind.LINK or len({t.path for t in bad}) > 1
            return several and (part.way is Way.OUT or len({t.src for t in bad}) == 2)
        case _:
            return True


def _is_scattered(bad: Iterable[Triple]) -> bool:
    """Whether no single node is in all of these pairs, and there are enough of them."""
    pairs = [set(t[:2]) for t in bad]
    return len(pairs) >= MIN_SCATTERED and not set.intersection(*pairs)


def _partners(part: Part, bad: Iterable[Triple]) -> list[int]:
    return sorted({n for t in bad for n in (t.src, t.dst)} - {part.key[0]})


def _culprit(part: Part, bad: list[Triple], num_tested: int) -> Culprit:
    return Culprit(
        part=part,
        num_bad=len(bad),
        num_tested=num_tested,
        pairs=tuple(_spread(bad)),
        partners=tuple(_partners(part, bad)) if part.kind in (Kind.NODE, Kind.PORT) else (),
    )


def _spread(bad: list[Triple]) -> list[Triple]:
    """Some of many pairs: in turn one of each sender, so that the sample names many nodes."""
    by_src: defaultdict[int, list[Triple]] = defaultdict(list)
    for triple in sorted(bad[: MAX_SHOWN * MAX_SHOWN]):
        by_src[triple.src].append(triple)
    out: list[Triple] = []
    depth = 0
    while len(out) < min(len(bad), MAX_SHOWN) and depth < MAX_SHOWN:
        out += [rows[depth] for rows in by_src.values() if depth < len(rows)]
        depth += 1
    return out[:MAX_SHOWN]

"""The parts of a fabric that can be guilty, and which tested pairs need each of them. Pure.

Nodes and paths are numbers; paths share nothing but the nodes. Must not know: which parts are guilty, what a symptom
means, nodes' names.

Which way a pair's packets take between switches is a matter of chance, unless they are steered: a steered path is one
more path of a plane, over one known link (a T0 and a T1) and two known ports.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from fairlead.preflight.pairs.spread import Spread


class Triple(NamedTuple):
    """One directed pair on one path."""

    src: int
    dst: int
    path: int


class Kind(enum.StrEnum):
    """How large a part is, the largest first."""

    FABRIC = "fabric"
    PLANE = "plane"
    NODE = "node"
    SWITCH = "switch"
    SPINE = "spine"
    UPLINKS = "uplinks"
    BETWEEN = "between"
    TRUNK = "trunk"
    PORT = "port"
    PAIR = "pair"
    LINK = "link"


SIZE = {kind: i for i, kind in enumerate(Kind)}


class Way(enum.StrEnum):
    """Which way, seen from the part (from its first node for a pair)."""

    BOTH = "both"
    OUT = "out"
    IN = "in"


class Part(NamedTuple):
    """Something that can be guilty.

    FABRIC (), PLANE (path), NODE (node), SWITCH (group, path), PORT (node, path), PAIR (a, b) on all paths,
    LINK (a, b, path): a pair on one path. With Way.BOTH a < b; with Way.OUT a sends and b hears.
    SPINE (t1, path) a T1, TRUNK (group, t1, path) its link to a T0: by steered tests.
    UPLINKS (group, path) what joins a switch to the others, BETWEEN (group, group, path) two switches: by chance.
    """

    kind: Kind
    key: tuple[int, ...] = ()
    way: Way = Way.BOTH


@dataclass(frozen=True, slots=True)
class Culprit:
    """A guilty part and its witnesses."""

    part: Part
    num_bad: int
    num_tested: int
    pairs: tuple[Triple, ...]
    """Failed pairs that this part explains, at most MAX_SHOWN of them, with partners as different as possible."""
    partners: tuple[int, ...]
    """Nodes on the other side of those pairs, for a port or a node."""


MAX_SHOWN = 64


@dataclass(frozen=True)
class Tested:
    """Which directed pairs were tested on which paths: every pair of `nodes`, or only those in `only`."""

    nodes: Sequence[int]
    paths: Sequence[int]
    only: frozenset[Triple] | None = None
    but: Collection[Triple] = frozenset()
    """Pairs that say nothing here: a blocked pair cannot show whether it would also lose full-size packets."""
    groups: Mapping[int, int] = field(default_factory=dict)
    """Node -> the switch it hangs below in every plane, where that is known."""
    stopped: Mapping[int, int] = field(default_factory=dict)
    """Path -> the last round it took part in; round r took each node to the r-th behind it in `order`."""
    order: Sequence[int] = ()
    steered: Collection[Triple] = ()
    """Steered tests; their path is a key of `ways`."""
    ways: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """Steered path -> the path of its plane, and the T1 it takes; a negative one for none."""
    spread: Spread | None = None
    """For a symptom that a port's pairs may show or not, by chance: how much each lost."""
    by_chance: bool = False
    """Whether flows meet some links and not others, so that parts between switches are looked for without steering."""

    def plane(self, path: int) -> int:
        """The path whose ports a path uses: itself, unless it is steered."""
        return self.ways[path][0] if path in self.ways else path

    def of(self, part: Part) -> Iterator[Triple]:
        """The tested pairs that need a part."""
        place = {node: i for i, node in enumerate(self.order)} if self.stopped else {}
        for triple in self._all_of(part):
            if (self.only is None or triple in self.only) and triple not in self.but:
                last = self.stopped.get(triple.path)
                if last is None or (place[triple.dst] - place[triple.src]) % len(place) <= last:
                    yield triple
        for triple in self.steered:
            if triple not in self.but and needs(part, triple, self):
                yield triple

    def num_of_paths(self) -> Counter[int]:
        """How many pairs were tested on each path."""
        if self.only is not None:
            return Counter(t.path for t in self.only if t not in self.but)
        every = Counter({p: self._num_in(self.stopped.get(p)) for p in self.paths})
        every.subtract(t.path for t in self.but)
        return every

    def _num_in(self, last: int | None) -> int:
        """Directed pairs among the nodes, up to a round."""
        if last is None:
            return len(self.nodes) * (len(self.nodes) - 1)
        here, num = set(self.nodes), len(self.order)
        return sum(
            self.order[(i + shift) % num] in here
            for i, node in enumerate(self.order)
            if node in here
            for shift in range(1, last + 1)
        )

    def _all_of(self, part: Part) -> Iterator[Triple]:
        kind, key, way = part
        match kind:
            case Kind.NODE:
                yield from self._around(key[0], self.paths, way)
            case Kind.PORT:
                yield from self._around(key[0], key[1:], way)
            case Kind.SWITCH:
                below = [n for n in self.nodes if self.groups[n] == key[0]]
                seen = set(below)
                for node in below:
                    for triple in self._around(node, key[1:], way):
                        # a pair with both ends below the switch is met from both; count it once
                        if triple.src == node or triple.src not in seen:
                            yield triple
            case Kind.SPINE | Kind.TRUNK:
                return  # steered tests alone tell
            case Kind.UPLINKS | Kind.BETWEEN:
                for a in self.nodes:
                    for triple in self._around(a, key[-1:], Way.OUT):
                        ends = {self.groups[a], self.groups[triple.dst]}
                        if len(ends) == 2 and ends >= set(key[:-1]):
                            yield triple
            case Kind.PAIR | Kind.LINK:
                for path in key[2:] or self.paths:
                    yield Triple(key[0], key[1], path)
                    if way is Way.BOTH:
                        yield Triple(key[1], key[0], path)
            case _:
                paths = key or self.paths
                for path in paths:
                    for a in self.nodes:
                        yield from self._around(a, (path,), Way.OUT)

    def _around(self, node: int, paths: Iterable[int], way: Way) -> Iterator[Triple]:
        for path in paths:
            for other in self.nodes:
                if other != node:
                    if way is not Way.IN:
                        yield Triple(node, other, path)
                    if way is not Way.OUT:
                        yield Triple(other, node, path)


def needs(part: Part, triple: Triple, tested: Tested) -> bool:
    """Whether a steered test needs a part."""
    kind, key = part.kind, part.key
    plane, t1 = tested.ways[triple.path]
    group = tested.groups[triple.src]
    match kind:
        case Kind.FABRIC:
            return True
        case Kind.TRUNK:
            return key == (group, t1, plane)
        case Kind.SPINE:
            return key == (t1, plane)
        case Kind.SWITCH:
            return key == (group, plane)
        case Kind.NODE | Kind.PORT:
            if key[1:] not in ((), (plane,)):
                return False
            return (part.way is not Way.IN and triple.src == key[0]) or (
                part.way is not Way.OUT and triple.dst == key[0]
            )
        case Kind.PLANE:
            return key == (plane,)
        case Kind.LINK:
            return key[:2] == (min(triple[:2]), max(triple[:2])) and key[2] == triple.path and part.way is Way.BOTH
        case _:
            return False


def touches(part: Part, triple: Triple, groups: Mapping[int, int]) -> bool:
    """Whether traffic between two nodes on any path may meet a part: what happens there needs no cause of its own."""
    kind, key = part.kind, part.key
    ends = {triple.src, triple.dst}
    match kind:
        case Kind.NODE | Kind.PORT:
            return key[0] in ends
        case Kind.PAIR | Kind.LINK:
            return ends == set(key[:2])
        case Kind.SWITCH:
            return any(groups[n] == key[0] for n in ends)
        case Kind.TRUNK | Kind.SPINE | Kind.UPLINKS | Kind.BETWEEN:
            mine = {groups[n] for n in ends}
            own = set() if kind is Kind.SPINE else {key[0]} if kind is Kind.TRUNK else set(key[:-1])
            return len(mine) == 2 and mine >= own
        case _:
            return True


def contains(part: Part, triple: Triple, tested: Tested) -> bool:
    """Whether a directed pair on a path needs a part, or may meet it by chance."""
    if triple.path in tested.ways:
        return needs(part, triple, tested)
    has_path = part.kind not in (Kind.FABRIC, Kind.NODE, Kind.PAIR)
    if (has_path and part.key[-1] != triple.path) or not touches(part, triple, tested.groups):
        return False
    return part.way is Way.BOTH or part.key[0] == (triple.src if part.way is Way.OUT else triple.dst)


def link_of(triple: Triple, tested: Tested) -> tuple[int, int, int]:
    """The link that a steered test takes: (group, t1, path of its plane)."""
    plane, t1 = tested.ways[triple.path]
    return tested.groups[triple.src], t1, plane


def parts_of_steered(triple: Triple, tested: Tested, *, is_over_link: bool) -> list[Part]:
    """Every part that a steered test needs; its link, where the ports at its ends are no reason for what it shows."""
    src, dst, path = triple
    group, t1, plane = link_of(triple, tested)
    parts = [Part(Kind.LINK, (min(src, dst), max(src, dst), path)), Part(Kind.SWITCH, (group, plane))]
    for kind, rest in ((Kind.NODE, ()), (Kind.PORT, (plane,))):
        parts += {Part(kind, (n, *rest)) for n in (src, dst)}
        parts += [Part(kind, (src, *rest), Way.OUT), Part(kind, (dst, *rest), Way.IN)]
    if is_over_link:
        parts += [Part(Kind.TRUNK, (group, t1, plane)), Part(Kind.SPINE, (t1, plane))]
    return parts


def parts_of(triple: Triple, tested: Tested) -> list[Part]:
    """Every part between its ends that a pair needs, whichever way it takes between switches."""
    src, dst, path = triple
    low, high = min(src, dst), max(src, dst)
    parts = [
        Part(Kind.LINK, (low, high, path)),
        Part(Kind.LINK, (src, dst, path), Way.OUT),
        Part(Kind.NODE, (src,)),
        Part(Kind.NODE, (dst,)),
        Part(Kind.NODE, (src,), Way.OUT),
        Part(Kind.NODE, (dst,), Way.IN),
    ]
    if len(tested.paths) > 1:
        parts += [
            Part(Kind.PAIR, (low, high)),
            Part(Kind.PAIR, (src, dst), Way.OUT),
            Part(Kind.PORT, (src, path)),
            Part(Kind.PORT, (dst, path)),
            Part(Kind.PORT, (src, path), Way.OUT),
            Part(Kind.PORT, (dst, path), Way.IN),
        ]
    if tested.groups:
        parts += [Part(Kind.SWITCH, (g, path)) for g in {tested.groups[src], tested.groups[dst]}]
    return parts

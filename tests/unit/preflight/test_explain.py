"""From failed pairs to parts: the fewest that explain them, and nothing larger than its witnesses allow."""

from __future__ import annotations

from itertools import permutations

import pytest

from fairlead.preflight.pairs import blame
from fairlead.preflight.pairs.blame import explain
from fairlead.preflight.pairs.parts import Kind, Part, Triple, Way, contains, touches

NODES, PATHS = range(5), (1, 2, 3)
ALL = {Triple(a, b, p) for a, b in permutations(NODES, 2) for p in PATHS}


def parts(bad, **tested):
    return [c.part for c in explain(bad, blame.Tested(**({"nodes": NODES, "paths": PATHS} | tested)))]


CASES = {
    "fabric": (lambda _: True, Part(Kind.FABRIC)),
    "plane": (lambda t: t.path == 2, Part(Kind.PLANE, (2,))),
    "node": (lambda t: 3 in t[:2], Part(Kind.NODE, (3,))),
    "node outward": (lambda t: t.src == 3, Part(Kind.NODE, (3,), Way.OUT)),
    "node inward": (lambda t: t.dst == 3, Part(Kind.NODE, (3,), Way.IN)),
    "port": (lambda t: 3 in t[:2] and t.path == 1, Part(Kind.PORT, (3, 1))),
    "port outward": (lambda t: t.src == 3 and t.path == 1, Part(Kind.PORT, (3, 1), Way.OUT)),
    "pair": (lambda t: {t.src, t.dst} == {1, 4}, Part(Kind.PAIR, (1, 4))),
    "pair one way": (lambda t: (t.src, t.dst) == (4, 1), Part(Kind.PAIR, (4, 1), Way.OUT)),
    "link": (lambda t: {t.src, t.dst} == {1, 4} and t.path == 2, Part(Kind.LINK, (1, 4, 2))),
    "link one way": (lambda t: t == (4, 1, 2), Part(Kind.LINK, (4, 1, 2), Way.OUT)),
}


@pytest.mark.parametrize("name", CASES)
def test_each_kind_of_part_is_named_by_its_own_pairs(name):
    is_bad, want = CASES[name]
    assert parts({t for t in ALL if is_bad(t)}) == [want]


def test_nothing_failed_and_nobody_is_guilty():
    assert parts(set()) == []


def test_two_parts_are_two_parts_the_larger_first():
    bad = {t for t in ALL if (2 in t[:2] and t.path == 3) or t == (0, 1, 1)}
    assert parts(bad) == [Part(Kind.PORT, (2, 3)), Part(Kind.LINK, (0, 1, 1), Way.OUT)]


def test_a_node_is_not_accused_by_one_partner():
    """With two nodes nobody can tell which of them is guilty."""
    bad = {Triple(0, 1, 1), Triple(1, 0, 1)}
    assert parts(bad, nodes=(0, 1), paths=(1,)) == [Part(Kind.LINK, (0, 1, 1))]


@pytest.mark.parametrize(("below", "kind"), [((0, 1, 2), Kind.SWITCH), ((0, 1), Kind.PORT)])
def test_a_switch_needs_three_of_its_ports(below, kind):
    nodes = range(8)
    groups = {n: 0 if n in below else 1 for n in nodes}
    bad = {Triple(a, b, 2) for a, b in permutations(nodes, 2) if a in below or b in below}
    found = parts(bad, nodes=nodes, groups=groups)
    assert {p.kind for p in found} == {kind}
    assert found[0].key == (0, 2)


def test_pairs_that_were_not_tested_accuse_and_clear_nobody():
    only = frozenset({Triple(0, 1, 1), Triple(0, 2, 1), Triple(3, 4, 1)})
    bad = {Triple(0, 1, 1), Triple(0, 2, 1)}
    assert parts(bad, only=only) == [Part(Kind.NODE, (0,), Way.OUT)] or parts(bad, only=only) == [
        Part(Kind.PORT, (0, 1), Way.OUT)
    ]


def test_one_good_pair_among_few_clears_a_port():
    bad = {t for t in ALL if t.src == 3 and t.path == 1 and t.dst != 0}
    assert {p.kind for p in parts(bad)} == {Kind.LINK}


def test_witnesses_are_counted_and_shown():
    (found,) = explain({t for t in ALL if t.src == 3 and t.path == 1}, blame.Tested(NODES, PATHS))
    assert (found.num_bad, found.num_tested, found.partners) == (4, 4, (0, 1, 2, 4))
    assert set(found.pairs) == {t for t in ALL if t.src == 3 and t.path == 1}


@pytest.mark.parametrize(("name", "num"), [("fabric", 60), ("plane", 20), ("port", 8), ("pair", 6), ("link", 2)])
def test_a_part_contains_its_pairs_and_touches_them_on_any_path(name, num):
    part = CASES[name][1]
    tested = blame.Tested(NODES, PATHS)
    assert sum(contains(part, t, tested) for t in ALL) == num
    assert all(touches(part, t, {}) for t in ALL if contains(part, t, tested))


def test_rounds_that_were_not_run_count_for_nothing():
    """A path that was given up after round 1 is judged by round 1."""
    order = tuple(NODES)
    bad = {Triple(a, (a + 1) % 5, 2) for a in NODES}
    assert parts(bad, stopped={2: 1}, order=order) == [Part(Kind.PLANE, (2,))]
    assert {p.kind for p in parts(bad, order=order)} == {Kind.LINK}

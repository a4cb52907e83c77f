"""Which links between switches are tested, by whom, and over which way."""

from __future__ import annotations

from ipaddress import IPv6Address
from itertools import chain

import pytest

from fairlead.preflight.pairs.judge import judge_pairs
from fairlead.preflight.pairs.limits import DEFAULT
from fairlead.preflight.pairs.phase import pair_phase
from fairlead.preflight.pairs.steered import T0_ALONE, Steering, rounds
from fairlead.preflight.pairs.steps import Plan
from fairlead.spec import usid
from support.fabric_draws import Effect, Fabric


def steering(t0: int, per_t0: int, t1: int, planes: int = 2) -> Steering:
    seats = {i: divmod(i, per_t0) for i in range(t0 * per_t0)}
    return Steering(t1, seats, {p: p - 1 for p in range(1, planes + 1)}, planes + 1)


@pytest.mark.parametrize(("t0", "per_t0", "t1"), [(2, 2, 2), (2, 4, 2), (3, 1, 2), (2, 2, 5), (4, 3, 1), (2, 256, 256)])
def test_each_link_is_tested_once_and_no_port_carries_two_tests(t0, per_t0, t1):
    way = steering(t0, per_t0, t1)
    ways = way.ways()
    done = rounds(way, range(t0 * per_t0), [1, 2])
    tests = list(chain.from_iterable(done))
    links = [(way.seats[t.src][0], *ways[p]) for t in tests for p in t.paths if ways[p][1] != T0_ALONE]
    assert sorted(links) == [(low, p, up) for low in range(t0) for p in (1, 2) for up in range(t1)]
    assert all(way.seats[t.src][0] == way.seats[t.dst][0] for t in tests)
    assert len(done) == (-(-t1 // per_t0) if per_t0 > 1 else t1 + 1)
    for one in done:
        for ends in ([t.src for t in one], [t.dst for t in one]):
            assert len(ends) == len(set(ends))
    alone = [t for t in tests if any(ways[p][1] == T0_ALONE for p in t.paths)]
    assert len(alone) == (t0 if per_t0 == 1 else 0)


def test_the_way_is_in_the_address_and_ends_at_the_node():
    way = steering(2, 2, 2)
    address = IPv6Address(way.address(3, 2, 1))
    found = usid.parse(address)
    assert found.hops == (usid.t0_usid(1), usid.t1_usid(1), usid.t0_usid(1))
    assert usid.journey(address)[-1] == usid.port_address(1, 1, 1)
    assert usid.journey(IPv6Address(way.address(3, 2, T0_ALONE)))[-1] == usid.port_address(1, 1, 1)


@pytest.mark.parametrize("nobody", [Steering(), steering(1, 4, 2), Steering(2, {0: (0, 0), 1: (1, 0)}, {}, 3)])
def test_where_nobody_can_choose_or_no_traffic_needs_a_link_none_is_tested(nobody):
    assert nobody.ways() == {}
    assert rounds(nobody, [0, 1], [1]) == []


def test_nodes_that_take_no_part_leave_their_links_to_the_others():
    way = steering(2, 2, 2)
    done = rounds(way, [0, 1, 3], [1])
    assert {(t.src, t.dst) for t in chain.from_iterable(done)} == {(0, 1), (1, 0), (3, 3)}


def test_a_pair_that_is_blocked_below_one_switch_is_named_and_no_link_of_it():
    """All steered ways between its two nodes fail with it: no link explains them, and judging ends all the same."""
    steering = Steering(
        t1=2, seats={0: (0, 0), 1: (0, 1), 2: (1, 0), 3: (1, 1)}, planes={1: 0, 2: 1, 3: 2, 4: 3}, first=5
    )
    fabric = Fabric(num_nodes=4, num_planes=4, steering=steering, t0_of=(0, 0, 1, 1), num_t1=2)
    fabric.effects |= dict.fromkeys(fabric.pair(2, 3), Effect(loss=1.0))
    addresses = tuple(tuple(f"fd::{node}:{path}" for path in range(5)) for node in range(4))
    paths = ("fabric", "p0", "p1", "p2", "p3")
    names = ("n0", "n1", "n2", "n3")
    plan = Plan(nodes=names, paths=paths, addresses=addresses, groups={0: 0, 1: 0, 2: 1, 3: 1}, steering=steering)
    found = judge_pairs(fabric.run(pair_phase(plan)), DEFAULT)
    failed = [(f.code, f.subject.nodes) for f in found if f.verdict == "fail"]
    assert failed == [("preflight/unreachable", ("n2", "n3"))]

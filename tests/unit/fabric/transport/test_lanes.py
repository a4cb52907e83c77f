"""Which planes two ends share, and the entropy values and routes that follow."""

from __future__ import annotations

from ipaddress import IPv6Address

import pytest

from fairlead.errors import PathsExhausted
from fairlead.fabric.transport import lanes
from fairlead.records.addressbook import Place, Port, Seat, Steering
from fairlead.spec import usid


def steered(node: str, t0: int, port: int, planes: tuple[int, ...] = (0, 1), t1: int = 3) -> Place:
    """A host of a fabric of micro-segments."""
    ports = tuple(
        Port(rail=f"plane {p}", plane=p, address=str(usid.port_address(p, t0, port)), rate_bps=250e6) for p in planes
    )
    return Place(node=node, ports=ports, seat=Seat(t0=t0, port=port), steering=Steering(by="usid", t1=t1))


def plain(node: str, *addresses: str) -> Place:
    return Place(node=node, ports=tuple(Port(rail=f"rail {i}", address=a) for i, a in enumerate(addresses)))


def test_on_a_steered_fabric_there_is_a_way_over_every_t1_and_it_ends_at_the_peer() -> None:
    here, there = steered("a", 0, 4), steered("b", 2, 7)
    found = lanes.lanes(here, there)
    assert [lane.rail for lane in found] == ["plane 0", "plane 1"]
    for plane, lane in enumerate(found):
        assert len(set(lane.ways)) == 3
        for t1, way in enumerate(lane.ways):
            steps = usid.journey(IPv6Address(way))
            assert str(steps[-1]) == there.ports[plane].address
            assert usid.parse(steps[0]).hops == (usid.t0_usid(0), usid.t1_usid(t1), usid.t0_usid(2))
    assert lanes.evs_per_plane(found) == 4
    assert lanes.profile(found, mtu=4096, rtt_ns=1_000_000, driver_mbps=2_000).rate_mbps == 500 * lanes.WINDOWS


def test_below_one_t0_there_is_one_way() -> None:
    found = lanes.lanes(steered("a", 1, 0), steered("b", 1, 1))
    assert [len(lane.ways) for lane in found] == [1, 1]
    assert str(usid.journey(IPv6Address(found[0].ways[0]))[-1]) == found[0].there


def test_only_planes_that_both_ends_have_are_used() -> None:
    found = lanes.lanes(steered("a", 0, 0, planes=(0, 2, 3)), steered("b", 1, 0, planes=(1, 3, 2)))
    assert [lane.rail for lane in found] == ["plane 2", "plane 3"]


@pytest.mark.parametrize(
    ("here", "there"),
    [
        (steered("a", 0, 0, planes=(0,)), steered("b", 1, 0, planes=(1,))),
        (plain("a", "10.0.0.1"), plain("b", "fd00::2")),
        (steered("a", 0, 0), plain("b", "fd00::1", "fd00::2")),
        (steered("a", 0, 0, t1=2), steered("b", 1, 0, t1=4)),
        (Place(), Place()),
    ],
    ids=["planes", "families", "one steered", "two fabrics", "nothing"],
)
def test_no_common_plane_is_said(here: Place, there: Place) -> None:
    with pytest.raises(PathsExhausted, match=r"in common|steered") as told:
        lanes.lanes(here, there)
    assert told.value.code == "fabric/no-common-plane"


def test_where_nobody_can_steer_the_source_port_is_the_entropy() -> None:
    found = lanes.lanes(plain("a", "10.0.0.1", "10.1.0.1"), plain("b", "10.0.0.2", "10.1.0.2"))
    ports = [list(range(50_000, 50_008)), list(range(51_000, 51_008))]
    evs, routes = lanes.routes(found, ports, [0, 1], seed=3)
    assert [ev >> 16 for ev in evs] == ports[0] + ports[1]
    assert {routes[ev].label for ev in evs} == {0}
    assert {(routes[ev].rail, routes[ev].to) for ev in evs} == {(0, "10.0.0.2"), (1, "10.1.0.2")}


def test_sockets_of_two_addresses_may_have_the_same_ports() -> None:
    found = lanes.lanes(plain("a", "10.0.0.1", "10.1.0.1"), plain("b", "10.0.0.2", "10.1.0.2"))
    ports = list(range(50_000, 50_008))
    evs, routes = lanes.routes(found, [ports, ports], [0, 1], seed=3)
    assert len(set(evs)) == 16
    assert [(routes[ev].rail, ports[routes[ev].source]) for ev in evs] == [(r, port) for r in (0, 1) for port in ports]


def test_every_slot_has_an_entropy_value_of_its_own_and_every_way_its_slots() -> None:
    found = lanes.lanes(steered("a", 0, 0, t1=3), steered("b", 1, 0, t1=3))
    evs, routes = lanes.routes(found, [[4791], [4791]], [0, 1], seed=5)
    assert len(set(evs[:4])) == len(set(evs[4:])) == 4
    assert [routes[ev].rail for ev in evs] == [0] * 4 + [1] * 4
    assert {routes[ev].to for ev in evs} == {way for lane in found for way in lane.ways}


def test_queue_pairs_take_other_ways_where_there_are_more_than_slots() -> None:
    found = lanes.lanes(steered("a", 0, 0, t1=200), steered("b", 1, 0, t1=200))
    num_slots = lanes.evs_per_plane(found)
    used = set()
    for seed in range(20):
        evs, routes = lanes.routes(found, [[4791], [4791]], [0, 1], seed=seed)
        taken = [routes[ev].to for ev in evs[:num_slots]]
        assert len(set(taken)) == min(num_slots, 200)
        used |= set(taken)
    assert len(used) == 200


def test_a_queue_pair_never_has_more_entropy_values_than_it_can_hold() -> None:
    found = lanes.lanes(
        steered("a", 0, 0, planes=tuple(range(6)), t1=200), steered("b", 1, 0, planes=tuple(range(6)), t1=200)
    )
    assert lanes.evs_per_plane(found) * len(found) <= lanes.MAX_EVS
    evs, routes = lanes.routes(found, [[4791]] * 6, range(6), seed=1)
    assert len(routes) == len(evs) == 32 * 6


def test_a_rate_that_one_port_does_not_know_is_not_guessed_from_the_others() -> None:
    half = Place(ports=(Port(rail="a", address="10.0.0.1", rate_bps=1e9), Port(rail="b", address="10.1.0.1")))
    found = lanes.lanes(half, half)
    assert lanes.profile(found, mtu=1024, rtt_ns=1_000_000, driver_mbps=2_000).rate_mbps == 2_000


def test_where_programs_are_slower_than_links_sacks_are_few() -> None:
    place = Place(ports=(Port(rail="a", address="10.0.0.1", rate_bps=1e9),))
    found = lanes.lanes(place, place)
    fast, slow = (
        lanes.profile(found, mtu=4096, rtt_ns=1_000_000, driver_mbps=mbps)
        for mbps in (1_000, 1_000 * lanes.WINDOWS + 1)
    )
    assert (fast.sack_bytes, slow.sack_bytes) == (16 * 4096, 4 * 4096)
    assert fast.base_rtt_floor_ns == slow.base_rtt_floor_ns == 1_000_000  # no window is reckoned from a single packet
    short = lanes.profile(found, mtu=256, rtt_ns=1_000_000, driver_mbps=1_000)
    assert short.sack_bytes == 16 * short.sack_floor

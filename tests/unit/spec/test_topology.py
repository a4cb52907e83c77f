"""Counts of the published fabric, the division rule, seats, paths and names."""

from __future__ import annotations

import pytest

from fairlead.errors import UsageError
from fairlead.spec.topology import Path, Seat, Topology, fabric_link_name, host_link_name

LARGEST = Topology(planes=8, t0=512, t1=256, hosts_per_t0=256)


def test_the_largest_fabric_has_the_published_counts():
    assert LARGEST.num_hosts == 131_072
    assert LARGEST.num_switches == 6_144
    assert LARGEST.num_host_links == LARGEST.num_fabric_links == 1_048_576
    assert LARGEST.num_queues == 4_194_304
    assert LARGEST.t0_radix == LARGEST.t1_radix == 512
    assert LARGEST.oversubscription == 1.0
    assert Topology(planes=1, t0=2, t1=4, hosts_per_t0=8).oversubscription == 2.0


def test_paths_between_groups_and_inside_one():
    assert LARGEST.num_paths(0, 131_071) == 2_048
    assert LARGEST.num_paths(0, 255) == 8
    small = Topology(planes=2, t0=2, t1=3, hosts_per_t0=2)
    assert list(small.paths(0, 1)) == [Path(0, None), Path(1, None)]
    assert list(small.paths(0, 2)) == [Path(p, j) for p in (0, 1) for j in (0, 1, 2)]


def test_hops_are_named_in_the_order_they_are_crossed():
    small = Topology(planes=2, t0=2, t1=3, hosts_per_t0=2)
    assert small.hops(0, 3, Path(1, 2)) == ["p1/t0-0", "p1/t1-2", "p1/t0-1"]
    assert small.hops(2, 3, Path(0, None)) == ["p0/t0-1"]


def test_every_switch_is_named_once():
    small = Topology(planes=2, t0=2, t1=1, hosts_per_t0=2)
    assert list(small.switches()) == ["p0/t0-0", "p0/t0-1", "p0/t1-0", "p1/t0-0", "p1/t0-1", "p1/t1-0"]
    assert host_link_name(1, "n3") == "p1/n3"
    assert fabric_link_name(1, 0, 2) == "p1/t0-0/t1-2"


def test_seats_fill_the_first_t0_first():
    small = Topology(planes=1, t0=2, t1=1, hosts_per_t0=3)
    assert [small.seat(h) for h in range(6)] == [Seat(0, 0), Seat(0, 1), Seat(0, 2), Seat(1, 0), Seat(1, 1), Seat(1, 2)]
    with pytest.raises(IndexError):
        small.seat(6)
    with pytest.raises(IndexError):
        small.host(Seat(2, 0))


def test_hosts_that_do_not_divide_are_refused_with_the_numbers_that_would():
    assert Topology.divide(planes=4, t0=2, t1=2, hosts=4).hosts_per_t0 == 2
    with pytest.raises(UsageError) as caught:
        Topology.divide(planes=4, t0=3, t1=2, hosts=8)
    assert caught.value.code == "spec/topology-divide"
    assert "6 or 9 hosts" in caught.value.hint


@pytest.mark.parametrize("field", ["planes", "t0", "t1", "hosts_per_t0"])
@pytest.mark.parametrize("value", [0, -1, 5000])
def test_numbers_out_of_range_are_refused_by_name(field, value):
    numbers = {"planes": 1, "t0": 1, "t1": 1, "hosts_per_t0": 1, field: value}
    with pytest.raises(UsageError) as caught:
        Topology(**numbers)
    assert caught.value.code == "spec/topology-range"
    assert field in caught.value.message

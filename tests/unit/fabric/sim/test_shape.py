"""Counts, numbering and wiring of fabrics."""

from __future__ import annotations

import numpy as np
import pytest

from fairlead.errors import UsageError
from fairlead.fabric.sim.engine import layout as at
from fairlead.fabric.sim.shape import Shape, Tier
from fairlead.spec.topology import Topology

TIER = Tier(100, 1000)


def planes(n: int, t0: int, t1: int, hosts: int, bundle: int = 1) -> Shape:
    return Shape.two_tier(Topology(planes=n, t0=t0, t1=t1, hosts_per_t0=hosts), host=TIER, fabric=TIER, bundle=bundle)


def fat_tree(pods: int, t0: int, t1: int, cores: int, hosts: int, *, bundle1: int = 1, bundle2: int = 1) -> Shape:
    return Shape(
        planes=1, pods=pods, pod_t0=t0, pod_t1=t1, cores=cores, hosts=hosts, bundle1=bundle1, bundle2=bundle2,
        tiers=(TIER, TIER, TIER),
    )  # fmt: skip


SHAPES = [
    planes(1, 2, 2, 2),
    planes(4, 3, 5, 2),
    planes(2, 4, 2, 3, bundle=3),
    fat_tree(4, 2, 2, 4, 2),
    fat_tree(3, 2, 3, 6, 2, bundle1=2, bundle2=2),
]


def test_the_largest_published_fabric_has_the_counts_of_the_paper():
    shape = planes(8, 512, 256, 256)
    assert shape.num_nics == 131_072
    assert shape.num_switches == 6_144
    assert shape.num_ports == 4_194_304  # queues of both ends of 1,048,576 host and as many fabric links


@pytest.mark.parametrize("shape", SHAPES, ids=repr)
def test_each_link_leads_back_to_where_it_began(shape):
    ports = np.zeros((shape.num_ports, at.PORT_COLUMNS), dtype=np.int32)
    shape.wire(ports)
    nodes = shape.nodes
    first, num = nodes[:, at.ND_PORT0], nodes[:, at.ND_PORTS]
    owner = np.repeat(np.arange(shape.num_nodes), num)
    assert (first[1:] == first[:-1] + num[:-1]).all()
    for port in range(shape.num_ports):
        far, arrives = ports[port, at.PT_FAR_NODE], ports[port, at.PT_FAR_PORT]
        if far >= shape.num_switches:  # a NIC group: host and plane
            host, plane = arrives >> at.HOST_SHIFT, arrives & at.PLANE_MASK
            back = shape.nic_port(plane, (far - shape.num_switches) * shape.hosts + host)
        else:
            back = first[far] + arrives
        assert ports[back, at.PT_FAR_NODE] == owner[port]
        seen = ports[back, at.PT_FAR_PORT]
        if owner[port] >= shape.num_switches:
            seen = (seen >> at.HOST_SHIFT) * shape.planes + (seen & at.PLANE_MASK)
        assert first[owner[port]] + seen == port


def test_each_pair_of_t0_and_t1_is_joined_once_in_each_plane():
    shape = planes(3, 4, 5, 2)
    ports = np.zeros((shape.num_ports, at.PORT_COLUMNS), dtype=np.int32)
    shape.wire(ports)
    for plane in range(3):
        for t0 in range(4):
            reached = {int(ports[shape.uplink_port(plane, t0, u), at.PT_FAR_NODE]) for u in range(5)}
            assert reached == {shape.t1_node(plane, t1) for t1 in range(5)}


def test_a_round_trip_is_every_link_and_every_serialisation():
    # six links of 1 us there and back, 4,150 and 64 bytes at 80 ps a byte six times: the reference's 14.0227 us
    assert fat_tree(4, 2, 2, 4, 2).round_trip_ns(4150, 64) == 14_023
    assert planes(1, 2, 2, 2).round_trip_ns(4150, 64) == round(8000 + (4150 + 64) * 0.08 * 4)


def test_switch_latency_counts_once_for_each_switch():
    shape = Shape.two_tier(
        Topology(planes=1, t0=2, t1=2, hosts_per_t0=1), host=Tier(100, 1000, 300), fabric=Tier(100, 1000, 500)
    )
    assert shape.one_way_ns() == 4 * 1000 + 300 + 500 + 300


def test_cores_that_do_not_divide_are_refused():
    with pytest.raises(UsageError, match="5 core switches") as refused:
        fat_tree(2, 2, 2, 5, 2)
    assert refused.value.code == "sim/topology-divide"


def test_names_are_those_of_the_cluster_file():
    shape = planes(2, 2, 3, 2)
    assert shape.node_name(shape.t0_node(1, 1)) == "p1/t0-1"
    assert shape.node_name(shape.t1_node(1, 2)) == "p1/t1-2"
    assert shape.uplink_name(1, 0, 2) == "p1/t0-0/t1-2"

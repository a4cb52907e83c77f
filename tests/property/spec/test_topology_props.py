"""Seats and host numbers are inverse; the path count is the number of paths; hops agree with uSID addresses."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fairlead.spec import usid
from fairlead.spec.topology import Topology, t0_name, t1_name

sizes = st.integers(1, 6)
topologies = st.builds(Topology, planes=sizes, t0=sizes, t1=sizes, hosts_per_t0=sizes)


@st.composite
def pairs(draw):
    topo = draw(topologies)
    hosts = st.integers(0, topo.num_hosts - 1)
    return topo, draw(hosts), draw(hosts)


@given(pairs())
def test_seat_and_host_are_inverse(case):
    topo, a, _ = case
    assert topo.host(topo.seat(a)) == a


@given(pairs())
def test_num_paths_counts_paths_and_they_differ(case):
    topo, a, b = case
    paths = list(topo.paths(a, b))
    assert len(paths) == len(set(paths)) == topo.num_paths(a, b)


@given(topologies)
def test_switch_names_are_unique_and_counted(topo):
    names = list(topo.switches())
    assert len(names) == len(set(names)) == topo.num_switches


@given(pairs())
def test_hops_by_name_are_the_micro_segments_of_the_address(case):
    topo, a, b = case
    (src_t0, _), (dst_t0, dst_port) = topo.seat(a), topo.seat(b)
    for path in topo.paths(a, b):
        ahead = usid.parse(usid.path_address(path.plane, src_t0, path.t1, dst_t0, dst_port)).hops
        named = [
            t0_name(path.plane, word - usid.T0_BASE)
            if word < usid.T1_BASE
            else t1_name(path.plane, word - usid.T1_BASE)
            for word in ahead
        ]
        assert named == topo.hops(a, b, path)

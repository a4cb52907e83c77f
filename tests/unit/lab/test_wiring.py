"""The lines said to `ip` and `tc`, held against topology and addresses."""

from __future__ import annotations

from ipaddress import IPv6Address

import pytest

from fairlead.lab import wiring
from fairlead.lab.shape import LabShape
from fairlead.spec import usid

SHAPE = LabShape(planes=2, t0=2, t1=3)


def setup_of(netns, shape=SHAPE):
    return next(s for s in wiring.setups(shape) if s.netns == netns)


def test_every_link_of_the_topology_is_there_once():
    links = wiring.links(SHAPE)
    topo = SHAPE.topology
    assert len(links) == topo.num_host_links + topo.num_fabric_links
    ends = [(e.netns, e.device) for link in links for e in (link.lower, link.upper)]
    macs = [e.mac for link in links for e in (link.lower, link.upper)]
    assert len(set(ends)) == len(ends)
    assert len(set(macs)) == len(macs)
    assert len({link.name for link in links}) == len(links)


def test_a_t0_acts_on_its_own_segment_and_knows_hosts_below_and_t1s_above():
    lines = setup_of("p1-t0-1").ip
    assert (
        "route replace fcbb:bb01:1001::/48 encap seg6local action End flavors next-csid lblen 32 nflen 16 dev sr0"
        in lines
    )
    assert "route replace fcbb:bb01:e001::/48 via fe80::2 dev d1" in lines
    assert "route replace fcbb:bb01:2002::/48 via fe80::1 dev u2" in lines


def test_no_switch_knows_another_plane():
    for name in SHAPE.topology.switches():
        plane = int(name[1])
        text = "\n".join(setup_of(wiring.netns_of(name)).ip)
        assert usid.block(1 - plane).split("::")[0] not in text


def test_a_host_owns_its_addresses_and_takes_off_outer_headers():
    lines = setup_of("n3").ip
    assert "addr replace fdfa:b71c:1001:e001::1/128 dev fab0 nodad" in lines
    assert "addr replace fcbb:bb01:e001:1001::/128 dev eth2 nodad" in lines
    assert "route replace fcbb:bb01:e001:1001:d6::/128 encap seg6local action End.DT6 table 255 dev eth2" in lines


def test_the_spread_route_takes_every_path_and_each_leads_to_the_host():
    line = next(x for x in setup_of("n0").ip if x.startswith("route replace fdfa:b71c:1001:e001::1/128"))
    segments = [IPv6Address(word) for word in line.split() if word.startswith("fcbb")]
    assert len(segments) == SHAPE.topology.num_paths(0, 3) == 6
    assert {usid.parse(s).end for s in segments} == {usid.PortAddress(p, 1, 1, usid.DECAP) for p in (0, 1)}


def test_a_port_address_is_reached_in_its_own_plane_alone():
    line = next(x for x in setup_of("n0").ip if x.startswith("route replace fcbb:bb01:e001:1001::/128 src"))
    assert line.count("dev eth2") == 3
    assert "dev eth1" not in line


def test_many_paths_are_held_to_what_a_route_can_carry():
    shape = LabShape(planes=8, t0=2, t1=32)
    line = next(x for x in setup_of("n0", shape).ip if x.startswith("route replace fdfa:b71c:1001:e001::1/128"))
    assert line.count("nexthop") == wiring.MAX_NEXT_HOPS
    assert all(f"dev eth{p}" in line for p in range(1, 9))


@pytest.mark.parametrize(("on", "expected"), [(True, False), (False, True)])
def test_segmentation_offload_is_a_setting_of_every_fabric_port(on, expected):
    lines = wiring.link_lines(LabShape(segmentation_offload=on))
    fabric = [x for x in lines if "link add eth1" in x or "link add u0" in x]
    assert fabric
    assert all((x.count("gso_max_segs 1") == 2) is expected for x in fabric)


def test_rates_are_held_at_both_ends():
    shape = LabShape(rate_mbps=100, uplink_rate_mbps=400)
    assert any("dev eth1 root tbf rate 100mbit" in x for x in setup_of("n0", shape).tc)
    assert any("dev d0 root tbf rate 100mbit" in x for x in setup_of("p0-t0-0", shape).tc)
    assert any("dev u0 root tbf rate 400mbit" in x for x in setup_of("p0-t0-0", shape).tc)
    assert any("dev d0 root tbf rate 400mbit" in x for x in setup_of("p0-t1-0", shape).tc)


def test_a_switch_that_trims_has_a_class_ahead_and_a_host_has_none():
    shape = LabShape(rate_mbps=100, uplink_rate_mbps=400, trim_kib=32)
    assert setup_of("n0", shape).tc == setup_of("n0", LabShape(rate_mbps=100, uplink_rate_mbps=400)).tc
    lines = setup_of("p0-t0-0", shape).tc
    assert (
        "class replace dev u0 parent 1:1 classid 1:10 htb rate 40mbit ceil 400mbit burst 32kb cburst 32kb prio 0"
        in lines
    )
    assert (
        "class replace dev d0 parent 1:1 classid 1:20 htb rate 90mbit ceil 100mbit burst 32kb cburst 32kb prio 1"
        in lines
    )
    assert not any("tbf" in x for x in lines)


def test_every_line_of_a_port_can_be_said_again():
    for setup in wiring.setups(SHAPE):
        assert all(x.startswith("link set ") or " replace " in x for x in setup.ip), setup.netns

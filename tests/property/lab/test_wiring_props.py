"""For any shape: a packet sent to a path is handed on by each switch's own lines to the host that owns what is left."""

from __future__ import annotations

import re
from ipaddress import IPv6Address, IPv6Network

from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.lab import wiring
from fairlead.lab.shape import LabShape
from fairlead.spec import usid
from support.depth import cases


@st.composite
def shapes(draw):
    t0, per_t0 = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    return LabShape(
        planes=draw(st.integers(1, 3)),
        t0=t0,
        t1=draw(st.integers(1, 4)),
        nodes=tuple(f"n{i}" for i in range(t0 * per_t0)),
    )


class Fabric:
    """Forwards by nothing but the lines of the wiring: longest prefix, and the shift of RFC 9800."""

    def __init__(self, shape):
        self.setups = {s.netns: s for s in wiring.setups(shape)}
        self.far = {}
        for link in wiring.links(shape):
            for here, there in ((link.lower, link.upper), (link.upper, link.lower)):
                self.far[here.netns, here.device] = there.netns

    def routes(self, netns):
        found = []
        for line in self.setups[netns].ip:
            match = re.match(r"route replace (\S+) (via \S+ dev (\S+)|encap seg6local action End )", line)
            if match:
                found.append((IPv6Network(match[1], strict=False), match[3]))
        return sorted(found, key=lambda r: -r[0].prefixlen)

    def carry(self, netns, address):
        """The namespaces a packet crosses from a host on, and the address it arrives with."""
        crossed = []
        while True:
            device = next((dev for net, dev in self.routes(netns) if address in net), "none")
            assert device != "none", f"{netns} has no route to {address}"
            if device is None:
                address = usid.shift(address)
                continue
            netns = self.far[netns, device]
            crossed.append(netns)
            if netns.startswith("n"):
                return crossed, address


@settings(max_examples=cases(40))
@given(shapes(), st.data())
def test_every_path_leads_over_its_switches_to_its_host(shape, data):
    topo, fabric = shape.topology, Fabric(shape)
    a = data.draw(st.integers(0, topo.num_hosts - 1))
    b = data.draw(st.integers(0, topo.num_hosts - 1).filter(lambda h: h != a or topo.num_hosts == 1))
    for path in topo.paths(a, b):
        dst = topo.seat(b)
        sent = usid.path_address(path.plane, topo.seat(a).t0, path.t1, *dst)
        crossed, arrived = fabric.carry(shape.nodes[a], sent)
        assert crossed == [*map(wiring.netns_of, topo.hops(a, b, path)), shape.nodes[b]]
        assert arrived == usid.port_address(path.plane, *dst)


@settings(max_examples=cases(30))
@given(shapes())
def test_every_segment_list_of_an_encapsulating_route_is_a_path(shape):
    topo = shape.topology
    for host, node in enumerate(shape.nodes):
        lines = next(s for s in wiring.setups(shape) if s.netns == node).ip
        for segments in (
            IPv6Address(x) for line in lines if "encap.red" in line for x in re.findall(r"segs (\S+)", line)
        ):
            parsed = usid.parse(segments)
            other = topo.host((parsed.end.t0, parsed.end.port))
            paths = [
                usid.path_address(p.plane, topo.seat(host).t0, p.t1, *topo.seat(other), usid.DECAP)
                for p in topo.paths(host, other)
            ]
            assert other != host
            assert segments in paths

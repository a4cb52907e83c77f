"""The fabric forwards: every host reaches every other, and packets take the hops their address names."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import subprocess
from collections import Counter
from ipaddress import IPv6Address

import pytest

from fairlead.cluster.enter import into_host
from fairlead.lab import inside, wiring
from fairlead.lab.shape import LabShape
from fairlead.lab.up import down
from fairlead.spec import usid
from support.labs import Lab, fresh_name

pytestmark = [pytest.mark.real, pytest.mark.requires("root", "netns", "srv6", "tbf", "nft")]

ETH_P_ALL, UDP_NO_CHECK6_TX, UDP_NO_CHECK6_RX = 3, 101, 102


def udp(lab, host, *, port=0):
    """A UDP socket of a host that neither computes nor wants checksums."""
    sock = lab.socket_in(host, socket.AF_INET6, socket.SOCK_DGRAM)
    sock.setsockopt(socket.IPPROTO_UDP, UDP_NO_CHECK6_TX, 1)
    sock.setsockopt(socket.IPPROTO_UDP, UDP_NO_CHECK6_RX, 1)
    sock.bind(("::", port))
    sock.settimeout(20)
    return sock


class Records:
    """A rule in every switch and host that counts, per destination address, what arrives there.

    The kernel counts at the moment of arrival. A packet socket would not do: the switch rewrites the address in the
    very buffer the socket has yet to read.
    """

    def __init__(self, lab):
        self.state = lab.state
        ends = [end for link in wiring.links(lab.shape) for end in (link.lower, link.upper)]
        self.devices = {netns: [e.device for e in ends if e.netns == netns] for netns in {e.netns for e in ends}}
        for netns, devices in self.devices.items():
            names = ", ".join(f'"{d}"' for d in devices)
            text = f"""table netdev seen {{
                set there {{ type ipv6_addr; size 4096; flags dynamic; counter; }}
                chain arrive {{ type filter hook ingress devices = {{ {names} }} priority -400;
                    ip6 nexthdr {{ udp, ipv6 }} update @there {{ ip6 daddr }}
                }}
            }}"""
            inside.say(self.state, netns, ["nft", "-f", "-"], [text])

    def take(self):
        """netns -> address -> packets, since the last time."""
        seen = {}
        for netns in self.devices:
            found = json.loads(inside.ask(self.state, netns, ["nft", "-j", "list", "set", "netdev", "seen", "there"]))
            elements = next(x["set"] for x in found["nftables"] if "set" in x).get("elem", [])
            if elements:
                seen[netns] = {IPv6Address(e["elem"]["val"]): e["elem"]["counter"]["packets"] for e in elements}
                inside.say(self.state, netns, ["nft", "flush", "set", "netdev", "seen", "there"], [""])
        return seen

    def close(self):
        for netns in self.devices:
            inside.say(self.state, netns, ["nft", "delete", "table", "netdev", "seen"], [""])


@pytest.fixture
def records_of_hops(lab):
    made = Records(lab)
    yield made
    made.close()


@pytest.mark.parametrize(("a", "b"), [(0, 3), (3, 0), (0, 1), (2, 3)])
def test_packets_take_the_hops_their_addresses_name(lab, records_of_hops, a, b):
    topo, nodes = lab.shape.topology, lab.shape.nodes
    src, dst = topo.seat(a), topo.seat(b)
    receiver, sender = udp(lab, nodes[b], port=4791), udp(lab, nodes[a])
    expected: dict[str, Counter] = {}
    for path in topo.paths(a, b):
        address = usid.path_address(path.plane, src.t0, path.t1, *dst)
        sender.sendto(b"x", (str(address), 4791))
        data, source = receiver.recvfrom(100)
        assert (data, IPv6Address(source[0])) == (b"x", usid.port_address(path.plane, *src))
        # every switch on the way sees the packet once, under the address arithmetic gives it there; so does the host
        hops = [*map(wiring.netns_of, topo.hops(a, b, path)), nodes[b]]
        for hop, step in zip(hops, usid.journey(address), strict=True):
            expected.setdefault(hop, Counter())[step] += 1
    receiver.close()
    sender.close()
    assert records_of_hops.take() == expected


def test_ordinary_traffic_is_spread_over_every_path_and_arrives(lab, records_of_hops):
    host = lab.state.host("n3")
    receiver = lab.socket_in("n3", socket.AF_INET6, socket.SOCK_DGRAM)
    receiver.bind((host.fabric, 5000))
    receiver.settimeout(20)
    for port in range(10_000, 10_100):
        sender = lab.socket_in("n0", socket.AF_INET6, socket.SOCK_DGRAM)
        sender.bind(("::", port))
        sender.sendto(b"x", (host.fabric, 5000))
        assert receiver.recvfrom(10)[1][0] == lab.state.host("n0").fabric
        sender.close()
    receiver.close()
    seen = records_of_hops.take()
    used = Counter({a: n for netns in seen for a, n in seen[netns].items() if netns.endswith("t0-0")})
    paths = {usid.path_address(p.plane, 0, p.t1, 1, 1, usid.DECAP) for p in lab.shape.topology.paths(0, 3)}
    assert set(used) == paths
    assert used.total() == 100


def test_a_port_address_is_reached_in_its_own_plane_alone(lab, records_of_hops):
    for port in lab.state.host("n3").ports:
        receiver = lab.socket_in("n3", socket.AF_INET6, socket.SOCK_DGRAM)
        receiver.bind((port.address, 5001))
        receiver.settimeout(20)
        sender = lab.socket_in("n0", socket.AF_INET6, socket.SOCK_DGRAM)
        sender.sendto(b"x", (port.address, 5001))
        assert receiver.recvfrom(10)[1][0] == lab.state.host("n0").ports[port.plane].address
        receiver.close()
        sender.close()
        switches = {netns for netns in records_of_hops.take() if netns.startswith("p")}
        assert {netns.split("-")[0] for netns in switches} == {f"p{port.plane}"}


SERVE = """
import socket
s = socket.create_server(("::", 6000), family=socket.AF_INET6)
print("ready", flush=True)
while True:
    c, _ = s.accept()
    c.sendall(b"hello"); c.close()
"""
CALL = """
import socket, sys
for address in sys.argv[1:]:
    with socket.create_connection((address, 6000), timeout=30) as s:
        assert s.recv(5) == b"hello", address
print("all")
"""


def test_every_host_reaches_every_other_by_name_and_by_every_address(lab):
    state = lab.state
    servers = [
        subprocess.Popen(into_host(state, h, ["python3", "-c", SERVE]), stdout=subprocess.PIPE) for h in state.hosts
    ]
    try:
        for server in servers:
            assert server.stdout.readline() == b"ready\n"
        for here in state.hosts:
            others = [h for h in state.hosts if h.name != here.name]
            wanted = [w for h in others for w in (h.name, h.fabric, *(p.address for p in h.ports))]
            assert lab.on(here.name, "python3", "-c", CALL, *wanted) == "all"
    finally:
        for server in servers:
            server.kill()
            server.wait()
            server.stdout.close()


def test_super_packets_do_not_cross_a_hop_whole(lab):
    """With segmentation offload off (the default), what the first switch receives is no larger than the MTU."""
    sniffer = lab.socket_in("p0-t0-0", socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_ALL))
    sender, receiver = udp(lab, "n0"), udp(lab, "n3", port=4792)
    sender.setsockopt(socket.IPPROTO_UDP, UDP_NO_CHECK6_TX, 0)
    receiver.setsockopt(socket.IPPROTO_UDP, UDP_NO_CHECK6_RX, 1)
    sender.setsockopt(socket.IPPROTO_UDP, 103, 4096)  # UDP_SEGMENT
    address = usid.path_address(0, 0, 0, 1, 1)
    sender.sendto(b"x" * 4096 * 8, (str(address), 4792))
    sniffer.settimeout(20)
    sizes = []
    try:
        while len(sizes) < 8:
            data, (_, proto, kind, *_) = sniffer.recvfrom(65535)
            if proto == 0x86DD and kind == 0 and data[6] == 17:
                sizes.append(struct.unpack("!H", data[4:6])[0])
    finally:
        for sock in (sniffer, sender, receiver):
            sock.close()
    assert sizes == [4096 + 8] * 8


def test_with_computed_checksums_a_path_needs_one_that_fits_its_end():

    made = Lab(LabShape(name=fresh_name(), planes=1, checksum_offload=False))
    address = str(usid.path_address(0, 0, 0, 1, 1))
    try:
        # ordinary programs and the kernel's encapsulation: the checksum is of the inner addresses, and fits
        receiver = made.socket_in("n3", socket.AF_INET6, socket.SOCK_DGRAM)
        receiver.bind(("::", 4793))
        receiver.settimeout(0.5)
        sender = made.socket_in("n0", socket.AF_INET6, socket.SOCK_DGRAM)
        sender.sendto(b"spread", (made.state.host("n3").fabric, 4793))
        assert receiver.recv(100) == b"spread"
        # a path: the kernel computed it with the first destination, and the receiver drops it
        sender.sendto(b"path", (address, 4793))
        with pytest.raises(TimeoutError):
            receiver.recv(100)
        receiver.setsockopt(socket.IPPROTO_UDP, UDP_NO_CHECK6_RX, 1)
        sender.setsockopt(socket.IPPROTO_UDP, UDP_NO_CHECK6_TX, 1)
        sender.sendto(b"none", (address, 4793))
        assert receiver.recv(100) == b"none"
        receiver.close()
        sender.close()
    finally:
        down(made.name)


def test_with_segmentation_offload_super_packets_cross_whole():

    made = Lab(LabShape(name=fresh_name(), planes=1, segmentation_offload=True, rate_mbps=10_000, burst_kib=256))
    try:
        sniffer = made.socket_in("p0-t0-0", socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_ALL))
        sniffer.settimeout(20)
        sender = made.socket_in("n0", socket.AF_INET6, socket.SOCK_DGRAM)
        sender.setsockopt(socket.IPPROTO_UDP, 103, 4096)  # UDP_SEGMENT
        sender.sendto(b"x" * 4096 * 8, (str(usid.path_address(0, 0, 0, 1, 1)), 4792))
        sizes = []
        with contextlib.suppress(TimeoutError):
            while True:
                data, (_, proto, kind, *_) = sniffer.recvfrom(65535)
                if proto == 0x86DD and kind == 0 and data[6] == 17:
                    sizes.append(struct.unpack("!H", data[4:6])[0])
                    sniffer.settimeout(1)  # whether more comes
        assert sizes == [4096 * 8 + 8]
        sniffer.close()
        sender.close()
    finally:
        down(made.name)

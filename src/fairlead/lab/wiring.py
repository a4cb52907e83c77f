"""The fabric as the lines `ip -batch` and `tc -batch` take: a pure function of the shape.

Knows: which devices, addresses, routes and queues each namespace gets. Must not know: processes, files, the state of a
running lab. Everything is written with `replace` where the kernel allows it, so that a port that was down (which makes
the kernel forget its routes and neighbours) is restored by saying the namespace's lines again.

One namespace per switch and per host, and one for management, so that a packet's hops are real:

    host n3      eth0            management (IPv4), a port of the bridge in `mgmt`
                 eth1 .. ethP    one port per plane, eth{p+1} in plane p
                 fab0            carries the one fabric address; one end of a veth pair whose other end leads nowhere
    T0           d0 .. dH        down to the hosts;   u0 .. uT  up to the T1s
    T1           d0 .. dS        down to the T0s
    any switch   sr0             where micro-segment routes hang: a device no fault takes down

Neighbours are permanent entries and nothing has a link-local address, so after a few multicast reports at the start the
fabric is silent until somebody sends, and a link that drops silently is noticed by nobody. Gateways are fe80::1 (the
end closer to T1) and fe80::2 (the other).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address

from fairlead.lab.shape import LabShape
from fairlead.spec import usid
from fairlead.spec.topology import fabric_link_name, host_link_name, t0_name, t1_name

MANAGEMENT = IPv4Address("10.99.0.0")
MANAGEMENT_BITS = 16
MANAGEMENT_HEAD = MANAGEMENT + 1
MANAGEMENT_MTU = 1500
MAX_NEXT_HOPS = 64
"""Ways an ordinary program's traffic is spread over; a fabric with more T1s uses some of them in each plane."""

_UP, _DOWN = "fe80::1", "fe80::2"
_ONE_QUEUE = "numtxqueues 1 numrxqueues 1"


@dataclass(frozen=True, slots=True)
class End:
    """One end of a link."""

    netns: str
    device: str
    mac: str


@dataclass(frozen=True, slots=True)
class Link:
    """A veth pair between two namespaces; `upper` is the end closer to T1."""

    name: str
    lower: End
    upper: End
    rate_mbps: int


@dataclass(frozen=True, slots=True)
class Setup:
    """What is said to one namespace: settings below /proc/sys/net, then lines for `ip -batch` and `tc -batch`."""

    netns: str
    sysctl: tuple[tuple[str, str], ...]
    ip: tuple[str, ...]
    tc: tuple[str, ...]


def netns_of(switch: str) -> str:
    """The namespace of a switch: `p2/t0-1` -> `p2-t0-1`."""
    return switch.replace("/", "-")


def management_address(host: int) -> IPv4Address:
    """eth0 of host number `host`."""
    return MANAGEMENT + 256 + host


def links(shape: LabShape) -> list[Link]:
    """Every link of the fabric, plane by plane, host links first."""
    topo, out = shape.topology, []
    for plane in range(topo.planes):
        for host, node in enumerate(shape.nodes):
            t0, port = topo.seat(host)
            lower = End(node, f"eth{plane + 1}", _mac(0x02, plane, t0, port))
            upper = End(netns_of(t0_name(plane, t0)), f"d{port}", _mac(0x06, plane, t0, port))
            out.append(Link(host_link_name(plane, node), lower, upper, shape.rate_mbps))
        for t0 in range(topo.t0):
            for t1 in range(topo.t1):
                lower = End(netns_of(t0_name(plane, t0)), f"u{t1}", _mac(0x0A, plane, t0, t1))
                upper = End(netns_of(t1_name(plane, t1)), f"d{t0}", _mac(0x0E, plane, t1, t0))
                out.append(Link(fabric_link_name(plane, t0, t1), lower, upper, shape.uplink_rate_mbps))
    return out


def management_links(shape: LabShape) -> list[Link]:
    """eth0 of every host, and of the head node where there is one."""
    nodes = [*shape.nodes, *(["head"] if shape.slurm else [])]
    return [
        Link(f"mgmt/{node}", End(node, "eth0", _mac(0x12, 0, 0, i)), End("mgmt", f"m{i}", _mac(0x16, 0, 0, i)), 0)
        for i, node in enumerate(nodes)
    ]


def link_lines(shape: LabShape) -> list[str]:
    """`ip -batch` lines, for the management namespace, that create every veth pair with both ends in place."""
    segments = "" if shape.segmentation_offload else " gso_max_segs 1"

    def pair(link: Link, mtu: int, extra: str) -> str:
        a, b = link.lower, link.upper
        return (
            f"link add {a.device} netns {a.netns} address {a.mac} mtu {mtu} {_ONE_QUEUE}{extra} type veth "
            f"peer {b.device} netns {b.netns} address {b.mac} mtu {mtu} {_ONE_QUEUE}{extra}"
        )

    fabric = [pair(link, shape.mtu, segments) for link in links(shape)]
    management = [pair(link, MANAGEMENT_MTU, "") for link in management_links(shape)]
    stubs = [
        f"link add {dev} netns {netns} {_ONE_QUEUE} type veth peer {dev}-peer netns {netns} {_ONE_QUEUE}"
        for dev, names in (("sr0", map(netns_of, shape.topology.switches())), ("fab0", shape.nodes))
        for netns in names
    ]
    return fabric + management + stubs


def setups(shape: LabShape) -> Iterator[Setup]:
    """What every namespace is told, switches first."""
    topo = shape.topology
    for plane in range(topo.planes):
        for t0 in range(topo.t0):
            yield t0_setup(shape, plane, t0)
        for t1 in range(topo.t1):
            yield t1_setup(shape, plane, t1)
    for host in range(topo.num_hosts):
        yield host_setup(shape, host)
    if shape.slurm:
        yield head_setup(shape)


BEFORE_DEVICES = (
    # nothing speaks unless told to: no link-local addresses, no duplicate detection, no router discovery
    ("ipv6/conf/default/addr_gen_mode", "1"),
    ("ipv6/conf/default/accept_dad", "0"),
    ("ipv6/conf/default/accept_ra", "0"),
    ("ipv6/conf/default/router_solicitations", "0"),
    # a port without carrier leaves multipath routes, and keeps its address for when it comes back
    ("ipv6/conf/default/ignore_routes_with_linkdown", "1"),
    ("ipv6/conf/default/keep_addr_on_down", "1"),
)
"""Settings every namespace has before its first device."""

_SWITCH_SYSCTL = (("ipv6/conf/all/forwarding", "1"),)
_HOST_SYSCTL = (
    ("ipv6/fib_multipath_hash_policy", "1"),  # spread by ports too, not by addresses alone
)


def t0_setup(shape: LabShape, plane: int, t0: int) -> Setup:
    """A T0: its own micro-segment, each host's local one, each T1's global one."""
    topo = shape.topology
    ip = _switch_base(plane, usid.t0_usid(t0))
    tc = []
    for port in range(topo.hosts_per_t0):
        ip += _next_hop(plane, usid.port_usid(port), f"d{port}", _DOWN, _mac(0x02, plane, t0, port))
        tc += _switch_port(f"d{port}", shape.rate_mbps, shape)
    for t1 in range(topo.t1):
        ip += _next_hop(plane, usid.t1_usid(t1), f"u{t1}", _UP, _mac(0x0E, plane, t1, t0))
        tc += _switch_port(f"u{t1}", shape.uplink_rate_mbps, shape)
    return Setup(netns_of(t0_name(plane, t0)), _SWITCH_SYSCTL, tuple(ip), tuple(tc))


def t1_setup(shape: LabShape, plane: int, t1: int) -> Setup:
    """A T1: its own micro-segment, and each T0's."""
    ip = _switch_base(plane, usid.t1_usid(t1))
    tc = []
    for t0 in range(shape.t0):
        ip += _next_hop(plane, usid.t0_usid(t0), f"d{t0}", _DOWN, _mac(0x0A, plane, t0, t1))
        tc += _switch_port(f"d{t0}", shape.uplink_rate_mbps, shape)
    return Setup(netns_of(t1_name(plane, t1)), _SWITCH_SYSCTL, tuple(ip), tuple(tc))


def host_setup(shape: LabShape, host: int) -> Setup:
    """A host: management, a port per plane, the decapsulating segment, and encapsulating routes to every other host."""
    t0, port = shape.topology.seat(host)
    fabric = usid.fabric_address(t0, port)
    ip = [*_management(management_address(host)), "link set fab0-peer up", "link set fab0 up"]
    ip.append(f"addr replace {fabric}/128 dev fab0 nodad")
    tc = []
    for plane in range(shape.planes):
        dev, own = f"eth{plane + 1}", usid.port_address(plane, t0, port)
        decap = usid.port_address(plane, t0, port, usid.DECAP)
        ip += [
            f"link set {dev} up",
            f"addr replace {own}/128 dev {dev} nodad",
            f"neigh replace {_UP} lladdr {_mac(0x06, plane, t0, port)} dev {dev} nud permanent",
            f"route replace {usid.block(plane)} via {_UP} dev {dev} src {own}",
            # 255 is the kernel's table of local addresses, where the inner destination is found
            f"route replace {decap}/128 encap seg6local action End.DT6 table 255 dev {dev}",
        ]
        tc.append(shaping(dev, shape.rate_mbps, shape))
    for other in range(len(shape.nodes)):
        if other != host:
            ip += _routes_to(shape, host, other)
    return Setup(shape.nodes[host], _HOST_SYSCTL, tuple(ip), tuple(tc))


def head_setup(shape: LabShape) -> Setup:
    """The head node: management alone."""
    return Setup("head", _HOST_SYSCTL, tuple(_management(management_address(len(shape.nodes)))), ())


def management_setup(shape: LabShape) -> Setup:
    """The bridge that joins every eth0; its own address is the far side of management."""
    ip = [
        "link add br0 type bridge",
        "link set br0 up",
        f"addr replace {MANAGEMENT_HEAD}/{MANAGEMENT_BITS} dev br0",
        "link set lo up",
        *(f"link set {link.upper.device} master br0 up" for link in management_links(shape)),
    ]
    return Setup("mgmt", (), tuple(ip), ())


def shaping(device: str, rate_mbps: float, shape: LabShape) -> str:
    """The `tc -batch` line that holds a device to a rate."""
    bucket = f"burst {shape.burst_kib}kb limit {shape.buffer_kib}kb"
    return f"qdisc replace dev {device} root tbf rate {rate_mbps:g}mbit {bucket}"


def _switch_port(device: str, rate_mbps: float, shape: LabShape) -> list[str]:
    """The same of a switch's port; one that trims has a class ahead of the others, for what is trimmed (bpf.py)."""
    if not shape.trim_kib:
        return [shaping(device, rate_mbps, shape)]
    burst = f"burst {shape.burst_kib}kb cburst {shape.burst_kib}kb"
    lines = [
        f"qdisc replace dev {device} root handle 1: htb default 20",
        f"class replace dev {device} parent 1: classid 1:1 htb rate {rate_mbps:g}mbit {burst}",
    ]
    for number, (minor, share) in enumerate((("10", 0.1), ("20", 0.9))):
        rates = f"rate {share * rate_mbps:g}mbit ceil {rate_mbps:g}mbit"
        lines += [
            f"class replace dev {device} parent 1:1 classid 1:{minor} htb {rates} {burst} prio {number}",
            f"qdisc replace dev {device} parent 1:{minor} handle {minor}: bfifo limit {shape.buffer_kib}kb",
        ]
    return lines


def _management(address: IPv4Address) -> list[str]:
    return ["link set lo up", "link set eth0 up", f"addr replace {address}/{MANAGEMENT_BITS} dev eth0"]


def _switch_base(plane: int, own: int) -> list[str]:
    flavour = f"flavors next-csid lblen {usid.BLOCK_BITS} nflen {usid.USID_BITS}"
    return [
        "link set sr0-peer up",
        "link set sr0 up",
        f"route replace {usid.locator(plane, own)} encap seg6local action End {flavour} dev sr0",
        # what has no route is dropped without a word to the sender
        "route replace blackhole ::/0",
    ]


def _next_hop(plane: int, segment: int, device: str, gateway: str, mac: str) -> list[str]:
    return [
        f"link set {device} up",
        f"neigh replace {gateway} lladdr {mac} dev {device} nud permanent",
        f"route replace {usid.locator(plane, segment)} via {gateway} dev {device}",
    ]


def _routes_to(shape: LabShape, host: int, other: int) -> list[str]:
    """Encapsulating routes to another host: its fabric address over every plane, each port address over its own."""
    topo = shape.topology
    src, dst = topo.seat(host), topo.seat(other)
    per_plane = max(1, MAX_NEXT_HOPS // topo.planes)
    spread, lines = [], []
    for plane in range(topo.planes):
        t1s: list[int | None] = [None]
        if src.t0 != dst.t0:
            t1s = [(host + other + i) % topo.t1 for i in range(min(topo.t1, per_plane))]
        hops = []
        for t1 in t1s:
            segments = usid.path_address(plane, src.t0, t1, dst.t0, dst.port, usid.DECAP)
            hops.append(f"nexthop encap seg6 mode encap.red segs {segments} via {_UP} dev eth{plane + 1}")
        spread += hops
        there, own = usid.port_address(plane, *dst), usid.port_address(plane, *src)
        lines.append(f"route replace {there}/128 src {own} {' '.join(hops)}")
    there, own = usid.fabric_address(*dst), usid.fabric_address(*src)
    return [*lines, f"route replace {there}/128 src {own} {' '.join(spread)}"]


def _mac(kind: int, plane: int, a: int, b: int) -> str:
    """A locally administered address that says which port it is."""
    return ":".join(f"{octet:02x}" for octet in (kind, plane, a >> 8, a & 0xFF, b >> 8, b & 0xFF))

"""What each kind of fault asks of a lab: one small pure function a kind.

Knows: ports, rules, queues, hosts and files of the lab as it was built. Must not know: names of kinds, how settings are
written (catalog.py), or how effects come about (worker.py).

There is no netem on many kernels, so nothing here needs it: carrier is the far end of a veth pair, loss and marks are
nftables at a port's ingress, shaping and reordering are tc queues, hosts are cgroups, facts are files.
"""

from __future__ import annotations

import functools
import posixpath
import re
from collections.abc import Callable, Mapping, Sequence

from fairlead.errors import LabError
from fairlead.lab import hosttree, wiring
from fairlead.lab.faults.effects import Effects, Flap, HostFile, Port
from fairlead.lab.shape import LabShape
from fairlead.spec import usid

Settings = Mapping[str, str]

FAKETIME_PLACE = "@FAKETIME@"
"""Stands for libfaketime's path, which is known only on the machine."""


class View:
    """What a kind may look at: the lab's shape, its links, and each host's files before any fault."""

    def __init__(self, shape: LabShape, tree: Callable[[str], hosttree.Tree]) -> None:
        self.shape, self.tree = shape, tree

    @functools.cached_property
    def links(self) -> dict[str, wiring.Link]:
        """Every link of the fabric by name."""
        return {link.name: link for link in wiring.links(self.shape)}


def table_name(fault: int) -> str:
    """The nftables table of a fault, in every namespace it touches."""
    return f"fairlead_fault_{fault}"


def _ends(view: View, target: str, sides: str = "both") -> list[wiring.End]:
    """The ends at which packets of a direction arrive."""
    link = view.links[target]
    return {"both": [link.upper, link.lower], "up": [link.upper], "down": [link.lower]}[sides]


def _ingress(ends: Sequence[wiring.End], fault: int, rule: str) -> Effects:
    """A rule on every packet that arrives at the ends, ahead of everything else the kernel does with it."""
    return Effects(filters={_port(end): {fault: _table(fault, end.device, "ingress", rule)} for end in ends})


def _table(fault: int, device: str, hook: str, rule: str) -> str:
    return (
        f"table netdev {table_name(fault)} {{\n chain {hook}_{device} {{\n"
        f'  type filter hook {hook} device "{device}" priority -500; policy accept;\n  {rule}\n }}\n}}'
    )


def _port(end: wiring.End) -> Port:
    return Port(end.netns, end.device)


def _chance(percent: str) -> str:
    """A condition that holds for a share of packets; none for all of them, which `numgen` cannot say."""
    share = round(float(percent) * 10_000)
    return f"numgen random mod 1000000 < {share}" if share < 1_000_000 else ""


def link_down(view: View, fault: int, target: str, _: Settings) -> Effects:
    """The end closer to T1 is taken down: the other sees its carrier go, and keeps its addresses."""
    link = view.links[target]
    files: dict[HostFile, bytes | None] = {}
    if link.lower.device.startswith("eth"):
        port = f"sys/class/infiniband/mlx5_{int(link.lower.device[3:]) - 1}/ports/1"
        if f"{port}/state" in view.tree(link.lower.netns):
            files[HostFile(link.lower.netns, f"{port}/state")] = b"1: DOWN\n"
            files[HostFile(link.lower.netns, f"{port}/phys_state")] = b"3: Disabled\n"
    return Effects(down={_port(link.upper): fault}, files=files)


def silent_drop(view: View, fault: int, target: str, s: Settings) -> Effects:
    """Packets are dropped where they arrive, so that whoever sends them sees nothing."""
    return _ingress(_ends(view, target, s["side"]), fault, "counter drop")


def one_way_drop(view: View, fault: int, target: str, _: Settings) -> Effects:
    """Packets from one host's addresses are dropped at every port of the other."""
    here, there = target.split(":")
    topo = view.shape.topology
    sources = ", ".join(
        str(usid.port_address(plane, *topo.seat(view.shape.nodes.index(here)))) for plane in range(topo.planes)
    )
    ends = [link.lower for link in view.links.values() if link.lower.netns == there]
    return _ingress(ends, fault, f"ip6 saddr {{ {sources} }} counter drop")


def switch_down(view: View, fault: int, target: str, _: Settings) -> Effects:
    """All ports of the switch are taken down; its neighbours see their carrier go."""
    netns = wiring.netns_of(target)
    ports = [_port(e) for link in view.links.values() for e in (link.lower, link.upper) if e.netns == netns]
    return Effects(down=dict.fromkeys(ports, fault))


def flap(view: View, fault: int, target: str, s: Settings) -> Effects:
    """The end closer to T1 goes down and comes back."""
    return Effects(flaps={_port(view.links[target].upper): Flap(float(s["down_s"]), float(s["up_s"]))})


def rate(view: View, fault: int, target: str, s: Settings) -> Effects:
    """Both ends are shaped to another rate."""
    ends = _ends(view, target)
    return Effects(queues={_port(e): (wiring.shaping(e.device, float(s["mbps"]), view.shape),) for e in ends})


def loss(view: View, fault: int, target: str, s: Settings) -> Effects:
    """A random share of packets is dropped where it arrives."""
    return _ingress(_ends(view, target, s["side"]), fault, f"{_chance(s['percent'])} counter drop")


def ecn_mark(view: View, fault: int, target: str, s: Settings) -> Effects:
    """A random share of the packets that may be marked is marked, as a congested switch would."""
    rule = f"ip6 ecn != not-ect {_chance(s['percent'])} counter ip6 ecn set ce"
    return _ingress(_ends(view, target, s["side"]), fault, rule)


def duplicate(view: View, fault: int, target: str, s: Settings) -> Effects:
    """A random share of packets is sent twice, by the port that sends them."""
    link = view.links[target]
    senders = {"both": [link.lower, link.upper], "up": [link.lower], "down": [link.upper]}[s["side"]]
    # the copy passes this rule again; its mark keeps it from being copied without end
    rule = f'meta mark != 0xfa1b {_chance(s["percent"])} meta mark set 0xfa1b counter dup to "%s"'
    return Effects(filters={_port(e): {fault: _table(fault, e.device, "egress", rule % e.device)} for e in senders})


def reorder(view: View, fault: int, target: str, s: Settings) -> Effects:
    """A share of packets waits in a slow queue beside the fast one, so that later packets overtake them."""
    shape, fast = view.shape, view.links[target].rate_mbps
    # as much as its share of a full link: it never falls behind for good, and a packet waits for those before it
    slow = max(fast * float(s["percent"]) / 100, 0.1)
    queues: dict[Port, tuple[str, ...]] = {}
    filters: dict[Port, dict[int, str]] = {}
    for end in _ends(view, target):
        dev, burst = end.device, f"burst {shape.burst_kib}kb"
        queues[_port(end)] = (
            f"qdisc replace dev {dev} root handle 1: htb default 10",
            f"class replace dev {dev} parent 1: classid 1:1 htb rate {fast}mbit {burst} c{burst}",
            f"class replace dev {dev} parent 1:1 classid 1:10 htb rate {fast}mbit {burst} prio 0",
            # next to no bucket: a packet goes at once only if the one before it has been paid for
            f"class replace dev {dev} parent 1:1 classid 1:20 htb rate {slow:.3f}mbit burst 64 cburst 64 prio 7",
            f"qdisc replace dev {dev} parent 1:10 handle 10: bfifo limit {shape.buffer_kib}kb",
            f"qdisc replace dev {dev} parent 1:20 handle 20: bfifo limit {shape.buffer_kib}kb",
        )
        rule = f"{_chance(s['percent'])} counter meta priority set 1:20"
        filters[_port(end)] = {fault: _table(fault, dev, "egress", rule)}
    return Effects(queues=queues, filters=filters)


def mtu_black_hole(view: View, fault: int, target: str, s: Settings) -> Effects:
    """Packets above a size are dropped where they arrive, and no ICMP says so."""
    return _ingress(_ends(view, target, s["side"]), fault, f"meta length > {s['bytes']} counter drop")


def node_dead(view: View, fault: int, target: str, _: Settings) -> Effects:
    """A machine without power has no carrier, so nothing it was saying gets out; then everything on it is killed."""
    links = (*view.links.values(), *wiring.management_links(view.shape))
    far = [_port(link.upper) for link in links if link.lower.netns == target]
    return Effects(down=dict.fromkeys(far, fault), dead={target: fault})


def node_hung(view: View, fault: int, target: str, _: Settings) -> Effects:
    """Every process stands still; the kernel below goes on."""
    return Effects(hung={target: fault})


def slow_node(view: View, fault: int, target: str, s: Settings) -> Effects:
    """All processes together get a share of one processor."""
    return Effects(cpu_pct={target: float(s["percent"])})


def disk_full(view: View, fault: int, target: str, s: Settings) -> Effects:
    """A file takes up the host's own file space."""
    return Effects(disk_pct={target: float(s["percent"])})


def clock_skew(view: View, fault: int, target: str, s: Settings) -> Effects:
    """Every program started from now on is handed another time by a preloaded library."""
    seconds = float(s["seconds"])
    return Effects(
        files={
            HostFile(target, "etc/ld.so.preload"): f"{FAKETIME_PLACE}\n".encode(),
            HostFile(target, "etc/faketimerc"): f"{seconds:+.9g}s\n".encode(),
        }
    )


def _version(view: View, target: str, version: str, *, where: str, part: str) -> Effects:
    """Every file that names the version that stands in one file, with another one in its place."""
    tree, files = view.tree(target), dict[HostFile, bytes | None]()
    if where not in tree:
        raise _no_part(target, part)
    now = _text(tree[where]).strip()
    for path, content in tree.items():
        if path.startswith(("proc/", "sys/", "run/", "etc/")) and now in _text(content):
            files[HostFile(target, path)] = _text(content).replace(now, version).encode()
    return Effects(files=files)


def _no_part(target: str, part: str) -> LabError:
    return LabError(
        "lab/no-such-part", f"{target} shows no {part}", hint=f"fairlead lab exec {target} -- ls /sys/class"
    )


def driver_version(view: View, fault: int, target: str, s: Settings) -> Effects:
    """Every file and tool that names the GPU driver names another."""
    return _version(view, target, s["version"], where="sys/module/nvidia/version", part="GPU driver")


def library_version(view: View, fault: int, target: str, s: Settings) -> Effects:
    """Every file that names the RDMA library stack names another version."""
    return _version(view, target, s["version"], where="sys/module/mlx5_core/version", part="RDMA library stack")


def firmware_version(view: View, fault: int, target: str, s: Settings) -> Effects:
    """One HCA shows another firmware."""
    path = f"sys/class/infiniband/{s['hca']}/fw_ver"
    if path not in view.tree(target):
        raise _no_part(target, f"HCA {s['hca']}")
    return Effects(files={HostFile(target, path): f"{s['version']}\n".encode()})


def missing_hca(view: View, fault: int, target: str, s: Settings) -> Effects:
    """Everything an HCA shows is hidden."""
    tree, hca = view.tree(target), s["hca"]
    gone = [f"sys/class/infiniband/{hca}/"]
    gone += [
        path.removesuffix("ibdev") for path in tree if path.endswith("/ibdev") and _text(tree[path]).strip() == hca
    ]
    files: dict[HostFile, bytes | None] = {HostFile(target, p): None for p in tree if p.startswith(tuple(gone))}
    if not files:
        raise _no_part(target, f"HCA {hca}")
    return Effects(files=files)


def file(view: View, fault: int, target: str, s: Settings) -> Effects:
    """One file has another content, or is hidden."""
    content = None if s["content"] == "none" else _unescaped(s["content"])
    return Effects(files={HostFile(target, posixpath.normpath(s["path"]).lstrip("/")): content})


_ESCAPES = {"n": "\n", "t": "\t", "0": "\0", "\\": "\\"}


def _unescaped(text: str) -> bytes:
    r"""What `\n`, `\t`, `\0` and `\\` stand for; any other backslash is itself."""
    return re.sub(r"\\([nt0\\])", lambda m: _ESCAPES[m[1]], text).encode()


def _text(content: str | bytes) -> str:
    return content.decode("utf-8", "replace") if isinstance(content, bytes) else content

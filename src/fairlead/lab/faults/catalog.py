"""Every kind of fault: what it is aimed at, its settings, how it is done, and the effects it asks for.

Knows: what each kind means for ports, queues, filters, hosts and files. Must not know: how effects come about
(apply.py), or which faults are in force. Pure, so that a script of faults is checked whole before the first is injected.

There is no netem on many kernels, so nothing here needs it: carrier is the far end of a veth pair, loss and marks are
nftables at a port's ingress, shaping and reordering are tc queues, hosts are cgroups, facts are files.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fairlead.base.suggest import did_you_mean
from fairlead.errors import LabError, UsageError
from fairlead.lab import hosttree, wiring
from fairlead.lab.faults.effects import Effects, Flap, HostFile, Port
from fairlead.lab.shape import LabShape
from fairlead.spec import usid

Settings = Mapping[str, str]


@dataclass(frozen=True)
class View:
    """What a kind may look at: the lab's shape, and each host's files before any fault."""

    shape: LabShape
    tree: Callable[[str], hosttree.Tree]

    def link(self, name: str) -> wiring.Link:
        """A link by name."""
        return next(link for link in wiring.links(self.shape) if link.name == name)


class Setting(NamedTuple):
    """A setting of a kind: its default (None: it must be given), the values it takes, and what it means."""

    default: str | None
    pattern: str
    help: str


@dataclass(frozen=True)
class Kind:
    """One kind of fault. `on` says what a target is: link, switch, host, or pair (`n0:n1`, from the first to the second)."""

    name: str
    on: str
    how: str
    """Which tool does it, for the reference page."""
    help: str
    effects: Callable[[View, int, str, Settings], Effects]
    settings: Mapping[str, Setting]


_NUMBER = r"\d{1,9}(\.\d{1,9})?"
_PERCENT = Setting("1", r"(100(\.0+)?|\d{1,2}(\.\d{1,4})?)", "percent of packets")
_SIDES = Setting("both", "both|up|down", "`up` is towards T1, `down` towards the host")


def _ends(view: View, target: str, sides: str = "both") -> list[wiring.End]:
    """The ends at which packets of a direction arrive."""
    link = view.link(target)
    return {"both": [link.upper, link.lower], "up": [link.upper], "down": [link.lower]}[sides]


def _ingress(ends: Sequence[wiring.End], fault: int, rule: str) -> Effects:
    """A rule on every packet that arrives at the ends, ahead of everything else the kernel does with it."""
    return Effects(filters={_port(end): {fault: _table(fault, end.device, "ingress", rule)} for end in ends})


def _table(fault: int, device: str, hook: str, rule: str) -> str:
    return (
        f"table netdev {table_name(fault)} {{\n chain {hook}_{device} {{\n"
        f'  type filter hook {hook} device "{device}" priority -500; policy accept;\n  {rule}\n }}\n}}'
    )


def table_name(fault: int) -> str:
    """The nftables table of a fault, in every namespace it touches."""
    return f"fairlead_fault_{fault}"


def _port(end: wiring.End) -> Port:
    return Port(end.netns, end.device)


def _chance(percent: str) -> str:
    return f"numgen random mod 1000000 < {round(float(percent) * 10_000)}"


def _link_down(view: View, fault: int, target: str, _: Settings) -> Effects:
    link = view.link(target)
    files: dict[HostFile, bytes | None] = {}
    if link.lower.device.startswith("eth"):
        port = f"sys/class/infiniband/mlx5_{int(link.lower.device[3:]) - 1}/ports/1"
        if f"{port}/state" in view.tree(link.lower.netns):
            files[HostFile(link.lower.netns, f"{port}/state")] = b"1: DOWN\n"
            files[HostFile(link.lower.netns, f"{port}/phys_state")] = b"3: Disabled\n"
    # the end closer to T1 is taken down: the other sees its carrier go, and keeps its addresses
    return Effects(down={_port(link.upper): fault}, files=files)


def _silent_drop(view: View, fault: int, target: str, s: Settings) -> Effects:
    return _ingress(_ends(view, target, s["side"]), fault, "counter drop")


def _one_way(view: View, fault: int, target: str, _: Settings) -> Effects:
    here, there = target.split(":")
    topo = view.shape.topology
    sources = ", ".join(
        str(usid.port_address(plane, *topo.seat(view.shape.nodes.index(here)))) for plane in range(topo.planes)
    )
    ends = [link.lower for link in wiring.links(view.shape) if link.lower.netns == there]
    return _ingress(ends, fault, f"ip6 saddr {{ {sources} }} counter drop")


def _switch_down(view: View, fault: int, target: str, _: Settings) -> Effects:
    netns = wiring.netns_of(target)
    ports = [_port(e) for link in wiring.links(view.shape) for e in (link.lower, link.upper) if e.netns == netns]
    return Effects(down=dict.fromkeys(ports, fault))


def _flap(view: View, fault: int, target: str, s: Settings) -> Effects:
    return Effects(flaps={_port(view.link(target).upper): Flap(float(s["down_s"]), float(s["up_s"]))})


def _rate(view: View, fault: int, target: str, s: Settings) -> Effects:
    ends = _ends(view, target)
    return Effects(queues={_port(e): (wiring.shaping(e.device, float(s["mbps"]), view.shape),) for e in ends})


def _loss(view: View, fault: int, target: str, s: Settings) -> Effects:
    return _ingress(_ends(view, target, s["side"]), fault, f"{_chance(s['percent'])} counter drop")


def _ecn(view: View, fault: int, target: str, s: Settings) -> Effects:
    rule = f"ip6 ecn != not-ect {_chance(s['percent'])} counter ip6 ecn set ce"
    return _ingress(_ends(view, target, s["side"]), fault, rule)


def _duplicate(view: View, fault: int, target: str, s: Settings) -> Effects:
    # a copy is sent by the port that sent the first one, so it leaves as the other end's `ends` see it
    link = view.link(target)
    senders = {"both": [link.lower, link.upper], "up": [link.lower], "down": [link.upper]}[s["side"]]
    # the copy passes this rule again; its mark keeps it from being copied without end
    rule = f'meta mark != 0xfa1b {_chance(s["percent"])} meta mark set 0xfa1b counter dup to "%s"'
    return Effects(filters={_port(e): {fault: _table(fault, e.device, "egress", rule % e.device)} for e in senders})


def _reorder(view: View, fault: int, target: str, s: Settings) -> Effects:
    """A share of packets waits in a slow queue beside the fast one, so that later packets overtake them."""
    link, shape = view.link(target), view.shape
    fast = link.rate_mbps
    # as much as its share of a full link: it never falls behind for good, and a packet waits for those before it
    slow = max(fast * float(s["percent"]) / 100, 0.1)
    bucket = 64  # next to nothing: a packet goes at once only if the one before it has been paid for
    queues: dict[Port, tuple[str, ...]] = {}
    filters: dict[Port, dict[int, str]] = {}
    for end in _ends(view, target):
        dev = end.device
        queues[_port(end)] = (
            f"qdisc replace dev {dev} root handle 1: htb default 10",
            f"class replace dev {dev} parent 1: classid 1:1 htb rate {fast}mbit burst {shape.burst_kib}kb cburst {shape.burst_kib}kb",
            f"class replace dev {dev} parent 1:1 classid 1:10 htb rate {fast}mbit burst {shape.burst_kib}kb prio 0",
            f"class replace dev {dev} parent 1:1 classid 1:20 htb rate {slow:.3f}mbit burst {bucket} cburst {bucket} prio 7",
            f"qdisc replace dev {dev} parent 1:10 handle 10: bfifo limit {shape.buffer_kib}kb",
            f"qdisc replace dev {dev} parent 1:20 handle 20: bfifo limit {shape.buffer_kib}kb",
        )
        rule = f"{_chance(s['percent'])} counter meta priority set 1:20"
        filters[_port(end)] = {fault: _table(fault, dev, "egress", rule)}
    return Effects(queues=queues, filters=filters)


def _mtu(view: View, fault: int, target: str, s: Settings) -> Effects:
    return _ingress(_ends(view, target, s["side"]), fault, f"meta length > {s['bytes']} counter drop")


def _dead(view: View, fault: int, target: str, _: Settings) -> Effects:
    # a machine without power has no carrier, so nothing it was saying gets out
    far = [link.upper for link in (*wiring.links(view.shape), *wiring.management_links(view.shape))
           if link.lower.netns == target]  # fmt: skip
    return Effects(down={_port(end): fault for end in far}, dead={target: fault})


def _hung(view: View, fault: int, target: str, _: Settings) -> Effects:
    return Effects(hung={target: fault})


def _slow(view: View, fault: int, target: str, s: Settings) -> Effects:
    return Effects(cpu_pct={target: float(s["percent"])})


def _disk(view: View, fault: int, target: str, s: Settings) -> Effects:
    return Effects(disk_pct={target: float(s["percent"])})


def _skew(view: View, fault: int, target: str, s: Settings) -> Effects:
    seconds = float(s["seconds"])
    return Effects(
        files={
            HostFile(target, "etc/ld.so.preload"): f"{FAKETIME_PLACE}\n".encode(),
            HostFile(target, "etc/faketimerc"): f"{seconds:+.9g}s\n".encode(),
        }
    )


FAKETIME_PLACE = "@FAKETIME@"
"""Stands for libfaketime's path, which is known only on the machine."""


def _version(view: View, fault: int, target: str, s: Settings, *, where: Sequence[str], of: str) -> Effects:
    """Every file that names a version, with another one in its place."""
    tree, files = view.tree(target), dict[HostFile, bytes | None]()
    now = next((_text(tree[path]).strip() for path in where if path in tree), None)
    for path, content in tree.items():
        if now and path.startswith(("proc/", "sys/", "run/", "etc/")) and now in _text(content):
            files[HostFile(target, path)] = _text(content).replace(now, s["version"]).encode()
    if not files:
        raise LabError("lab/no-such-part", f"{target} shows no {of}", hint="fairlead lab status")
    return Effects(files=files)


def _driver(view: View, fault: int, target: str, s: Settings) -> Effects:
    return _version(view, fault, target, s, where=["sys/module/nvidia/version"], of="GPU driver")


def _library(view: View, fault: int, target: str, s: Settings) -> Effects:
    return _version(view, fault, target, s, where=["sys/module/mlx5_core/version"], of="RDMA library version")


def _firmware(view: View, fault: int, target: str, s: Settings) -> Effects:
    return _version(view, fault, target, s, where=[f"sys/class/infiniband/{s['hca']}/fw_ver"], of=f"HCA {s['hca']}")


def _no_hca(view: View, fault: int, target: str, s: Settings) -> Effects:
    prefix = f"sys/class/infiniband/{s['hca']}/"
    files = {HostFile(target, path): None for path in view.tree(target) if path.startswith(prefix)}
    if not files:
        raise LabError("lab/no-such-part", f"{target} shows no HCA {s['hca']}", hint="they are mlx5_0, mlx5_1, ...")
    return Effects(files=dict(files))


def _file(view: View, fault: int, target: str, s: Settings) -> Effects:
    content = None if s["content"] == "none" else s["content"].encode().decode("unicode_escape").encode("latin-1")
    return Effects(files={HostFile(target, s["path"].lstrip("/")): content})


def _text(content: str | bytes) -> str:
    return content.decode("utf-8", "replace") if isinstance(content, bytes) else content


_SECONDS = Setting("1", _NUMBER, "seconds")
_HCA = Setting("mlx5_0", r"[A-Za-z0-9_]+", "the HCA's name")
_NFT_IN, _NFT_OUT = "nftables, netdev ingress of the receiving end", "nftables, netdev egress of the sending end"

KINDS = {
    kind.name: kind
    for kind in (
        Kind("link-down", "link", "`ip link set down` of the far end", "Carrier goes at both ends.", _link_down, {}),
        Kind("silent-drop", "link", _NFT_IN, "Every packet vanishes; carrier stays.", _silent_drop, {"side": _SIDES}),
        Kind("one-way-drop", "pair", _NFT_IN, "Packets of one host to another vanish in all planes.", _one_way, {}),
        Kind("switch-down", "switch", "`ip link set down` of its ports", "All its ports lose carrier.", _switch_down, {}),
        Kind(
            "flap", "link", "`ip link set down` and `up` in a loop", "The link goes and comes.", _flap,
            {"down_s": _SECONDS, "up_s": _SECONDS},
        ),
        Kind(
            "rate", "link", "tc tbf", "The link is slower, both ways.", _rate,
            {"mbps": Setting(None, _NUMBER, "megabits per second")},
        ),
        Kind("loss", "link", _NFT_IN, "A share of packets vanishes.", _loss, {"percent": _PERCENT, "side": _SIDES}),
        Kind("ecn-mark", "link", _NFT_IN, "A share of ECN-capable packets is marked CE.", _ecn,
             {"percent": _PERCENT, "side": _SIDES}),
        Kind("duplicate", "link", _NFT_OUT, "A share of packets arrives twice.", _duplicate,
             {"percent": _PERCENT, "side": _SIDES}),
        Kind("reorder", "link", "tc htb with a slow class, nftables egress", "A share of packets is overtaken, the more the fuller the link.",
             _reorder, {"percent": _PERCENT}),
        Kind("mtu-black-hole", "link", _NFT_IN, "Packets above a size vanish without a word.", _mtu,
             {"bytes": Setting("1500", r"\d{2,5}", "largest size that passes, without the Ethernet header"), "side": _SIDES}),
        Kind("node-dead", "host", "kill of its PID namespace and cgroup, far ends down", "The host loses power; healing boots it.",
             _dead, {}),
        Kind("node-hung", "host", "cgroup freezer, else SIGSTOP", "Everything on the host stands still; its kernel answers.",
             _hung, {}),
        Kind("slow-node", "host", "cgroup cpu quota", "The host gets a share of one processor.", _slow,
             {"percent": Setting("10", _NUMBER, "percent of one processor")}),
        Kind("disk-full", "host", "a file that fills its tmpfs", "The host's own file space fills up.", _disk,
             {"percent": Setting("100", r"(100|\d{1,2})(\.\d+)?", "how full")}),
        Kind("clock-skew", "host", "libfaketime by /etc/ld.so.preload", "Programs started from now on see another time.", _skew,
             {"seconds": Setting("60", r"[+-]?\d{1,9}(\.\d{1,9})?", "ahead, or with a minus behind")}),
        Kind("driver-version", "host", "its tree of facts", "Another GPU driver.", _driver,
             {"version": Setting(None, r"[\w.+-]+", "the version it shows")}),
        Kind("library-version", "host", "its tree of facts", "Another RDMA library stack.", _library,
             {"version": Setting(None, r"[\w.+-]+", "the version it shows")}),
        Kind("firmware-version", "host", "its tree of facts", "Another firmware in an HCA.", _firmware,
             {"version": Setting(None, r"[\w.+-]+", "the version it shows"), "hca": _HCA}),
        Kind("missing-hca", "host", "its tree of facts", "An HCA is gone.", _no_hca, {"hca": _HCA}),
        Kind("file", "host", "its tree of facts", "Any one file, changed or hidden.", _file,
             {"path": Setting(None, r"/.+", "the file on the host"),
              "content": Setting("none", r"(?s).*", "what it holds (\\n for a line end); `none` hides it")}),
    )
}  # fmt: skip


def kind_of(name: str) -> Kind:
    """A kind by name. Raises UsageError `lab/unknown-fault` with the nearest one."""
    if name not in KINDS:
        raise UsageError(
            "lab/unknown-fault", f"no fault `{name}`; {did_you_mean(name, KINDS)}", hint="fairlead lab fault --kinds"
        )
    return KINDS[name]


def settings_of(kind: Kind, given: Settings) -> dict[str, str]:
    """All settings of a fault, defaults filled in. Raises UsageError `lab/bad-setting`."""
    for name, value in given.items():
        if name not in kind.settings:
            known = did_you_mean(name, kind.settings) if kind.settings else "it has none"
            raise UsageError(
                "lab/bad-setting", f"{kind.name} has no setting `{name}`; {known}", hint="fairlead lab fault --kinds"
            )
        if not re.fullmatch(kind.settings[name].pattern, value):
            raise UsageError(
                "lab/bad-setting",
                f"`{value}` is not {name} of {kind.name}: {kind.settings[name].help}",
                hint="fairlead lab fault --kinds",
            )
    out = {}
    for name, setting in kind.settings.items():
        value = given.get(name, setting.default)
        if value is None:
            raise UsageError(
                "lab/bad-setting", f"{kind.name} needs {name}=... ({setting.help})", hint="fairlead lab fault --kinds"
            )
        out[name] = value
    return out


def targets_of(kind: Kind, pattern: str, shape: LabShape) -> list[str]:
    """The things a pattern names (`p2/n3`, `p*/n3`). Raises UsageError `lab/unknown-target` where there is none."""
    known = {
        "link": lambda: [link.name for link in wiring.links(shape)],
        "switch": lambda: list(shape.topology.switches()),
        "host": lambda: list(shape.nodes),
        "pair": lambda: [f"{a}:{b}" for a in shape.nodes for b in shape.nodes if a != b],
    }[kind.on]()
    found = [name for name in known if _matches(name, pattern)]
    if not found:
        raise UsageError(
            "lab/unknown-target",
            f"no {kind.on} `{pattern}` in the lab; {did_you_mean(pattern, known)}",
            hint="fairlead lab status",
        )
    return found


def _matches(name: str, pattern: str) -> bool:
    """Shell patterns, where `*` does not cross a `/`."""
    parts, wanted = name.split("/"), pattern.split("/")
    return len(parts) == len(wanted) and all(fnmatch.fnmatchcase(p, w) for p, w in zip(parts, wanted, strict=True))

"""Accelerated networking as the guest has it: each synthetic NIC's counters and queues, and what manages each virtual
function now.

A synthetic NIC is one whose driver is hv_netvsc. Its counters `vf_*` are of what went past it, through the virtual
function (learn.microsoft.com: azure/virtual-network/accelerated-networking-how-it-works). Read by ethtool's ioctl, so
that ethtool need not be there; a captured tree holds them as `ethtool -S` and `ethtool -l` print them.
"""

from __future__ import annotations

import array
import fcntl
import re
import socket
import struct
from typing import Any, Callable

from fairlead.probe.readers.net import MAX_LINKS, SYS_NET
from fairlead.probe.readers.tree import Absent, Hole, Tree, key_values, number, read_or_hole, safe_name

NETVSC = "hv_netvsc"
VF_DRIVERS = ("mlx4_core", "mlx4_en", "mlx5_core", "mana")
SIOCETHTOOL = 0x8946
GSTRINGS, GSTATS, GSSET_INFO, GCHANNELS = 0x1B, 0x1D, 0x37, 0x3C
SS_STATS, NAME_BYTES, MAX_STATS = 1, 32, 4096
"""linux include/uapi/linux/ethtool.h"""

PER_QUEUE = re.compile(r"(cpu|[rt]x_queue_|vf_?[rt]x_?q)\d")
"""Counters of single processors and queues: a NIC of a large VM has thousands of them."""

CHANNEL_NAMES = ("RX", "TX", "Other", "Combined")


def read_accelnet(tree: Tree) -> dict[str, Any]:
    """`nics`: synthetic NIC -> counters and queues; `vfs`: virtual function -> what managers say of it."""
    tree.source(("nics",), SYS_NET + "/")
    tree.source(("vfs",), SYS_NET + "/")
    nics, vfs = {}, {}
    for name in tree.names(SYS_NET)[:MAX_LINKS]:
        driver = read_or_hole(tree.optional_link, SYS_NET + "/" + name + "/device/driver")
        if driver == NETVSC:
            nics[safe_name(name)] = _synthetic(tree, name)
        elif driver in VF_DRIVERS and tree.attr(SYS_NET + "/" + name + "/type") == "1":
            vfs[safe_name(name)] = _function(tree, name)
    return {"nics": nics, "vfs": vfs}


def _synthetic(tree: Tree, name: str) -> dict[str, Any]:
    here = ("nics", safe_name(name))
    base = SYS_NET + "/" + name + "/statistics/"
    tree.source((*here, "stats"), "ethtool -S " + name)
    tree.source((*here, "channels"), "ethtool -l " + name)
    tree.source((*here, "tx_bytes"), base + "tx_bytes")
    tree.source((*here, "rx_bytes"), base + "rx_bytes")
    return {
        "stats": read_or_hole(_stats, tree, name),
        "channels": read_or_hole(_channels, tree, name),
        "tx_bytes": tree.number(base + "tx_bytes"),
        "rx_bytes": tree.number(base + "rx_bytes"),
    }


def _function(tree: Tree, name: str) -> dict[str, Any]:
    """A function's state by udev's database, systemd-networkd and NetworkManager; empty where one has none of it."""
    here, index = ("vfs", safe_name(name)), tree.attr(SYS_NET + "/" + name + "/ifindex")
    places = {
        "udev": "/run/udev/data/n%s",
        "networkd": "/run/systemd/netif/links/%s",
        "nm": "/run/NetworkManager/devices/%s",
    }
    found: dict[str, Any] = {"ifindex": number(index) if isinstance(index, str) else index}
    tree.source((*here, "ifindex"), SYS_NET + "/" + name + "/ifindex")
    for key, place in places.items():
        if isinstance(index, str):
            tree.source((*here, key), place % index)
            found[key] = read_or_hole(_state, tree, place % index)
        else:
            found[key] = index
    return found


STATE_KEYS = ("ADMIN_STATE", "NETWORK_FILE", "managed", "NM_UNMANAGED", "ID_NET_DRIVER", "ID_NET_MANAGED_BY")


def _state(tree: Tree, path: str) -> dict[str, str]:
    """`E:NM_UNMANAGED=1` of udev, `ADMIN_STATE=unmanaged` of networkd, `managed=false` of NetworkManager."""
    lines = (line.removeprefix("E:") for line in (tree.optional(path) or "").split("\n"))
    found = key_values("\n".join(lines), "=")
    return {key: found[key] for key in STATE_KEYS if key in found}


# ---- counters and queues ---------------------------------------------------------------------------------------------


def _stats(tree: Tree, name: str) -> dict[str, Any]:
    """The counters of a NIC, without those of single queues."""
    text = _ethtool(tree, ["ethtool", "-S", name], _live_stats)
    found = {}
    for key, value in key_values(text, ":").items():
        if value and not PER_QUEUE.match(key):
            found[safe_name(key)] = number(value, "ethtool -S " + name)
    if not found:
        raise Hole("names no counter", "ethtool -S " + name)
    return found


def _channels(tree: Tree, name: str) -> dict[str, Any]:
    """`now` and `most`, combined channels: a synthetic NIC has no others."""
    source = "ethtool -l " + name
    text = _ethtool(tree, ["ethtool", "-l", name], _live_channels)
    values = re.findall(r"^Combined:\s*(\S+)", text, re.MULTILINE)
    if len(values) != 2:
        raise Hole("does not say how many channels there are", source)
    return {"most": number(values[0], source), "now": number(values[1], source)}


def _ethtool(tree: Tree, argv: list[str], live: Callable[[str], str]) -> str:
    """What ethtool prints, or would print: a live machine's kernel is asked itself, and kept in ethtool's words."""
    if not tree.live:
        return tree.run(argv, 3.0)
    try:
        text = live(argv[-1])
    except OSError as error:
        raise Hole(str(error.strerror or error).lower(), " ".join(argv)) from None
    tree.keep_output(argv, text)
    return text


def _live_stats(name: str) -> str:
    head = _asked_kernel(name, struct.pack("=IIQI", GSSET_INFO, 0, 1 << SS_STATS, 0))
    num = min(struct.unpack_from("=I", head, 16)[0], MAX_STATS)
    names = _asked_kernel(name, struct.pack("=III", GSTRINGS, SS_STATS, num) + bytes(NAME_BYTES * num))
    values = _asked_kernel(name, struct.pack("=II", GSTATS, num) + bytes(8 * num))
    lines = ["NIC statistics:"]
    for index in range(num):
        raw = names[12 + NAME_BYTES * index : 12 + NAME_BYTES * (index + 1)].split(b"\0")[0]
        label = raw.decode("ascii", "backslashreplace")
        if not PER_QUEUE.match(label):
            lines.append("     %s: %d" % (label, struct.unpack_from("=Q", values, 8 + 8 * index)[0]))
    return "\n".join(lines) + "\n"


def _live_channels(name: str) -> str:
    values = struct.unpack("=9I", _asked_kernel(name, struct.pack("=9I", GCHANNELS, *[0] * 8)))
    lines = ["Channel parameters for %s:" % name]
    for head, numbers in (("Pre-set maximums:", values[1:5]), ("Current hardware settings:", values[5:9])):
        lines.append(head)
        lines += ["%s:\t\t%d" % (label, value) for label, value in zip(CHANNEL_NAMES, numbers)]  # noqa: B905
    return "\n".join(lines) + "\n"


def _asked_kernel(name: str, question: bytes) -> bytes:
    """One SIOCETHTOOL: struct ifreq holds the name and a pointer to the question, which the kernel answers in place."""
    data = array.array("B", question)
    address, _ = data.buffer_info()
    request = struct.pack("16sP16x", name.encode(), address)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        fcntl.ioctl(asked, SIOCETHTOOL, request)
    return data.tobytes()


# ---- who uses a function past its synthetic NIC ----------------------------------------------------------------------

SS = ["ss", "-H", "-a", "-n", "-t", "-u", "-w"]


def read_bound(tree: Tree) -> dict[str, Any]:
    """Sockets bound to an interface, packet sockets, routes and policy rules: what ties a program to one NIC."""
    tree.source(("sockets",), " ".join(SS))
    tree.source(("packet",), "/proc/net/packet")
    tree.source(("routes",), "/proc/net/route")
    tree.source(("rules",), "ip rule show")
    return {
        "sockets": read_or_hole(_bound_sockets, tree),
        "packet": read_or_hole(_packet_sockets, tree),
        "routes": read_or_hole(_routed, tree),
        "rules": read_or_hole(_rules, tree),
    }


def _bound_sockets(tree: Tree) -> dict[str, list[str]]:
    """Interface -> local addresses of sockets bound to it: ss writes `10.0.0.4%eth0:68` (man 8 ss)."""
    text = tree.run(SS, 4.0, used=_bound_lines)
    found: dict[str, list[str]] = {}
    for line in text.split("\n"):
        match = re.search(r"(\S+)%([^\s:\]]+)\]?:(\S+)", line)
        if match:
            of = found.setdefault(safe_name(match.group(2)), [])
            if len(of) < 16:
                of.append(line.split()[0] + " " + match.group(1).strip("[") + ":" + match.group(3))
    return found


def _bound_lines(data: bytes) -> bytes:
    return b"\n".join(line for line in data.split(b"\n") if b"%" in line)


def _packet_sockets(tree: Tree) -> dict[str, int]:
    """Interface number -> packet sockets on it. Columns: sk RefCnt Type Proto Iface R Rmem User Inode."""
    found: dict[str, int] = {}
    for line in (tree.optional("/proc/net/packet") or "").split("\n")[1:]:
        words = line.split()
        if len(words) >= 5 and words[4] != "0":
            found[words[4]] = found.get(words[4], 0) + 1
    return found


def _routed(tree: Tree) -> list[str]:
    """Interfaces that have an IPv4 route."""
    lines = tree.read("/proc/net/route").split("\n")[1:]
    return sorted({line.split()[0] for line in lines if line.strip()})


def _rules(tree: Tree) -> list[str]:
    """Policy rules beside the kernel's own three: lookups of `local`, `main` and `default`."""
    own = re.compile(
        r"(0:\s+from all lookup local|32766:\s+from all lookup main|32767:\s+from all lookup default)\s*\Z"
    )
    try:
        text = tree.run(["ip", "rule", "show"], 3.0)
    except Absent:
        raise Hole("no such command", "ip rule show") from None
    return [line.strip()[:200] for line in text.split("\n") if line.strip() and not own.match(line.strip())][:64]

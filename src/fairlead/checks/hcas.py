"""Which RDMA ports of a node count. A port nobody wants must not fail a node, and a wanted one must not be lost.

In this order:
1. names given in the cluster file (`[[expect]] fact = "hcas"`),
2. NCCL_IB_HCA, from the environment or /etc/nccl.conf, as NCCL reads it,
3. every port with the declared link layer, without the accelerated Ethernet port; of these, ports that are Disabled or
   Sleep are left out as long as enough others remain,
4. where they do not remain: every such port, so that the one that is off is named.

Virtual functions without a network interface count as any other: nothing here asks for an interface.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from fairlead.checks.node import Node
from fairlead.records.facts import Unread

LINK_LAYERS = {"infiniband": "InfiniBand", "ethernet": "Ethernet"}
KNOWN_LAYERS = ("InfiniBand", "Ethernet", "Unspecified")
OFF = ("1: Sleep", "3: Disabled")
"""Physical states of a port that somebody switched off (linux Documentation/ABI/stable/sysfs-class-infiniband)."""


@dataclass(slots=True)
class Ports:
    """The choice: `port` is written `mlx5_ib0/1`."""

    chosen: list[str] = field(default_factory=list)
    unclear: dict[str, Unread] = field(default_factory=dict)
    """Ports, or whole devices, of which nobody could read what they are."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Port -> why it does not count."""
    by: str = ""
    """What decided, for people."""
    missing: list[str] = field(default_factory=list)
    """Named devices that are not there."""


def keys_of(port: str) -> tuple[str, str, str]:
    """The fact keys of a port below `ib.devices`: `mlx5_ib0/1` -> mlx5_ib0, ports, 1."""
    device, _, number = port.rpartition("/")
    return device, "ports", number


def choose(n: Node) -> Ports:
    """The ports of a node that count. Raises Unread where the list of devices could not be read."""
    return n.once("ports", _choose)


def ports_of(n: Node) -> list[str]:
    """The ports that count, where all of them are clear; else raises the Unread of one that is not."""
    found = choose(n)
    for hole in found.unclear.values():
        raise hole
    return found.chosen


def devices_of(n: Node) -> list[str]:
    """The devices of the ports that count."""
    return list(dict.fromkeys(port.rpartition("/")[0] for port in ports_of(n)))


def _choose(n: Node) -> Ports:
    found = Ports()
    wanted = n.expect.get("hcas")
    if wanted:
        found.by = "the names in the cluster file"
        found.missing = [name for name in wanted if name not in n.get("ib.devices")]
        _take(n, found, lambda port: port.rpartition("/")[0] in wanted, check_link=False)
        return found
    rule = _nccl(n)
    if rule:
        found.by = f"NCCL_IB_HCA={rule}"
        _take(n, found, lambda port: nccl_takes(rule, port))
        return found
    found.by = f"every {LINK_LAYERS[n.expect.link]} port"
    _take(n, found, bool)
    off = []
    for port in list(found.chosen):
        try:
            if n.get("ib.devices", *keys_of(port), "phys_state") in OFF:
                off.append(port)
        except Unread as why:
            found.chosen.remove(port)
            found.unclear[port] = why
    remaining = [p for p in found.chosen if p not in off]
    enough = n.expect.get("hca_ports")
    if off and remaining and (enough is None or len(remaining) >= enough):
        found.chosen = remaining
        found.left_out |= dict.fromkeys(off, "it is switched off, and enough others are there")
    return found


def _take(n: Node, found: Ports, wants: Callable[[str], bool], *, check_link: bool = True) -> None:
    """Sort every port of every device into chosen, left out or unclear."""
    for device in n.get("ib.devices"):
        try:
            numbers = n.get("ib.devices", device, "ports")
        except Unread as why:
            found.unclear[device] = why
            continue
        for port in (f"{device}/{number}" for number in numbers):
            if not wants(port):
                found.left_out[port] = f"not named by {found.by}"
                continue
            try:
                reason = _not_ours(n, port) if check_link else ""
            except Unread as why:
                found.unclear[port] = why
                continue
            if reason:
                found.left_out[port] = reason
            else:
                found.chosen.append(port)


def _not_ours(n: Node, port: str) -> str:
    """Why a port is none of the RDMA network's; empty if it is."""
    layer = n.get("ib.devices", *keys_of(port), "link_layer")
    if layer not in KNOWN_LAYERS:
        raise Unread(f"ib.devices.{port}.link_layer", f"`{layer[:40]}` is not a link layer")
    if layer != LINK_LAYERS[n.expect.link]:
        return f"its link layer is {layer}"
    if n.expect.link == "ethernet" and port.startswith("mlx5_an"):
        return "it belongs to the accelerated Ethernet NIC"
    return ""


def _nccl(n: Node) -> str:
    """The value of NCCL_IB_HCA: the environment wins over the file, as in NCCL."""
    return str(n.get("host.environment").get("NCCL_IB_HCA") or n.get("host.nccl_conf").get("NCCL_IB_HCA", ""))


def nccl_takes(rule: str, port: str) -> bool:
    """Whether NCCL_IB_HCA lets a port through: `^` excludes, `=` matches whole names, else prefixes; `:1` names a port.

    >>> nccl_takes("mlx5_ib", "mlx5_ib0/1"), nccl_takes("=mlx5_ib", "mlx5_ib0/1"), nccl_takes("^mlx5_an0", "mlx5_ib0/1")
    (True, False, True)
    """
    match = re.match(r"(\^?)(=?)(.*)", rule)
    assert match is not None
    excludes, exact, names = bool(match[1]), bool(match[2]), match[3]
    device, _, number = port.rpartition("/")
    hit = False
    for name in filter(None, names.split(",")):
        wanted, _, wanted_port = name.partition(":")
        same = device == wanted if exact else device.startswith(wanted)
        hit |= same and (not wanted_port or wanted_port == number)
    return hit != excludes

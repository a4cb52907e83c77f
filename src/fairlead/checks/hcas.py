"""Which RDMA ports of a node count. A port nobody wants must not fail a node, and a wanted one must not be lost.

In this order:
1. names given in the cluster file (`[[expect]] fact = "hcas"`),
2. NCCL_IB_HCA, from the environment or /etc/nccl.conf, as NCCL reads it,
3. every port with the declared link layer, without the accelerated Ethernet port; of these, ports that are Disabled or
   Sleep are left out as long as enough others remain, and of more ports than there should be those of another rate,
4. where they do not remain: every such port, so that the one that is off is named.

What could not be read of the settings or of a port's switch is taken as not set and not switched off, and every verdict
on the ports says so: a port that is down is evidence by itself, whoever chose it.

Virtual functions without a network interface count as any other: nothing here asks for an interface.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from fairlead.base.units import whole
from fairlead.checks.expect import Expect
from fairlead.checks.node import Node
from fairlead.records.facts import Facts, NodeFacts, Unread

LINK_LAYERS = {"infiniband": "InfiniBand", "ethernet": "Ethernet"}
KNOWN_LAYERS = ("InfiniBand", "Ethernet", "Unspecified")
OFF = ("Sleep", "Disabled")
"""Physical states of a port that somebody switched off (linux Documentation/ABI/stable/sysfs-class-infiniband)."""


STATES = ("", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER")
PHYSICAL_STATES = (
    "",
    "Sleep",
    "Polling",
    "Disabled",
    "PortConfigurationTraining",
    "LinkUp",
    "LinkErrorRecovery",
    "Phy Test",
)
"""By their numbers (linux include/rdma/ib_verbs.h). 0 is what drivers give that know none (Network Direct)."""


def state_of(text: str, names: tuple[str, ...]) -> str:
    """A state by its name, empty where the driver knows none: the kernel writes `4: ACTIVE`, tools often only the word.

    >>> state_of("4: ACTIVE", STATES), state_of("Active", STATES), state_of("5: LINK_UP", PHYSICAL_STATES)
    ('ACTIVE', 'ACTIVE', 'LinkUp')
    >>> state_of("0: <unknown>", PHYSICAL_STATES)
    ''
    """
    number, _, word = text.partition(":")
    if (place := whole(number.strip())) is not None:
        return names[place] if place < len(names) else (word.strip() or text)
    plain = _plain(text)
    return next((name for name in names if _plain(name) == plain), text.strip())


def _plain(text: str) -> str:
    return re.sub(r"[^a-z]", "", text.casefold())


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


def is_active(n: Node, port: str) -> bool:
    """Whether a port is up. What follows from its being down is no second fault; ib/port-state has told it."""
    return state_of(n.get_or("ACTIVE", "the port is active", "ib.devices", *keys_of(port), "state"), STATES) == "ACTIVE"


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


def rdma_devices(record: NodeFacts, expect: Expect) -> frozenset[str]:
    """Devices whose ports count, as one who looks at the library from outside has to know them.

    A setting of the library says which of several networks is the job's; one that leaves fewer than there should be is
    no such choice. Raises Unread where a port may count or not.
    """
    n = Node(Facts(record), expect)
    found, enough = choose(n), expect.get("hca_ports")
    if not expect.get("hcas") and enough and len(found.chosen) < enough:
        found = _by_link(n)
    for hole in found.unclear.values():
        raise hole
    active = [port for port in found.chosen if is_active(n, port)]
    # that a port is down is told already; where as many as there should be are active, it may be one that nobody uses
    ports = active if len(active) >= (enough or 1) and not expect.get("hcas") else found.chosen
    return frozenset(port.rpartition("/")[0] for port in ports) | frozenset(found.missing)


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
    return _by_link(n)


def _by_link(n: Node) -> Ports:
    found = Ports(by=f"every {LINK_LAYERS[n.expect.link]} port")
    _take(n, found, bool)
    off = []
    for port in found.chosen:
        state = n.get_or("", "no port is switched off", "ib.devices", *keys_of(port), "phys_state")
        if state_of(state, PHYSICAL_STATES) in OFF:
            off.append(port)
    remaining = [p for p in found.chosen if p not in off]
    enough = n.expect.get("hca_ports")
    if off and remaining and (enough is None or len(remaining) >= enough):
        found.chosen = remaining
        found.left_out |= dict.fromkeys(off, "it is switched off, and enough others are there")
    if enough and len(found.chosen) > enough:
        _leave_out_others(n, found, enough)
    return found


def _leave_out_others(n: Node, found: Ports, enough: int) -> None:
    """Of more ports than there should be, those of another rate are for storage or the front end.

    Only where exactly enough have a right rate: with one too few, the slow one may be a rail, and all of them count. A
    port that is down shows no rate of its own, and stays.
    """
    accepted = n.expect.get("hca_rates_gbps") or ()
    right = [p for p in found.chosen if rate_of(n.peek("ib.devices", *keys_of(p), "rate")) in accepted]
    if len(right) == enough:
        others = [p for p in found.chosen if p not in right and _is_up(n, p)]
        found.chosen = [p for p in found.chosen if p not in others]
        found.left_out |= dict.fromkeys(others, "its rate is another, and enough ports of the right one are there")


def _is_up(n: Node, port: str) -> bool:
    physical = n.get_or("", "no port is switched off", "ib.devices", *keys_of(port), "phys_state")
    return is_active(n, port) and state_of(physical, PHYSICAL_STATES) in ("LinkUp", "")


def rate_of(text: object) -> float | None:
    """The number of a rate such as `400 Gb/sec (4X NDR)`, in Gb/s; None where there is none."""
    try:
        return float(str(text).split()[0])
    except (ValueError, IndexError):
        return None


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
    places = {"host.environment": "the environment", "host.nccl_conf": "/etc/nccl.conf"}
    for path, what in places.items():
        rule = n.get_or({}, f"{what} does not set NCCL_IB_HCA", path).get("NCCL_IB_HCA")
        if rule:
            return str(rule)
    return ""


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

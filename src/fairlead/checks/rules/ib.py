"""Rules about RDMA devices and ports (ids I). Which ports they are asked about, hcas.py decides."""

from __future__ import annotations

import re

from fairlead.checks.hcas import (
    LINK_LAYERS,
    PHYSICAL_STATES,
    STATES,
    choose,
    devices_of,
    is_active,
    keys_of,
    ports_of,
    rate_of,
    state_of,
)
from fairlead.checks.messages import judge_messages
from fairlead.checks.node import Node, Outcome, bad, number_of, ok, skip, unknown, warn
from fairlead.checks.rules.interconnect import spread
from fairlead.checks.spare import MAYBE_UNUSED
from fairlead.records.facts import Unread

IB = "ib.devices"
PCI_ADDRESS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\Z")
INFINIBAND_CLASS = "0x0207"


# ---- devices -------------------------------------------------------------------------------------------------------


def driver(n: Node, part: str) -> Outcome:
    """The RDMA part of the driver runs: a registered device proves it; without any, the list of modules tells."""
    devices = n.get(IB)
    if devices:
        return ok(f"{len(devices)} RDMA devices registered")
    modules = n.get("modules.loaded")
    missing = [m for m in ("ib_uverbs", "mlx5_ib") if m not in modules]
    if missing and "mana_ib" not in modules:
        return bad(f"no RDMA device, and the module {missing[0]} is not loaded", missing=missing)
    return bad("the RDMA modules are loaded but no device registered with them")


def count(n: Node, part: str) -> Outcome:
    """As many RDMA ports count as the VM size has; without a number, at least one."""
    ports, expected = choose(n), n.expect.get("hca_ports")
    at_most = len(ports.chosen) + len(ports.unclear)
    if ports.unclear and expected and at_most < expected and all("/" in port for port in ports.unclear):
        return bad(f"at most {at_most} of {expected} RDMA ports", value=at_most, expected=expected)
    found = len(ports_of(n))
    data = {"value": found, "expected": expected, "chosen_by": ports.by, "limit_source": n.expect.origin("hca_ports")}
    if ports.missing:
        return bad(f"not there: {', '.join(ports.missing)}", **data)
    if not found:
        return bad(f"no RDMA port counts, by {ports.by}" + (f"; expected {expected}" if expected else ""), **data)
    wanted = n.expect.get("hcas")
    if expected is None or wanted or found == expected:
        return ok(f"{found} RDMA ports", **data)
    return (
        bad(f"{found} of {expected} RDMA ports", **data)
        if found < expected
        else warn(f"{found} RDMA ports, expected {expected}", **data)
    )


def functions(n: Node) -> list[str]:
    """InfiniBand functions on PCI."""
    return [a for a in n.get("pci.devices") if n.get("pci.devices", a, "class").startswith(INFINIBAND_CLASS)]


def registered(n: Node, part: str) -> Outcome:
    """Every InfiniBand function on PCI has become an RDMA device: names the one whose driver did not start."""
    holders = {n.get(IB, device, "pci") for device in n.get(IB)}
    if part in holders:
        return ok("has its RDMA device")
    bound = n.get("pci.devices", part, "driver")
    if bound == "vfio-pci":
        return skip("it is handed on to a virtual machine")
    return bad(
        "no RDMA device came of this PCI function"
        + (f", though {bound} holds it" if bound else ": no driver holds it"),
        driver=bound,
    )


def char_devices(n: Node, part: str) -> Outcome:
    """Programs can open every RDMA device: one uverbs file each. umad and issm files are optional and not asked for."""
    wanted = devices_of(n)
    if not wanted:
        return skip("no RDMA device counts")
    by_device = {n.get("ib.files.uverbs", name): name for name in n.get("ib.files.uverbs")}
    files = n.get("ib.files.dev")
    strange = [f"`{str(d)[:40]}`" for d in by_device if d not in n.get(IB)]
    missing = sorted(d for d in wanted if by_device.get(d) not in files)
    if missing and strange:
        raise Unread("ib.files.uverbs", f"{strange[0]}, which a uverbs file names, is no RDMA device here")
    if missing:
        return bad(f"no uverbs file for {', '.join(missing)}: programs cannot open it", missing=missing)
    return ok(f"{len(wanted)} uverbs files")


def numa(n: Node, part: str) -> Outcome:
    """The HCAs are spread over the NUMA nodes as the VM size spreads them."""
    where = [n.get(IB, device, "pci") for device in devices_of(n)]
    return spread(n, where, n.expect.get("hcas_per_numa"), "HCAs")


NAMED = re.compile(r"mlx5_(ib|an)\d+\Z")


def naming(n: Node, part: str) -> Outcome:
    """Persistent names tell the truth: mlx5_ibN is InfiniBand, mlx5_anN is Ethernet."""
    wrong, named = [], 0
    for device in n.get(IB):
        match = NAMED.match(device)
        if not match:
            continue
        named += 1
        layers = {n.get(IB, device, "ports", p, "link_layer") for p in n.get(IB, device, "ports")}
        strange = next(iter(sorted(layers - {"InfiniBand", "Ethernet"})), None)
        if strange is not None:  # linux drivers/infiniband/core/sysfs.c, link_layer_show: `Unspecified` is the third
            raise Unread(f"{IB}.{device}.ports", f"`{strange[:40]}` is no link layer that is known")
        if layers - {"InfiniBand" if match[1] == "ib" else "Ethernet"}:
            wrong.append(f"{device} is {', '.join(sorted(layers))}")
    if not named:
        return skip("the devices have no persistent names")
    return bad("; ".join(wrong)) if wrong else ok("names match link layers")


def kernel_messages(n: Node, part: str) -> Outcome:
    """The kernel has reported no trouble of an HCA."""
    return judge_messages(n, "ib/kernel-messages")


# ---- ports ---------------------------------------------------------------------------------------------------------


def link_layer(n: Node, part: str) -> Outcome:
    """The port's link layer is the declared one."""
    found, expected = n.get(IB, *keys_of(part), "link_layer"), LINK_LAYERS[n.expect.link]
    data = {"value": found, "expected": expected}
    return ok(found, **data) if found == expected else bad(f"link layer {found}, expected {expected}", **data)


def state(n: Node, part: str) -> Outcome:
    """The port is active: a subnet manager has brought it up, and the cable carries. Either word alone is a fault.

    A warning where the port may be a spare one; other nodes then tell (spare.py).
    """
    found = {key: n.peek(IB, *keys_of(part), key) for key in ("state", "phys_state")}
    data = {key: text for key, text in found.items() if text is not None}
    words = [_name_of(data[key], key, part) for key in NAMES if key in data]
    if set(words) - {"ACTIVE", "LinkUp", ""}:
        text = f"{', '.join(filter(None, words))}; expected ACTIVE, LinkUp"
        if _may_be_unused(n, part):
            return warn(f"{text}, if anybody uses it", **data, **{MAYBE_UNUSED: True})
        return bad(text, **data)
    for key in NAMES:
        n.get(IB, *keys_of(part), key)
    if not words[0]:
        return unknown("the driver tells no state", **data)
    return ok("ACTIVE, LinkUp" if words[1] else "ACTIVE; the driver tells no physical state", **data)


def _may_be_unused(n: Node, part: str) -> bool:
    """Whether nobody names it, and as many others are active as there should be; any, where nobody says how many."""
    ports = choose(n)
    if n.expect.get("hcas") or ports.by.startswith("NCCL_IB_HCA"):
        return False
    active = sum(is_active(n, port) for port in ports.chosen if port != part)
    return active >= (n.expect.get("hca_ports") or 1)


NAMES = {"state": STATES, "phys_state": PHYSICAL_STATES}


def _name_of(text: str, key: str, part: str) -> str:
    name = state_of(text, NAMES[key])
    if name not in NAMES[key]:
        raise Unread(f"{IB}.{part}.{key}", f"`{text[:40]}` is not a state")
    return name


def _unless_down(n: Node, part: str, fault: Outcome) -> Outcome:
    return fault if is_active(n, part) else skip("the port is not active: see ib/port-state")


def _best_rate(n: Node) -> float:
    """Of the right rates, the highest that a port of the node has: where several are right, a node has one of them."""
    accepted = n.expect.get("hca_rates_gbps")
    rates = (rate_of(n.peek(IB, *keys_of(port), "rate")) for port in choose(n).chosen)
    return max((r for r in rates if r is not None and r in accepted), default=0.0)


def rate(n: Node, part: str) -> Outcome:
    """The port runs at a rate the VM size has."""
    text, accepted = n.get(IB, *keys_of(part), "rate"), n.expect.get("hca_rates_gbps")
    found = number_of(text, f"{IB}.{part}.rate")
    data = {
        "value": found,
        "unit": "Gb/s",
        "expected": list(accepted),
        "limit_source": n.expect.origin("hca_rates_gbps"),
    }
    if found in accepted:
        best = n.once("best RDMA rate", _best_rate)
        if found < best:
            return bad(f"{text}, where another port of the node has {best:g} Gb/s", **data)
        return ok(f"{found:g} Gb/s", **data)
    physical = state_of(n.get_or("LinkUp", "the link is up", IB, *keys_of(part), "phys_state"), PHYSICAL_STATES)
    if physical != "LinkUp" and (physical or not is_active(n, part)):
        return skip("the link is down, and what it shows is no rate: see ib/port-state")
    device = keys_of(part)[0]
    if text.startswith("5 Gb/sec") and (not physical or not PCI_ADDRESS.match(n.get(IB, device, "pci"))):
        # a VMbus device: the driver of the legacy sizes (H16r, NC24r) always says 5 Gb/sec
        return skip("legacy Network Direct does not report its rate")
    wanted = " or ".join(f"{r:g}" for r in accepted)
    return bad(f"{text}, expected {wanted} Gb/s", **data)


DEFAULT_LIMITED = 0x7FFF


def pkey(n: Node, part: str) -> Outcome:
    """The port is a full member of a partition: a limited member cannot talk to other limited members."""
    table = n.get(IB, *keys_of(part), "pkeys")
    keys = {index: _hex(n.get(IB, *keys_of(part), "pkeys", index), part) for index in table}
    full = [key for key in keys.values() if key & 0x8000]
    data = {"value": [f"0x{key:04x}" for key in keys.values()]}
    if full:
        return ok("full member of " + ", ".join(f"0x{key:04x}" for key in full), **data)
    said = "P_Key table is empty" if not keys else "limited member only: " + ", ".join(data["value"])
    return _unless_down(n, part, bad(said, **data))


def _hex(text: str, part: str) -> int:
    try:
        return int(text, 16)
    except ValueError:
        raise Unread(f"{IB}.{part}.pkeys", f"`{text[:20]}` is not a P_Key") from None


def lid(n: Node, part: str) -> Outcome:
    """The subnet manager has given the port an address, and the port knows the manager's."""
    own, manager = n.get(IB, *keys_of(part), "lid"), n.get(IB, *keys_of(part), "sm_lid")
    data = {"lid": own, "sm_lid": manager}
    none = [name for name, text in (("lid", own), ("sm_lid", manager)) if _lid(text, part) in (0, 0xFFFF)]
    if none and not PCI_ADDRESS.match(n.get(IB, keys_of(part)[0], "pci")):
        # a VMbus device: the host speaks with the subnet manager, not the guest
        return skip("legacy Network Direct shows no subnet manager")
    if not none:
        return ok("addressed by the subnet manager", **data)
    return _unless_down(n, part, bad(f"{' and '.join(none)} not assigned by a subnet manager", **data))


def _lid(text: str, part: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        raise Unread(f"{IB}.{part}.lid", f"`{text[:20]}` is not a LID") from None


def gid(n: Node, part: str) -> Outcome:
    """A RoCE v2 GID is there; without one, no RoCE v2 connection can be made from this port."""
    kinds = n.get(IB, *keys_of(part), "gid_attrs", "types")
    found = {index: n.get(IB, *keys_of(part), "gid_attrs", "types", index) for index in kinds}
    index = next((i for i, kind in found.items() if "v2" in kind), None)
    if index is not None:
        return ok("RoCE v2 GID", index=index)
    return _unless_down(n, part, bad("no RoCE v2 GID", types=found))


def ipoib(n: Node, part: str) -> Outcome:
    """IP over InfiniBand is up where the VM size uses it. Where it does not, an interface that is down is right."""
    device = keys_of(part)[0]
    interfaces = n.get(IB, device, "netdevs")
    if not interfaces:
        return skip("the port has no network interface, and RDMA needs none")
    states = {name: n.get("net.links", name, "operstate") for name in interfaces}
    down = [name for name, text in states.items() if text != "up"]
    if not down:
        return ok("up", **states)
    fault = bad(f"{', '.join(down)} is down, and this VM size uses IP over InfiniBand", **states)
    return _unless_down(n, part, fault)

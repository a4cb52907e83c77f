"""Rules about RDMA that the guest does by itself: flaps of its ports (I14), which GPU has which HCA (I10), RDMA on
accelerated functions (MANA and Azure Boost: Guest RDMA, by capability, whatever the product is called), and what tells
a machine apart once it is drained (F4).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from fairlead.checks.hcas import STATES, devices_of, keys_of, state_of
from fairlead.checks.node import Node, Outcome, bad, ok, skip, unknown
from fairlead.checks.rules import gpu
from fairlead.records.facts import Unread

IB = "ib.devices"
DAY_S = 86_400.0
BOOT_GRACE_S = 300.0
LOST = re.compile(r"(?P<link>[\w.-]+): [Ll]ost carrier\b")
DOWN = re.compile(r"mlx5_core [0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] (?P<link>[\w.-]+): Link down")


# ---- flaps -----------------------------------------------------------------------------------------------------------


def flapping(n: Node) -> Mapping[str, Unread | None]:
    """InfiniBand links that lost their carrier, by whatever log says so; the whole node where none did."""
    return dict.fromkeys(_flaps(n)) or {"": None}


def flaps(n: Node, part: str) -> Outcome:
    """A link lost its carrier less often within 24 hours than a bad cable does."""
    most = n.expect.get("flaps_per_day")
    num = _flaps(n).get(part, 0)
    if not part:
        return ok("no InfiniBand link lost its carrier")
    said = f"lost its carrier {num} x within 24 h"
    data = {"value": num, "limit": most}
    for path in ("netlog.lines", "kernel_log.lines"):
        lines = [
            line[-1] for line in n.peek(path) or () if part in line[-1] and re.search("carrier|Link down", line[-1])
        ]
        if n.peek(path) is not None:
            n.show(path, lines[-1] if lines else "no such line")
    return bad(said, **data) if num >= most else ok(said, **data)


def _flaps(n: Node) -> dict[str, int]:
    """Link -> the most losses within any 24 hours, by the log that has more. Raises Unread where none could be read."""
    return n.once("flaps", _count_flaps)


def _count_flaps(n: Node) -> dict[str, int]:
    counts: list[dict[str, int]] = []
    holes = []
    for read in (_by_managers, _by_kernel):
        try:
            counts.append(read(n))
        except Unread as hole:
            holes.append(hole)
    if not any(counts) and holes:
        raise holes[0]
    links = {link for count in counts for link in count}
    return {link: max(count.get(link, 0) for count in counts) for link in sorted(links) if _is_rdma(n, link)}


def _by_managers(n: Node) -> dict[str, int]:
    """As systemd-networkd tells: `ib6: Lost carrier`."""
    lines = n.get("netlog.lines")
    times: dict[str, list[float]] = {}
    for seconds, _, text in lines:
        match = LOST.match(text)
        if match:
            times.setdefault(match["link"], []).append(seconds)
    return {link: _densest(found) for link, found in times.items()}


def _by_kernel(n: Node) -> dict[str, int]:
    """As the driver tells; what happens while the machine starts does not count."""
    times: dict[str, list[float]] = {}
    for seconds, _, text in n.get("kernel_log.lines"):
        match = DOWN.search(text)
        if match and seconds >= BOOT_GRACE_S:
            times.setdefault(match["link"], []).append(seconds)
    return {link: _densest(found) for link, found in times.items()}


def _densest(times: list[float]) -> int:
    """The most of them within 24 hours."""
    ordered, first, most = sorted(times), 0, 0
    for index, seconds in enumerate(ordered):
        while seconds - ordered[first] > DAY_S:
            first += 1
        most = max(most, index - first + 1)
    return most


def _is_rdma(n: Node, link: str) -> bool:
    """Whether a link is one of InfiniBand's: by name, or as a device names it."""
    if re.match(r"ib[\w.]*\Z", link):
        return True
    devices = n.peek(IB) or {}
    named = {name for device in devices for name in n.peek(IB, device, "netdevs") or ()}
    return link in named and not link.startswith("enP")


# ---- which GPU has which HCA -----------------------------------------------------------------------------------------


def pairs(n: Node, part: str) -> Outcome:
    """Where a node has as many HCAs as GPUs, each NUMA node has as many of one as of the other."""
    hcas = [n.get(IB, device, "pci") for device in devices_of(n)]
    cards = gpu.on_pci(n, gpu.vendor(n))
    if not hcas or len(hcas) != len(cards):
        return skip(f"{len(cards)} GPUs and {len(hcas)} HCAs are no pairs")
    where = {
        what: Counter(n.get("pci.devices", address, "numa_node") for address in addresses)
        for what, addresses in (("GPUs", cards), ("HCAs", hcas))
    }
    if any(node < 0 for counts in where.values() for node in counts):
        return unknown("the kernel does not know the NUMA nodes")
    text = "; ".join(f"{what} on NUMA nodes {_spread(counts)}" for what, counts in where.items())
    return ok(text) if where["GPUs"] == where["HCAs"] else bad(f"{text}: some pairs cross the sockets")


def _spread(counts: Counter[int]) -> str:
    return ", ".join(f"{node}: {counts[node]}" for node in sorted(counts))


# ---- RDMA on accelerated functions -----------------------------------------------------------------------------------


def guest_devices(n: Node) -> Mapping[str, Unread | None]:
    """RDMA devices on functions of Azure's own NICs: MANA's driver holds them."""
    found: dict[str, Unread | None] = {}
    for device in n.get(IB):
        try:
            if n.get(IB, device, "driver") in ("mana", "mana_ib"):
                found[device] = None
        except Unread as hole:
            found[device] = hole
    return found


def guest_rdma(n: Node, part: str) -> Outcome:
    """A device for Guest RDMA can be used: a port is active and has a RoCE v2 GID to connect by."""
    ports = [f"{part}/{number}" for number in n.get(IB, part, "ports")]
    told = []
    for port in ports:
        state = state_of(n.get(IB, *keys_of(port), "state"), STATES)
        if state != "ACTIVE":
            told.append(f"port {port} is {state}")
            continue
        kinds = n.get(IB, *keys_of(port), "gid_attrs", "types")
        if not any("v2" in n.get(IB, *keys_of(port), "gid_attrs", "types", index) for index in kinds):
            told.append(f"port {port} has no RoCE v2 GID")
    if told or not ports:
        return bad("; ".join(told) or "it has no port")
    return ok(f"{len(ports)} active ports with RoCE v2 GIDs")


# ---- the machine itself ----------------------------------------------------------------------------------------------


def identity(n: Node, part: str) -> Outcome:
    """What a repair is asked for by can be told: the machine under the node, and the node's own number."""
    if n.get("host.identity.sys_vendor") != "Microsoft Corporation":
        return skip("the machine is none of Azure's")
    host = n.get("host.identity.kvp").get("PhysicalHostName", "")
    own = n.get("host.identity.vm_id")
    return ok(f"on host {host}", host=host, vm_id=own) if host else bad("the host does not give its name", vm_id=own)

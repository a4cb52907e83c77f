"""Rules about accelerated networking (ids A): a synthetic NIC (hv_netvsc) and its virtual function (VF), and the path
that traffic takes. What the kernel's messages say of the path, datapath.py works out.
"""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from fairlead.base.units import size as size_text
from fairlead.checks.datapath import Path, Window, matching, paths
from fairlead.checks.messages import SHARED, is_inside
from fairlead.checks.node import Node, Outcome, bad, count_of_ranges, ok, skip, unknown, warn
from fairlead.checks.vmname import concerns
from fairlead.records.facts import Unread

LINKS = "net.links"
NETVSC = "hv_netvsc"
VF_DRIVERS = ("mlx4_core", "mlx4_en", "mlx5_core", "mana")
ETHERNET = "1"
"""linux include/uapi/linux/if_arp.h: ARPHRD_ETHER. InfiniBand's own interfaces have 32."""
IFF_SLAVE = 0x800
GIB = 1 << 30

Parts = Mapping[str, Unread | None]


# ---- which NICs there are --------------------------------------------------------------------------------------------


def synthetic(n: Node) -> Parts:
    """Interfaces whose driver is hv_netvsc; one whose driver could not be read may be one."""
    return n.once("synthetic NICs", lambda inner: _driven(inner, (NETVSC,)))


def functions(n: Node) -> Parts:
    """Ethernet interfaces of virtual functions."""
    return n.once("VFs", lambda inner: _driven(inner, VF_DRIVERS))


def _driven(n: Node, drivers: Sequence[str]) -> dict[str, Unread | None]:
    found: dict[str, Unread | None] = {}
    for name in n.get(LINKS):
        try:
            if not n.get(LINKS, name, "pci"):
                continue  # no device, and so no driver
            if n.get(LINKS, name, "driver") in drivers:
                kind = n.get(LINKS, name, "type")
                if kind == ETHERNET:
                    found[name] = None
                elif not (kind.isascii() and kind.isdigit()):
                    found[name] = Unread(f"{LINKS}.{name}.type", f"`{kind[:20]}` is no number")
        except Unread as hole:
            found[name] = hole
    return found


def is_accelerated(n: Node) -> bool:
    """Whether the machine has a synthetic NIC. One is enough; of the others it is assumed that they are none."""
    holes = []
    for name in n.get(LINKS):
        try:
            if n.get(LINKS, name, "pci") and n.get(LINKS, name, "driver") == NETVSC:
                return True
        except Unread as hole:
            n.assumed.setdefault("the other interfaces are no synthetic NICs", []).append(hole)
            holes.append(hole)
    if holes:
        raise holes[0]
    return False


def _sure(parts: Parts) -> list[str]:
    """Those that are; raises the Unread of one that may be."""
    for hole in parts.values():
        if hole is not None:
            raise hole
    return list(parts)


def vf_of(n: Node, nic: str) -> str:
    """The VF of a synthetic NIC: enslaved to it, or with its address; empty for none. Raises Unread."""
    mine = n.get(LINKS, nic, "address")
    for name in _sure(functions(n)):
        if n.get(LINKS, name, "master") == nic or n.get(LINKS, name, "address") == mine:
            return name
    return ""


def addresses(n: Node, name: str) -> list[str]:
    """Addresses of an interface that somebody gave it: link-local ones come by themselves."""
    return [a for a in n.get(LINKS, name, "addresses") if not a.startswith(("fe80:", "169.254."))]


# ---- the pair --------------------------------------------------------------------------------------------------------


def holds_address(n: Node, part: str) -> Outcome:
    """The synthetic NICs are there and one of them holds the machine's address."""
    nics = _sure(synthetic(n))
    with_address = [nic for nic in nics if addresses(n, nic)]
    if with_address:
        return ok(f"{', '.join(with_address)} of {len(nics)} synthetic NICs")
    if any(n.get(LINKS, nic, "master") for nic in nics):
        return skip("the synthetic NICs are parts of another interface")
    if not nics:
        return skip("no synthetic NIC is Ethernet")
    return bad(f"{', '.join(nics)} has no address", nics=nics)


def has_vf(n: Node, part: str) -> Outcome:
    """The NIC has a virtual function, where it is to have one."""
    vf = vf_of(n, part)
    if vf:
        return ok(f"{vf}, driver {n.get(LINKS, vf, 'driver')}")
    log = n.get_or(None, "its VF is not just away", "kernel_log.lines")
    path = log_paths(n).get(part) if log is not None else None
    if path is not None and path.away is not None:
        return skip("its VF is away: see net/vf-lost")
    without = [a for a in ethernet_functions(n) if n.peek("pci.devices", a, "driver") == ""]
    if without:
        return skip(f"the function {without[0]} has no driver: see net/no-driver")
    expected = n.expect.get("accelerated_networking")
    if expected is None:
        return skip("it has no VF, and nothing says that it is accelerated")
    if not expected:
        return skip("this VM size has no accelerated networking")
    is_told = n.expect.origin("accelerated_networking").startswith("the cluster file")
    said = "it has no VF, though accelerated networking is said to be on"
    return (bad if is_told else warn)(
        said if is_told else "it has no VF, and this VM size has accelerated networking",
        limit_source=n.expect.origin("accelerated_networking"),
    )


def pairing(n: Node, part: str) -> Outcome:
    """The VF has the address of its synthetic NIC and is its slave."""
    master = n.get(LINKS, part, "master")
    if not master:
        return bad("no synthetic NIC holds it: its traffic does not fail over", driver=n.get(LINKS, part, "driver"))
    if n.get(LINKS, master, "driver") != NETVSC:
        return skip(f"it belongs to {master}, which is no synthetic NIC")
    own, theirs = n.get(LINKS, part, "address"), n.get(LINKS, master, "address")
    if own.lower() != theirs.lower():
        return bad(f"its address is {own}, that of {master} {theirs}", address=own, expected=theirs)
    flags = n.get(LINKS, part, "flags")
    try:
        is_slave = int(flags, 16) & IFF_SLAVE
    except ValueError:
        raise Unread(f"{LINKS}.{part}.flags", f"`{flags[:20]}` is no number") from None
    return ok(f"joined to {master}") if is_slave else bad(f"{master} holds it, but it is no slave", flags=flags)


def ethernet_functions(n: Node) -> list[str]:
    """Ethernet functions on PCI of the makers of Azure's NICs: 1414 Microsoft (MANA), 15b3 Mellanox."""
    found = []
    for address in n.get("pci.devices"):
        kind = n.get("pci.devices", address, "class")
        if kind.startswith("0x0200") and n.get("pci.devices", address, "vendor") in ("0x1414", "0x15b3"):
            found.append(address)
    return found


HANDED_ON = ("vfio-pci", "uio_hv_generic", "igb_uio", "uio_pci_generic")
"""Drivers that give a function to a program or to a virtual machine (DPDK)."""


def has_driver(n: Node, part: str) -> Outcome:
    """A driver holds the function, so that traffic may take it."""
    driver, vendor = n.get("pci.devices", part, "driver"), n.get("pci.devices", part, "vendor")
    what = "MANA" if vendor == "0x1414" else "Mellanox"
    if driver in HANDED_ON:
        return skip(f"{driver} hands it on to a program")
    if driver:
        return ok(f"{driver} holds the {what} function")
    module = "mana" if vendor == "0x1414" else "mlx5_core or mlx4_core"
    said = f"no driver ({module}) holds this {what} function: traffic silently takes the synthetic path"
    return bad(said, device=n.get("pci.devices", part, "device"))


# ---- the path --------------------------------------------------------------------------------------------------------


def log_nics(n: Node) -> Parts:
    """NICs the kernel's messages tell of, and the synthetic ones that there are."""
    told = dict.fromkeys(log_paths(n))
    return {**told, **synthetic(n)} if has_links(n) else told


def has_links(n: Node) -> bool:
    """Whether the interfaces were read. A log alone has none; else the verdict says that the log had to do."""
    if n.peek("kernel_log.clock") is not None:
        return False
    return n.get_or(None, "the kernel's messages tell of every NIC", LINKS) is not None


def log_paths(n: Node) -> Mapping[str, Path]:
    """Each NIC's path by the kernel's messages. Raises Unread without them."""
    return n.once("paths", _log_paths)


def _log_paths(n: Node) -> Mapping[str, Path]:
    lines = n.get("kernel_log.lines")
    # a log by people's clocks may begin at any time after the start
    return paths(lines, boot_s=None if n.peek("kernel_log.clock") == "log" else 0.0)


def data_path(n: Node, part: str) -> Outcome:
    """The last message about the path says that it is on the VF. Changes while the machine starts are normal."""
    if is_inside(n):
        return skip(SHARED)
    path = log_paths(n).get(part)
    if path is None or path.on_vf is None:
        if has_links(n) and not vf_of(n, part):
            return skip("it has no VF")
        first_s = n.get("kernel_log.first_s")
        return unknown(f"no message about the path is left; the log begins {first_s:.0f} s after the start")
    data = {"path": "vf" if path.on_vf else "synthetic", "since_s": path.since_s, "boot_changes": path.num_boot}
    if path.on_vf:
        return ok("on the VF", **data)
    away = path.away
    if away is None:
        return Outcome(skip("the driver of the synthetic NIC was unloaded").verdict, "the driver was unloaded", data)
    if away.is_revoked or not has_links(n) or not vf_of(n, part):
        return Outcome(skip("").verdict, "the VF is away: see net/vf-lost", data)
    n.show("kernel_log.lines", path.last)
    return bad(f"on the synthetic NIC since {away.start_s:.0f} s, though the VF is there", line=path.last, **data)


def lost(n: Node, part: str) -> Outcome:
    """A VF that the host took has come back."""
    if is_inside(n):
        return skip(SHARED)
    path = log_paths(n).get(part)
    if path is None or path.away is None:
        return ok("no VF is away")
    if not path.away.is_revoked and has_links(n) and vf_of(n, part):
        return skip("the VF is there: see net/data-path")
    n.show("kernel_log.lines", path.last)
    if n.peek("kernel_log.clock") is not None:  # a log alone: it says nothing of what came after it
        said = f"the VF went at {path.away.start_s:.3f} s and had not come back when the log ends"
        return bad(said, line=path.last, window=path.away.as_data())
    for_s, limit = _newest_s(n) - path.away.start_s, n.expect.get("vf_return_s")
    event = _event(n, path.away)
    data = {"window": {**path.away.as_data(), "event": event}, "away_s": round(for_s, 3), "limit": limit}
    if for_s < limit:
        why = f"the platform services its host: {event}" if event else "the host may still be serviced"
        return Outcome(skip("").verdict, f"the VF is away since {for_s:.0f} s; {why}", data)
    said = f", though the platform lists {event}" if event else ""
    return bad(f"the VF went {for_s:.0f} s ago and has not come back{said}", line=path.last, **data)


def _event(n: Node, window: Window) -> str:
    """The platform's event that explains a window: one that has begun and is listed still. Empty where none is."""
    if n.peek("imds.not_asked") is not None or "imds" not in n.facts.record.facts:
        return ""
    now_s, name = _newest_s(n), n.get_or({}, "events of others are this machine's", "imds.compute").get("name")
    events = n.get_or([], "no event of the platform explains it", "imds.events")
    begun = [
        (now_s - EVENT_S, now_s, f"{e.get('EventType', 'an event')} {e.get('EventId', '?')}")
        for e in events
        if e.get("EventStatus") == "Started" and concerns(e, name, n.facts.record.node) is not False
    ]
    end_s = now_s if window.end_s is None else window.end_s
    return str(matching(window.start_s, end_s, begun, 0.0) or "")


EVENT_S = 900.0
"""How long before a look an event may have begun that is listed still: about ten minutes until it is completed
(learn.microsoft.com: azure/virtual-machines/linux/scheduled-events)."""


def _newest_s(n: Node) -> float:
    """How long the machine runs."""
    return float(n.get("host.os.uptime_s"))


DAY_S = 86_400.0


def revocations(n: Node, part: str) -> Outcome:
    """The host takes the VF seldom, and gives it back soon."""
    if is_inside(n):
        return skip(SHARED)
    path = log_paths(n).get(part)
    closed = [w for w in path.windows if w.end_s is not None] if path else []
    revoked, others = [w for w in closed if w.is_revoked], [w for w in closed if not w.is_revoked]
    rows = [{**w.as_data(), "event": _event(n, w)} for w in revoked]
    data: dict[str, Any] = {"windows": rows, "path_changes": [w.as_data() for w in others]}
    left_out = n.get("kernel_log.num_left_out")
    if not closed:
        said = "none" if path is None or path.away is None else "none that is over"
        return unknown(f"{left_out} kernel messages did not fit into the facts") if left_out else ok(said, **data)
    events = {id(w): row["event"] for w, row in zip(revoked, rows, strict=True)}
    said = "; ".join(window_text(w, events.get(id(w), "")) for w in [*revoked, *others][-3:])
    n.show("kernel_log.lines", f"{len(closed)} windows, the last {window_text(closed[-1])}")
    newest = _newest_s(n)
    within_day = [w for w in revoked if w.start_s >= newest - DAY_S]
    most, longest = n.expect.get("max_revocations_per_day"), n.expect.get("max_revocation_s")
    if len(within_day) > most:
        return warn(f"{len(within_day)} revocations in 24 h: {said}", limit=most, **data)
    long = [w for w in revoked if w.duration_s is not None and w.duration_s > longest]
    if long:
        return warn(f"the VF was away for more than {longest:g} s: {window_text(long[-1])}", limit=longest, **data)
    return ok(f"{len(revoked)} revocation{'s' * (len(revoked) != 1)}, and it came back: {said}", **data)


def window_text(window: Window, event: str = "") -> str:
    """`8160.912 s to 8226.267 s (65.356 s), by Freeze C7061BAC`."""
    if window.end_s is None:
        return f"since {window.start_s:.3f} s"
    word = "" if window.is_revoked else ", the VF stayed"
    return f"{window.start_s:.3f} s to {window.end_s:.3f} s ({window.duration_s:.3f} s{word})" + (
        f", by {event}" if event else ""
    )


def share(n: Node, part: str) -> Outcome:
    """Since the start, bytes have gone past the synthetic NIC. Broadcasts and first packets take it by design."""
    if not vf_of(n, part):
        return skip("it has no VF")
    moved, past = 0, 0
    for way in ("tx", "rx"):
        moved += n.get("accelnet.nics", part, f"{way}_bytes")
        past += _counter(n, part, f"vf_{way}_bytes")
    if past > moved:
        return unknown(f"the counters contradict each other: {past} of {moved} bytes by the VF", vf=past, all=moved)
    if moved < GIB:
        return skip(f"only {size_text(moved)} moved, too little to tell")
    value, least = 100 * past / moved, n.expect.get("min_vf_share_pct")
    said = f"{value:.1f} % of {size_text(moved)} since the start went by the VF"
    data = {"value": round(value, 2), "unit": "%", "limit": least}
    return ok(said, **data) if value >= least else bad(said, **data)


def _counter(n: Node, nic: str, name: str) -> int:
    value = n.get("accelnet.nics", nic, "stats", name)
    if not isinstance(value, int):
        raise Unread(f"accelnet.nics.{nic}.stats.{name}", "is not a number")
    return value


def drops(n: Node, part: str) -> Outcome:
    """Few packets were dropped on their way to the VF."""
    if not vf_of(n, part):
        return skip("it has no VF")
    dropped, sent = _counter(n, part, "vf_tx_dropped"), _counter(n, part, "vf_tx_packets")
    limit = n.expect.get("max_vf_drop_pct")
    value = 100 * dropped / max(1, dropped + sent)
    data = {"value": round(value, 4), "unit": "%", "limit": limit}
    said = f"{dropped} of {dropped + sent} packets to the VF were dropped"
    return bad(said, **data) if value > limit else ok(said, **data)


def queues(n: Node, part: str) -> Outcome:
    """The NIC uses as many channels as its processors ask for."""
    now, most = (n.get("accelnet.nics", part, "channels", key) for key in ("now", "most"))
    online = n.get("host.cpu.online")
    try:
        cpus = count_of_ranges(online)
    except ValueError:
        raise Unread("host.cpu.online", f"`{online[:40]}` is not a list of processors") from None
    least = min(int(most), cpus, int(n.expect.get("min_nic_channels")))
    data = {"value": now, "expected": least, "most": most}
    return ok(f"{now} channels", **data) if now >= least else bad(f"{now} channels, {least} could be used", **data)


# ---- who goes past it ------------------------------------------------------------------------------------------------


def bound(n: Node, part: str) -> Outcome:
    """No program is tied to the VF: what is, stands still when the host takes the VF away."""
    told = []
    sockets = (n.peek("bound.sockets") or {}).get(part, [])
    if sockets:
        told.append(f"{len(sockets)} sockets are bound to it ({sockets[0]})")
    index, packet = n.peek("accelnet.vfs", part, "ifindex"), n.peek("bound.packet") or {}
    taps = packet.get(str(index), 0)
    if taps:
        told.append(f"{taps} packet sockets listen on it")
    if part in (n.peek("bound.routes") or ()):
        told.append("a route leads through it")
    if told:  # each of them stands alone, whatever else could not be read
        return bad("; ".join(told), sockets=sockets)
    for path in ("bound.sockets", "bound.packet", "bound.routes"):
        n.get(path)
    n.get("accelnet.vfs", part, "ifindex")
    return ok("nobody uses it past its synthetic NIC")


def same_subnet(n: Node, part: str) -> Outcome:
    """No two NICs are in one subnet: answers would leave by the other one, past its VF. Policy rules mend that."""
    nets: dict[str, list[str]] = defaultdict(list)
    for nic in _sure(synthetic(n)):
        for text in addresses(n, nic):
            try:
                subnet = ipaddress.ip_interface(text).network
            except ValueError:
                raise Unread(f"{LINKS}.{nic}.addresses", f"`{text[:40]}` is no address") from None
            if subnet.prefixlen < subnet.max_prefixlen:
                nets[str(subnet)].append(nic)
    shared = {subnet: sorted(set(nics)) for subnet, nics in nets.items() if len(set(nics)) > 1}
    if not shared:
        return ok("each NIC is in a subnet of its own" if len(nets) > 1 else "one NIC")
    rules = n.get_or([], "there are no policy rules", "bound.rules")
    where, nics = next(iter(shared.items()))
    if rules:
        return ok(f"{' and '.join(nics)} are both in {where}, with {len(rules)} policy rules")
    return bad(f"{' and '.join(nics)} are both in {where}, without policy rules", nics=nics, subnet=where)


def renames(n: Node, part: str) -> Outcome:
    """Nothing kept udev from renaming: a VF that comes up too early keeps its name, and starting waits for it."""
    lines = n.get("netlog.lines")
    found = [text for _, _, text in lines if "rename" in text and "busy" in text]
    if not found:
        return ok("none failed")
    n.show("netlog.lines", found[-1])
    return bad(f"{len(found)} interfaces could not be renamed", line=found[-1])

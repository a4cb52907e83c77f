"""A lab at one moment as a fabric picture, and as text.

Knows: which faults and missing carriers make which part of a picture. Must not know: how the moment was read
(status.py), or how pictures are drawn (report/). Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from fairlead.base.table import table
from fairlead.base.units import rate, size
from fairlead.lab.faults import catalog
from fairlead.lab.faults.kinds import View
from fairlead.lab.shape import LabShape
from fairlead.records.fabricview import FabricView, Host, Pair, Port, State, Switch, Trunk
from fairlead.records.labstate import Fault, HostStatus, LabState, LabStatus, LinkStatus
from fairlead.report.fabric_words import fabric_text

_HOST_STATES: dict[str, State] = {"up": "up", "hung": "faulty", "dead": "down"}


def picture(state: LabState, now: LabStatus) -> FabricView:
    """The lab as a fabric with its faults called out."""
    shape = msgspec.convert(state.shape, LabShape)
    faults = {fault.id: fault for fault in now.faults}
    seats = {host.name: host.t0 for host in state.hosts if host.ports}
    ends = {link.name: link.lower.netns for link in state.links}
    on_host = [link for link in now.links if link.name.count("/") == 1]
    between = [link for link in now.links if link.name.count("/") == 2]
    return FabricView(
        title=state.name,
        num_planes=shape.planes,
        num_t0=shape.t0,
        num_t1=shape.t1,
        hosts=tuple(
            Host(name=h.name, t0=seats[h.name], state=_host_state(h), note=_notes(faults, h.faults))
            for h in now.hosts
            if h.name in seats
        ),
        switches=tuple(_switches(state, shape, now.faults)),
        ports=tuple(
            Port(host=ends[link.name], plane=link.plane, state=_state(link), note=_notes(faults, link.faults))
            for link in on_host
        ),
        trunks=tuple(
            Trunk(plane=link.plane, t0=t0, t1=t1, state=_state(link), note=_notes(faults, link.faults))
            for link in between
            for t0, t1 in [_trunk(link.name)]
        ),
        pairs=tuple(_pairs(shape, now.faults)),
        rate_bps=shape.rate_mbps * 1e6,
        trunk_rate_bps=shape.uplink_rate_mbps * 1e6,
    )


def text(state: LabState, now: LabStatus, *, every_link: bool = False) -> str:
    """The lab for a terminal: the fabric, hosts, links that are not as built (or all), and the faults in force."""
    parts = [fabric_text(picture(state, now)), _hosts(state, now)]
    odd = [link for link in now.links if every_link or link.faults or not link.has_carrier]
    if odd:
        parts.append(_links(odd))
    if now.faults:
        rows = [(f.id, f.kind, f.target, _settings(f), f.since) for f in now.faults]
        parts.append(table(["FAULT", "KIND", "TARGET", "SETTINGS", "SINCE"], rows))
    return "\n\n".join(parts)


def _host_state(host: HostStatus) -> State:
    return "faulty" if host.state == "up" and host.faults else _HOST_STATES[host.state]


def _state(link: LinkStatus) -> State:
    if not link.has_carrier:
        return "down"
    return "faulty" if link.faults else "up"


def _notes(faults: dict[int, Fault], ids: Iterable[int]) -> str:
    return "; ".join(" ".join(filter(None, (faults[i].kind, _settings(faults[i])))) for i in ids)


def _settings(fault: Fault) -> str:
    """What was set, without what says nothing."""
    return " ".join(f"{name}={value}" for name, value in fault.params.items() if (name, value) != ("side", "both"))


def _targets(shape: LabShape, faults: Iterable[Fault], on: str) -> Iterable[tuple[str, Fault]]:
    """Names of one sort of thing, each with a fault in force on it."""
    view = View(shape, lambda _: {})
    for fault in faults:
        kind = catalog.kind_of(fault.kind)
        if kind.on == on:
            for name in catalog.targets_of(kind, fault.target, view):
                yield name, fault


def _switches(state: LabState, shape: LabShape, faults: Iterable[Fault]) -> Iterable[Switch]:
    by_name = {switch.name: switch for switch in state.switches}
    for name, fault in _targets(shape, faults, "switch"):
        found = by_name[name]
        yield Switch(plane=found.plane, tier=found.tier, index=found.index, state="down", note=fault.kind)


def _pairs(shape: LabShape, faults: Iterable[Fault]) -> Iterable[Pair]:
    for name, fault in _targets(shape, faults, "pair"):
        a, b = name.split(":")
        yield Pair(a=a, b=b, state="faulty", note=f"{fault.kind} from {a} to {b}")


def _trunk(name: str) -> tuple[int, int]:
    _, t0, t1 = name.split("/")
    return int(t0.removeprefix("t0-")), int(t1.removeprefix("t1-"))


def _hosts(state: LabState, now: LabStatus) -> str:
    by_name = {host.name: host for host in state.hosts}
    rows = []
    for host in now.hosts:
        links = [link for link in now.links if link.name.split("/")[1:] == [host.name]]
        sent, received = (sum(getattr(link.lower, f"{way}_packets") for link in links) for way in ("tx", "rx"))
        full = "" if host.scratch_used_pct is None else f"{host.scratch_used_pct:g}"
        faults = ",".join(map(str, host.faults)) or "-"
        known = by_name[host.name]
        row = (host.name, host.state, known.management, known.fabric or "-", host.num_processes, full)
        rows.append((*row, sent, received, faults))
    header = ["HOST", "STATE", "MANAGEMENT", "FABRIC", "PROCESSES", "DISK %", "PACKETS OUT", "PACKETS IN", "FAULTS"]
    return table(header, rows)


def _links(links: list[LinkStatus]) -> str:
    rows = [
        (
            link.name,
            "up" if link.has_carrier else "down",
            rate(link.lower.rate_mbps * 1e6) if link.lower.rate_mbps else "-",
            link.lower.tx_packets,
            size(link.lower.tx_bytes),
            link.upper.tx_packets,
            size(link.upper.tx_bytes),
            link.lower.drops + link.upper.drops,
            ",".join(map(str, link.faults)) or "-",
        )
        for link in links
    ]
    header = ["LINK", "CARRIER", "RATE", "PACKETS UP", "UP", "PACKETS DOWN", "DOWN", "QUEUE DROPS", "FAULTS"]
    return table(header, rows)

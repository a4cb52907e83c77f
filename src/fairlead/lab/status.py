"""What a running lab looks like right now: read from the kernel, drawn as text.

Knows: interface and queue counters as `ip` and `tc` print them, and how a person wants to see a fabric. Must not know:
how any of it came about. Reading and drawing are two functions, with a LabStatus between them.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import msgspec

from fairlead.base.table import table
from fairlead.base.units import rate, size
from fairlead.lab import inside, store
from fairlead.lab.faults import apply
from fairlead.lab.faults.effects import Effects, merged
from fairlead.lab.shape import LabShape
from fairlead.records.labstate import HostState, HostStatus, LabState, LabStatus, LinkStatus, PortStatus

_READERS = 8


def read(state: LabState) -> LabStatus:
    """The state of every link and host of a lab that stands."""
    netns = sorted({end.netns for link in state.links for end in (link.lower, link.upper)})
    with ThreadPoolExecutor(_READERS) as pool:
        ports = dict(zip(netns, pool.map(lambda name: _ports(state, name), netns), strict=True))
    on_links, on_hosts = _who_is_hit(state)
    links = tuple(
        LinkStatus(
            name=link.name,
            plane=link.plane,
            lower=ports[link.lower.netns].get(link.lower.device, PortStatus(is_up=False, has_carrier=False)),
            upper=ports[link.upper.netns].get(link.upper.device, PortStatus(is_up=False, has_carrier=False)),
            faults=on_links.get(link.name, ()),
        )
        for link in state.links
    )
    hosts = tuple(_host(host, on_hosts.get(host.name, ())) for host in state.hosts)
    return LabStatus(name=state.name, is_up=True, hosts=hosts, links=links, faults=state.faults)


def _ports(state: LabState, netns: str) -> dict[str, PortStatus]:
    devices = _json(inside.ask(state, netns, ["ip", "-j", "-s", "link", "show"]))
    queues = _json(inside.ask(state, netns, ["tc", "-j", "-s", "qdisc", "show"]))
    return ports_of(devices, queues)


def ports_of(devices: list[dict[str, Any]], queues: list[dict[str, Any]]) -> dict[str, PortStatus]:
    """Ports by name, from the JSON of `ip -s link` and `tc -s qdisc`."""
    shaping = {q["dev"]: q for q in queues if q.get("root") and q.get("kind") in ("tbf", "htb")}
    out = {}
    for device in devices:
        name, flags = device["ifname"], device.get("flags", [])
        stats, queue = device.get("stats64", {}), shaping.get(device["ifname"], {})
        rx, tx = stats.get("rx", {}), stats.get("tx", {})
        bytes_per_s = queue.get("options", {}).get("rate")
        out[name] = PortStatus(
            is_up="UP" in flags,
            has_carrier="LOWER_UP" in flags,
            rate_mbps=round(bytes_per_s * 8 / 1e6) if bytes_per_s else None,
            rx_packets=rx.get("packets", 0),
            tx_packets=tx.get("packets", 0),
            rx_bytes=rx.get("bytes", 0),
            tx_bytes=tx.get("bytes", 0),
            drops=queue.get("drops", 0) + tx.get("dropped", 0),
            backlog_bytes=queue.get("backlog", 0),
        )
    return out


def _who_is_hit(state: LabState) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]:
    """Links and hosts -> the faults in force on them."""
    view = apply.view_of(state)
    by_end = {(end.netns, end.device): link.name for link in state.links for end in (link.lower, link.upper)}
    links: dict[str, list[int]] = {}
    hosts: dict[str, list[int]] = {}
    for fault in state.faults:
        asked = apply.effects_of(view, fault)
        for name in {
            by_end[port] for port in (*asked.down, *asked.queues, *asked.filters, *asked.flaps) if port in by_end
        }:
            links.setdefault(name, []).append(fault.id)
        for name in _hosts_of(asked):
            hosts.setdefault(name, []).append(fault.id)
    return {k: tuple(v) for k, v in links.items()}, {k: tuple(v) for k, v in hosts.items()}


def _hosts_of(asked: Effects) -> set[str]:
    return {*asked.dead, *asked.hung, *asked.cpu_pct, *asked.disk_pct, *(f.host for f in asked.files)}


def _host(host: HostState, faults: tuple[int, ...]) -> HostStatus:
    if not store.is_alive(host.anchor):
        return HostStatus(name=host.name, state="dead", faults=faults)
    used = None
    with contextlib.suppress(OSError):
        space = os.statvfs(inside.host_path(host, "run"))
        used = round(100 * (1 - space.f_bavail / space.f_blocks), 1)
    state: Literal["up", "hung"] = "hung" if _is_stopped(host) else "up"
    return HostStatus(
        name=host.name, state=state, num_processes=len(inside.processes_of(host)), scratch_used_pct=used, faults=faults
    )


def _is_stopped(host: HostState) -> bool:
    for folder in map(Path, host.cgroups):
        for name, marks in (("cgroup.freeze", "1"), ("freezer.state", "FROZEN FREEZING")):
            with contextlib.suppress(OSError):
                return (folder / name).read_text().strip() in marks.split()
    assert host.anchor is not None
    with contextlib.suppress(OSError):
        return Path(f"/proc/{host.anchor.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"
    return False


def _json(text: str) -> list[dict[str, Any]]:
    return json.loads(text) if text else []


def draw(state: LabState, now: LabStatus, *, every_link: bool = False) -> str:
    """The lab as text: planes as small maps, hosts, what is not as built, and every link on request."""
    shape = msgspec.convert(state.shape, LabShape)
    head = (
        f"lab {state.name}   {len(shape.nodes)} hosts   {shape.planes} planes of {shape.t0} T0 and {shape.t1} T1   "
        f"{rate(shape.rate_mbps * 1e6)} a port   up since {state.created}"
    )
    parts = [head, "", *_maps(state, shape, {link.name: link for link in now.links}), _hosts(state, now)]
    odd = [link for link in now.links if every_link or link.faults or not link.has_carrier]
    if odd:
        parts += ["", _link_table(odd)]
    if now.faults:
        rows = [
            (f.id, f.kind, f.target, " ".join(f"{k}={v}" for k, v in f.params.items()), f.since) for f in now.faults
        ]
        parts += ["", table(["FAULT", "KIND", "TARGET", "SETTINGS", "SINCE"], rows)]
    return "\n".join(parts)


def _maps(state: LabState, shape: LabShape, links: Mapping[str, LinkStatus]) -> Iterator[str]:
    """One map a plane: a row per T0, a column per T1, then its hosts."""
    per_t0 = shape.topology.hosts_per_t0
    for plane in range(shape.planes):
        rows = []
        for t0 in range(shape.t0):
            up = [_cell(links[f"p{plane}/t0-{t0}/t1-{t1}"]) for t1 in range(shape.t1)]
            below = shape.nodes[t0 * per_t0 : (t0 + 1) * per_t0]
            hosts = "  ".join(f"{node} {_cell(links[f'p{plane}/{node}'])}" for node in below)
            rows.append((f"t0-{t0}", *up, hosts))
        yield table([f"p{plane}", *(f"t1-{t1}" for t1 in range(shape.t1)), "HOSTS"], rows)
        yield ""


def _cell(link: LinkStatus) -> str:
    if not link.has_carrier:
        return "down"
    return "fault" if link.faults else "ok"


def _hosts(state: LabState, now: LabStatus) -> str:
    by_name = {host.name: host for host in state.hosts}
    rows = []
    for host in now.hosts:
        links = [link for link in now.links if link.name.split("/")[1:] == [host.name]]
        sent, received = (sum(getattr(link.lower, f"{way}_packets") for link in links) for way in ("tx", "rx"))
        full = "" if host.scratch_used_pct is None else f"{host.scratch_used_pct:g}"
        faults = ",".join(map(str, host.faults)) or "-"
        known = by_name[host.name]
        rows.append(
            (
                host.name,
                host.state,
                known.management,
                known.fabric or "-",
                host.num_processes,
                full,
                sent,
                received,
                faults,
            )
        )
    header = ["HOST", "STATE", "MANAGEMENT", "FABRIC", "PROCESSES", "DISK %", "PACKETS OUT", "PACKETS IN", "FAULTS"]
    return table(header, rows)


def _link_table(links: list[LinkStatus]) -> str:
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
    return table(["LINK", "CARRIER", "RATE", "PACKETS UP", "UP", "PACKETS DOWN", "DOWN", "QUEUE DROPS", "FAULTS"], rows)

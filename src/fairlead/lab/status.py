"""What a running lab is doing right now, read from the kernel into a LabStatus.

Knows: interface and queue counters as `ip` and `tc` print them, and what tells a hung host from a dead one. Must not
know: how any of it is drawn (drawing.py).
"""

from __future__ import annotations

import contextlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

from fairlead.lab import inside, store
from fairlead.lab.faults import apply, catalog
from fairlead.records.labstate import HostState, HostStatus, LabState, LabStatus, LinkStatus, PortStatus

_READERS = 8


def read(state: LabState) -> LabStatus:
    """The state of every link and host of a lab that stands."""
    netns = sorted({end.netns for link in state.links for end in (link.lower, link.upper)})
    with ThreadPoolExecutor(_READERS) as pool:
        ports = dict(zip(netns, pool.map(lambda name: _ports(state, name), netns), strict=True))
    hit = _who_is_hit(state)
    links = tuple(
        LinkStatus(
            name=link.name,
            plane=link.plane,
            lower=ports[link.lower.netns].get(link.lower.device, PortStatus(is_up=False, has_carrier=False)),
            upper=ports[link.upper.netns].get(link.upper.device, PortStatus(is_up=False, has_carrier=False)),
            faults=hit.get(link.name, ()),
        )
        for link in state.links
    )
    hosts = tuple(_host(host, hit.get(host.name, ())) for host in state.hosts)
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


def _who_is_hit(state: LabState) -> dict[str, tuple[int, ...]]:
    """Names of links, switches, hosts and pairs -> the faults in force on them."""
    view, hit = apply.view_of(state), dict[str, tuple[int, ...]]()
    for fault in state.faults:
        for name in catalog.targets_of(catalog.kind_of(fault.kind), fault.target, view):
            hit[name] = (*hit.get(name, ()), fault.id)
    return hit


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

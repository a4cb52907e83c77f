"""From a shape to the record of a lab, and to the plan by which the keeper builds it.

Knows: which hosts, switches and links a shape makes, and what each host is given. Must not know: processes, or whether
any of it exists. Pure but for the clock, the user's number and the files of services.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairlead.lab import cgroups, hosttree, services, slurm, store, wiring
from fairlead.lab.shape import LabShape
from fairlead.records.addressbook import PLACE, Place, Port, Seat, Steering
from fairlead.records.codec import from_json, to_json
from fairlead.records.journal import bringup_place
from fairlead.records.labstate import HostPort, HostState, LabState, LinkEnd, LinkState, SwitchState
from fairlead.spec import usid
from fairlead.spec.topology import t0_name, t1_name


def describe(shape: LabShape, roots: Sequence[Path], *, is_rootless: bool) -> LabState:
    """The record of a lab before it is built: everything but processes."""
    links = wiring.links(shape)
    hosts = [_host(shape, number, links, roots) for number in range(len(shape.nodes))]
    if shape.slurm:
        hosts.append(_head(shape, roots))
    return LabState(
        name=shape.name,
        phase="building",
        created=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        uid=os.geteuid(),
        is_rootless=is_rootless,
        shape=from_json(to_json(shape), dict),
        cgroup_roots=tuple(map(str, roots)),
        hosts=tuple(hosts),
        switches=tuple(_switches(shape)),
        links=tuple(
            LinkState(
                name=link.name,
                plane=int(link.name[1 : link.name.index("/")]),
                lower=LinkEnd(link.lower.netns, link.lower.device),
                upper=LinkEnd(link.upper.netns, link.upper.device),
                rate_mbps=link.rate_mbps,
            )
            for link in links
        ),
    )


def _host(shape: LabShape, number: int, links: Sequence[wiring.Link], roots: Sequence[Path]) -> HostState:
    node, (t0, port) = shape.nodes[number], shape.topology.seat(number)
    own = [link for link in links if link.lower.netns == node]
    ports = tuple(
        HostPort(
            plane=plane,
            interface=link.lower.device,
            address=str(usid.port_address(plane, t0, port)),
            link=link.name,
            mac=link.lower.mac,
        )
        for plane, link in enumerate(own)
    )
    return HostState(
        name=node,
        number=number,
        t0=t0,
        port=port,
        management=str(wiring.management_address(number)),
        fabric=str(usid.fabric_address(t0, port)),
        ports=ports,
        cgroups=cgroups.dirs(roots, node),
    )


def _head(shape: LabShape, roots: Sequence[Path]) -> HostState:
    """The host of Slurm's controller: management alone."""
    number = len(shape.nodes)
    return HostState(
        name=slurm.HEAD,
        number=number,
        t0=-1,
        port=-1,
        management=str(wiring.management_address(number)),
        fabric="",
        cgroups=cgroups.dirs(roots, slurm.HEAD),
    )


def _switches(shape: LabShape) -> list[SwitchState]:
    def switch(name: str, plane: int, tier: int, index: int, segment: int) -> SwitchState:
        return SwitchState(
            name=name,
            plane=plane,
            tier=0 if tier == 0 else 1,
            index=index,
            netns=wiring.netns_of(name),
            segment=usid.locator(plane, segment),
        )

    out = []
    for plane in range(shape.planes):
        out += [switch(t0_name(plane, i), plane, 0, i, usid.t0_usid(i)) for i in range(shape.t0)]
        out += [switch(t1_name(plane, j), plane, 1, j, usid.t1_usid(j)) for j in range(shape.t1)]
    return out


def plan(shape: LabShape, state: LabState, roots: Sequence[Path], life: int) -> dict[str, Any]:
    """What the keeper is to do, as plain JSON."""
    setups = [wiring.management_setup(shape), *wiring.setups(shape)]
    ends = [end for link in wiring.links(shape) for end in (link.lower, link.upper)]
    return {
        "lab": shape.name,
        "parent": os.getpid(),
        "life": life,
        "commit": [str(store.folder(shape.name)), store.NEXT, store.RECORD],
        "rootless": state.is_rootless,
        "keeper_cgroups": cgroups.dirs(roots, cgroups.KEEPER),
        "netns": [s.netns for s in setups[1:]],
        "before_devices": wiring.BEFORE_DEVICES,
        "links": wiring.link_lines(shape),
        "setups": [{"netns": s.netns, "sysctl": s.sysctl, "ip": s.ip, "tc": s.tc} for s in setups],
        "computed_checksums": [] if shape.checksum_offload else [(e.netns, e.device) for e in ends],
        "trims": _trims(shape),
        "hosts": [host_plan(shape, state, host) for host in state.hosts],
    }


def _trims(shape: LabShape) -> list[dict[str, Any]]:
    """Every switch port that trims, and how; to a host is the last hop."""
    if not shape.trim_kib:
        return []
    ends = [(end, link) for link in wiring.links(shape) for end in (link.lower, link.upper)]
    hosts = set(shape.nodes)
    return [
        {
            "netns": end.netns,
            "device": end.device,
            "rate_mbps": int(link.rate_mbps),
            "limit": shape.trim_kib << 10,
            "full": max(shape.buffer_kib, shape.trim_kib) << 10,
            "last_hop": link.lower.netns in hosts,
        }
        for end, link in ends
        if end.netns not in hosts
    ]


def host_plan(shape: LabShape, state: LabState, host: HostState) -> dict[str, Any]:
    """What an anchor is to do for one host."""
    is_head = not host.ports
    ports = [{"device": p.interface, "mac": p.mac, "address": p.address, "gbps": 100} for p in host.ports]
    what = hosttree.shows(host.name, host.number, gpus=0 if is_head else shape.gpus, ports=ports)
    facts = str(Path(shape.facts, host.name)) if shape.facts and not is_head else ""
    return {
        "name": host.name,
        "netns": f"/run/netns/{host.name}",
        "cgroups": host.cgroups,
        "scratch_mib": shape.scratch_mib,
        "shows": what,
        "facts": facts,
        "devices": hosttree.device_names(what),
        "files": _own_files(shape, state, host) | services.files(shape, state),
        "private": services.private(shape),
        "shares": _shares(),
    }


def _own_files(shape: LabShape, state: LabState, host: HostState) -> dict[str, str]:
    """Who a host is and where. Its machine-id is that of a machine that was never there before."""
    born = f"{state.name} {state.created} {state.uid} {host.name}"
    files = {
        "etc/hosts": etc_hosts(state, host),
        "etc/hostname": f"{host.name}\n",
        "etc/machine-id": hashlib.sha256(born.encode()).hexdigest()[:32] + "\n",
    }
    return files | ({PLACE.lstrip("/"): to_json(place(shape, host)) + "\n"} if host.ports else {})


def place(shape: LabShape, host: HostState) -> Place:
    """What a host is told of the fabric it hangs on, as whoever builds a real one would tell its nodes."""
    return Place(
        node=host.name,
        address=host.fabric,
        why="fabric",
        interface="fab0",
        management=host.management,
        ports=tuple(
            Port(
                rail=f"plane {port.plane}",
                plane=port.plane,
                address=port.address,
                interface=port.interface,
                device=f"mlx5_{port.plane}",
                switch=t0_name(port.plane, host.t0),
                rate_bps=shape.rate_mbps * 1e6,
            )
            for port in host.ports
        ),
        seat=Seat(t0=host.t0, port=host.port),
        steering=Steering(by="usid", t1=shape.t1, trunk_bps=shape.uplink_rate_mbps * 1e6),
    )


def etc_hosts(state: LabState, host: HostState) -> str:
    """Names as a host sees them: a node's plain name is its fabric address, except on the head, which has none."""
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost", f"{wiring.MANAGEMENT_HEAD} gateway"]
    for other in state.hosts:
        plain = other.fabric if other.fabric and host.fabric else other.management
        lines.append(f"{plain} {other.name}")
        lines.append(f"{other.management} {other.name}-mgmt")
    return "\n".join(lines) + "\n"


def _shares() -> list[str]:
    """Directories of the machine that hosts must see whatever they hide: this Python, this package, and what a bringup
    made for its nodes to read.
    """
    package = Path(__file__).resolve().parents[2]
    return sorted({sys.prefix, sys.base_prefix, str(package), str(bringup_place())})

"""Fabric views and pages for tests of pictures: healthy, broken, large."""

from __future__ import annotations

from typing import Any

import msgspec

from fairlead.records.fabricview import FabricView, Host, Pair, Port, Switch, Trunk
from fairlead.records.verdict import Verdict


def view(num_hosts: int, planes: int, t0: int, t1: int, *, name: str = "n{}", **more: Any) -> FabricView:
    """A fabric in which everything is up, but for what `more` says."""
    hosts = tuple(Host(name=name.format(i), t0=i * t0 // num_hosts) for i in range(num_hosts))
    fields = {"rate_bps": 250e6, "trunk_rate_bps": 250e6} | more
    return FabricView(title="lab", num_planes=planes, num_t0=t0, num_t1=t1, hosts=hosts, **fields)


def small() -> FabricView:
    """4 hosts, 4 planes: one slow port, one lossy trunk."""
    slow = Port(host="n2", plane=1, state="faulty", rate_bps=12e6, note="1/20 of its siblings", verdict=Verdict.FAIL)
    fine = [Port(host=f"n{i}", plane=p, rate_bps=238e6) for i in range(4) for p in range(4) if (i, p) != (2, 1)]
    lossy = Trunk(plane=3, t0=0, t1=1, state="faulty", note="loses 5 % of packets", verdict=Verdict.WARN)
    return view(4, 4, 2, 2, ports=(slow, *fine), trunks=(lossy,))


def medium() -> FabricView:
    """16 hosts, 8 planes: a dead host, a dead switch, two bad ports, a blocked pair."""
    dead = "h200-009"
    made = view(
        16,
        8,
        4,
        4,
        name="h200-{:03}",
        switches=(Switch(plane=5, tier=1, index=2, state="down", note="switch down", verdict=Verdict.FAIL),),
        ports=(
            *(Port(host=dead, plane=p, state="down") for p in range(8)),
            Port(host="h200-003", plane=2, state="faulty", note="silent drop", verdict=Verdict.FAIL),
            Port(host="h200-004", plane=2, state="down", note="link down", verdict=Verdict.FAIL),
        ),
        pairs=(Pair(a="h200-001", b="h200-014", note="no packet passes", verdict=Verdict.FAIL),),
    )
    hosts = tuple(
        msgspec.structs.replace(h, state="down", note="does not answer", verdict=Verdict.FAIL) if h.name == dead else h
        for h in made.hosts
    )
    return msgspec.structs.replace(made, hosts=hosts)


def large() -> FabricView:
    """128 hosts, 8 planes, folded by T0: a port without carrier and a slow one."""
    return view(
        128,
        8,
        8,
        8,
        name="h200-{:03}",
        ports=(
            Port(host="h200-044", plane=3, state="down", note="carrier down", verdict=Verdict.FAIL),
            Port(host="h200-101", plane=0, state="faulty", rate_bps=100e6, note="slow", verdict=Verdict.WARN),
        ),
    )

"""Counters as `ip` and `tc` print them, and the drawing."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from fairlead.lab import drawing
from fairlead.lab.plan import describe
from fairlead.lab.shape import LabShape
from fairlead.lab.status import ports_of
from fairlead.records.labstate import Fault, HostStatus, LabStatus, LinkStatus, PortStatus

IP = json.loads(
    """[{"ifname":"eth1","flags":["BROADCAST","UP","LOWER_UP"],"stats64":{"rx":{"bytes":10,"packets":2},
    "tx":{"bytes":30,"packets":3,"dropped":1}}},{"ifname":"eth2","flags":["NO-CARRIER","UP"],"stats64":{}}]"""
)
TC = json.loads(
    """[{"kind":"tbf","dev":"eth1","root":true,"options":{"rate":31250000,"burst":32750},"drops":4,"backlog":9000},
    {"kind":"noqueue","dev":"lo","root":true,"options":{}}]"""
)


def test_ports_are_read_from_both_tools():
    ports = ports_of(IP, TC)
    assert ports["eth1"] == PortStatus(
        is_up=True,
        has_carrier=True,
        rate_mbps=250,
        rx_packets=2,
        tx_packets=3,
        rx_bytes=10,
        tx_bytes=30,
        drops=5,
        backlog_bytes=9000,
    )
    assert (ports["eth2"].is_up, ports["eth2"].has_carrier, ports["eth2"].rate_mbps) == (True, False, None)


def drawn(shape, **changes):
    state = describe(shape, [Path("/cg")], is_rootless=False)
    fine = PortStatus(is_up=True, has_carrier=True, rate_mbps=250, tx_packets=5)
    links = {link.name: LinkStatus(name=link.name, plane=link.plane, lower=fine, upper=fine) for link in state.links}
    for name, change in changes.pop("links", {}).items():
        links[name] = msgspec.structs.replace(links[name], **change)
    other = changes.pop("hosts", {})
    hosts = tuple(HostStatus(**{"name": h.name, "state": "up", **other.get(h.name, {})}) for h in state.hosts)
    now = LabStatus(name=state.name, is_up=True, hosts=hosts, links=tuple(links.values()), **changes)
    return drawing.picture(state, now), drawing.text(state, now)


def test_a_healthy_lab_is_its_planes_and_hosts_and_no_list_of_links():
    view, text = drawn(LabShape(planes=2))
    assert "plane 1  2 up  2 up  up  up  up  up" in text
    assert "LINK" not in text
    assert "FAULT " not in text
    assert not any(part.is_called_out for part in (*view.hosts, *view.switches, *view.ports, *view.trunks, *view.pairs))
    assert (len(view.ports), len(view.trunks), view.rate_bps) == (8, 8, 250e6)


def test_what_is_broken_is_called_out_and_listed():
    gone = PortStatus(is_up=False, has_carrier=False)
    view, text = drawn(
        LabShape(planes=1),
        links={"p0/t0-0/t1-1": {"upper": gone}, "p0/n3": {"faults": (2,)}},
        hosts={"n1": {"state": "hung", "faults": (3,)}, "n2": {"state": "dead", "faults": (4,)}},
        faults=(
            Fault(id=2, kind="loss", target="p0/n3", params={"percent": "5", "side": "both"}),
            Fault(id=3, kind="node-hung", target="n1"),
            Fault(id=4, kind="node-dead", target="n2"),
            Fault(id=5, kind="one-way-drop", target="n0:n3"),
            Fault(id=6, kind="switch-down", target="p0/t1-1"),
        ),
    )
    assert {(t.t0, t.t1): t.state for t in view.trunks if t.state != "up"} == {(0, 1): "down"}
    assert {p.host: (p.state, p.note) for p in view.ports if p.is_called_out} == {"n3": ("faulty", "loss percent=5")}
    assert {h.name: h.state for h in view.hosts} == {"n0": "up", "n1": "faulty", "n2": "down", "n3": "up"}
    assert [(p.a, p.b, p.note) for p in view.pairs] == [("n0", "n3", "one-way-drop from n0 to n3")]
    assert [(s.plane, s.tier, s.index, s.state) for s in view.switches] == [(0, 1, 1, "down")]
    assert "p0/t0-0/t1-1  down" in text
    assert "percent=5" in text

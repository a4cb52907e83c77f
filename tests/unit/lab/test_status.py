"""Counters as `ip` and `tc` print them, and the drawing."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from fairlead.lab.shape import LabShape
from fairlead.lab.status import draw, ports_of
from fairlead.lab.plan import describe
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
    hosts = tuple(HostStatus(name=h.name, state="up", num_processes=1) for h in state.hosts)
    now = LabStatus(name=state.name, is_up=True, hosts=hosts, links=tuple(links.values()), **changes)
    return draw(state, now)


def test_a_healthy_lab_is_maps_and_hosts_and_no_list_of_links():
    text = drawn(LabShape(planes=2))
    assert "p1    t1-0  t1-1  HOSTS\nt0-0  ok    ok    n0 ok  n1 ok\nt0-1  ok    ok    n2 ok  n3 ok\n" in text
    assert "LINK" not in text
    assert "FAULT " not in text


def test_what_is_broken_is_seen_in_the_map_and_listed():
    gone = PortStatus(is_up=False, has_carrier=False)
    text = drawn(
        LabShape(planes=1),
        links={"p0/t0-0/t1-1": {"upper": gone}, "p0/n3": {"faults": (2,)}},
        faults=(Fault(id=2, kind="loss", target="p0/n3", params={"percent": "5"}),),
    )
    assert "t0-0  ok    down  n0 ok  n1 ok" in text
    assert "n2 ok  n3 fault" in text
    assert "p0/t0-0/t1-1  down" in text
    assert "percent=5" in text

"""What a host is given: who it is, and where."""

from __future__ import annotations

from msgspec.structs import replace

from fairlead.lab.plan import describe, host_plan, plan
from fairlead.lab.shape import LabShape
from fairlead.records.addressbook import PLACE, Place
from fairlead.records.codec import from_json

SHAPE = LabShape(planes=2)


def files(number, **changes):
    state = replace(describe(SHAPE, (), is_rootless=False), **changes)
    return host_plan(SHAPE, state, state.hosts[number])["files"]


def test_a_host_says_its_place_in_the_file_of_real_nodes():
    place = from_json(files(2)[PLACE.lstrip("/")], Place)
    assert (place.node, place.seat.t0, place.seat.port) == ("n2", 1, 0)
    assert [(p.rail, p.plane, p.interface, p.switch) for p in place.ports] == [
        ("plane 0", 0, "eth1", "p0/t0-1"),
        ("plane 1", 1, "eth2", "p1/t0-1"),
    ]


def test_a_host_is_the_same_machine_for_as_long_as_its_lab_stands():
    def ids(**changes):
        return [files(i, **changes)["etc/machine-id"] for i in range(4)]

    assert len(set(ids(created="a"))) == 4
    assert ids(created="a") == ids(created="a")
    assert not set(ids(created="a")) & set(ids(created="b"))


def test_only_switch_ports_trim_and_know_whether_a_host_is_next():
    shape = LabShape(planes=1, rate_mbps=100, uplink_rate_mbps=40, trim_kib=32)
    state = describe(shape, (), is_rootless=False)
    ports = {(t["netns"], t["device"]): t for t in plan(shape, state, (), 0)["trims"]}
    assert {netns for netns, _ in ports} == {"p0-t0-0", "p0-t0-1", "p0-t1-0", "p0-t1-1"}
    assert {device for (_, device), t in ports.items() if t["last_hop"]} == {"d0", "d1"}
    assert {t["netns"][:5] for t in ports.values() if t["last_hop"]} == {"p0-t0"}
    assert ports["p0-t0-0", "u1"]["rate_mbps"] == 40
    assert ports["p0-t0-0", "d0"] | {"netns": "", "device": ""} == {
        "netns": "", "device": "", "rate_mbps": 100, "limit": 32 << 10, "full": 256 << 10, "last_hop": True,
    }  # fmt: skip
    assert plan(SHAPE, state, (), 0)["trims"] == []

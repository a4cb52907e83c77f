"""Which addresses are tested: the one programs use, and each rail on which at least two nodes have one."""

from __future__ import annotations

import ast
from pathlib import Path

import msgspec
import pytest

import fairlead
from fairlead.base.nodeset import NodeSet
from fairlead.lab.plan import describe, place
from fairlead.lab.shape import LabShape
from fairlead.preflight.pairs.paths import paths_of, port_bps
from fairlead.records.addressbook import AddressBook, Place, Port, Seat, Steering
from fairlead.spec import usid
from fairlead.spec.model import Access, Pool, Spec

SPEC = Spec(schema=1, pools=(Pool(name="p", size="other", nodes=NodeSet("n[0-1]")),), access=Access(via="ssh"))


def book(*places: dict) -> AddressBook:
    """Nodes n0, n1, ...: rail -> address, or (address, switch)."""
    out = []
    for i, rails in enumerate(places):
        said = {rail: (a, "") if isinstance(a, str) else a for rail, a in rails.items()}
        ports = tuple(Port(rail=rail, address=a, switch=switch) for rail, (a, switch) in said.items())
        out.append(Place(node=f"n{i}", address=f"10.0.0.{i}", why="default route", ports=ports))
    return AddressBook(places=tuple(out))


def lab_book(shape: LabShape) -> AddressBook:
    """What hosts of a lab say of themselves."""
    return AddressBook(places=tuple(place(shape, host) for host in describe(shape, (), is_rootless=False).hosts))


def test_the_address_of_programs_and_every_rail_that_connects_somebody():
    found = paths_of(book({"ib0": "172.16.0.1", "ib1": ""}, {"ib0": "172.16.0.2", "ib1": "172.17.0.2", "ib2": "x"}))
    assert found.labels == ("default route", "ib0")
    assert found.addresses == {"n0": ("10.0.0.0", "172.16.0.1"), "n1": ("10.0.0.1", "172.16.0.2")}


def test_a_node_of_the_other_family_is_not_tested_over_a_way_that_cannot_be():
    """Half through a move to IPv6: who has no address of the others' family is said to have none they could reach."""
    places = [Place(node=f"n{i}", address=a) for i, a in enumerate(("10.0.0.1", "2001:db8::2", "10.0.0.3"))]
    assert paths_of(AddressBook(places=tuple(places))).addresses == {
        "n0": ("10.0.0.1",),
        "n1": ("",),
        "n2": ("10.0.0.3",),
    }
    six = [Place(node=f"n{i}", address=f"2001:db8::{i}") for i in range(1, 4)]
    assert set(paths_of(AddressBook(places=tuple(six))).addresses.values()) == {(p.address,) for p in six}


def test_a_rail_without_addresses_is_left_out_with_its_reason():
    found = paths_of(book(*({f"mlx5_ib{i}": "" for i in (0, 2, 10)} for _ in range(3))))
    assert list(found.untested.items()) == [(f"mlx5_ib{i}", "no node has an IP address there") for i in (0, 2, 10)]
    assert paths_of(book({"ib0": "a"}, {"ib0": ""})).untested == {"ib0": "one node alone has an IP address there"}
    assert paths_of(book({"ib0": "a"}, {})).untested == {}, "a rail of one node alone is no rail"


def test_nodes_below_one_switch_are_a_group_where_all_rails_agree():
    a, b = {"r0": ("1", "s0"), "r1": ("2", "s1")}, {"r0": ("1", "s2"), "r1": ("2", "s3")}
    assert paths_of(book(a, a, b)).groups == {"n0": 0, "n1": 0, "n2": 1}
    assert paths_of(book(a, b)).switches["n1"] == ("", "s2", "s3")
    assert paths_of(book(a, b, {"r0": ("1", "s0"), "r1": ("2", "s3")})).groups == {}
    assert paths_of(book(a, {"r0": ("1", "s0"), "r1": ("2", "")})).groups == {}


def test_what_a_lab_says_is_what_its_topology_makes():
    found = paths_of(lab_book(LabShape(planes=2, t0=2, t1=2, nodes=("a", "b", "c", "d"))))
    assert found.labels == ("fabric", "plane 0", "plane 1")
    own = [usid.fabric_address(1, 0), *(usid.port_address(plane, 1, 0) for plane in range(2))]
    assert found.addresses["c"] == tuple(map(str, own))
    assert found.groups == {"a": 0, "b": 0, "c": 1, "d": 1}
    assert found.switches["c"] == ("", "p0/t0-1", "p1/t0-1")
    assert found.rate_bps == 250e6


@pytest.mark.parametrize(("size", "bps"), [("Standard_ND96isr_H200_v5", 80e9), ("other", 0)])
def test_what_the_slowest_port_should_carry_is_known_by_vm_size(size, bps):
    spec = msgspec.structs.replace(SPEC, pools=(Pool(name="p", size=size, nodes=NodeSet("n[0-1]")),))
    assert port_bps(book({}, {}), spec, NodeSet("n[0-1]")) == bps


@pytest.mark.parametrize(
    ("t0", "t1", "rate", "uplink", "mbps"),
    [(2, 2, 250, 250, 250), (2, 2, 100, 100, 100), (2, 1, 100, 100, 50), (2, 1, 100, 400, 100), (1, 4, 250, 60, 60)],
)
def test_what_a_port_should_carry_is_its_share_of_the_trunks(t0, t1, rate, uplink, mbps):
    shape = LabShape(planes=2, t0=t0, t1=t1, rate_mbps=rate, uplink_rate_mbps=uplink)
    assert port_bps(lab_book(shape), SPEC, NodeSet("n[0-3]")) == mbps * 1e6


def test_only_the_lab_the_cluster_file_and_bringup_know_what_a_lab_is():
    """Every other stage reads the address book, and cannot tell."""
    root = Path(fairlead.__file__).parent
    knows = {
        path.relative_to(root).parts[0].removesuffix(".py") if path.parent != root / "cli" else f"cli/{path.stem}"
        for path in root.rglob("*.py")
        if path.name != "table.py"  # the rules of a table of the cluster file
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr == "is_lab"
    }
    assert knows <= {"lab", "spec", "bringup", "cli/bringup"}


LIES = {
    "another's seat": lambda own: msgspec.structs.replace(own, seat=Seat(t0=0, port=0)),
    "no way to choose": lambda own: msgspec.structs.replace(own, steering=Steering()),
    "more T1s": lambda own: msgspec.structs.replace(own, steering=msgspec.structs.replace(own.steering, t1=200)),
    "no seat": lambda own: msgspec.structs.replace(own, seat=None),
    "another plane": lambda own: msgspec.structs.replace(
        own, ports=tuple(msgspec.structs.replace(port, plane=7) for port in own.ports)
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_node_that_lies_about_its_seat_is_sent_nothing_there_and_turns_off_no_test_of_others(lie):
    """Where ways are chosen, its seat is a part of the addresses that others send to."""
    true = lab_book(LabShape(planes=2, t0=2, t1=2, nodes=("a", "b", "c", "d")))
    *others, last = true.places
    found = paths_of(AddressBook(places=(*others, LIES[lie](last))))
    honest = paths_of(true)
    assert (found.t1, found.planes) == (honest.t1, honest.planes)
    assert found.seats == {node: seat for node, seat in honest.seats.items() if node != "d"}

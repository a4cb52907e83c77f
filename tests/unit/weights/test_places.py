"""Which ports of two nodes a spread by TCP uses beside their addresses."""

from __future__ import annotations

from fairlead.records.addressbook import Place, Port
from fairlead.weights.places import also_at, lanes_of


def place(name: str, *ports: tuple[str, str]) -> Place:
    """Its ports by rail and address; the first is the node's own."""
    return Place(node=name, address=ports[0][1], ports=tuple(Port(rail=rail, address=at) for rail, at in ports))


A = place("a", ("ib0", "10.0.0.1"), ("ib1", "10.1.0.1"), ("mlx5_ib2", ""))
B = place("b", ("ib1", "10.1.0.2"), ("ib0", "10.0.0.2"))


def test_a_connection_for_each_rail_that_both_have() -> None:
    assert lanes_of(A, B) == [("10.0.0.1", "10.0.0.2"), ("10.1.0.1", "10.1.0.2")]
    assert also_at(A, "10.0.0.1") == ["10.1.0.1"]


def test_one_rail_in_common_is_no_choice() -> None:
    assert lanes_of(A, place("c", ("ib0", "10.0.0.3"))) == []
    assert lanes_of(A, place("d", ("eth0", "192.168.0.4"), ("eth1", "192.168.1.4"))) == []
    assert also_at(place("c", ("ib0", "10.0.0.3")), "10.0.0.3") == []


def test_a_node_of_which_nothing_is_known_is_reached_by_its_address() -> None:
    assert lanes_of(A, None) == lanes_of(None, B) == also_at(None, "10.0.0.1") == []


def test_an_address_for_management_alone_is_listened_at_beside_all_ports() -> None:
    assert also_at(A, "172.16.0.1") == ["10.0.0.1", "10.1.0.1"]

"""Who is where: each node's addresses, its ports on the fabric, and how a packet's way through that can be chosen.

One record for all stages, which cannot tell who filled it. Most of it is found by the probe on any node
(`probe/addresses.py` makes the book from facts). What a node cannot see of the fabric it hangs on, a file on the node
may say: PLACE, one Place as JSON, written by whoever built the fabric. The lab writes it on its hosts.
"""

from __future__ import annotations

from typing import Literal

import msgspec

BOOK_SCHEMA = "fairlead.address-book/1"
PLACE_SCHEMA = "fairlead.place/1"
PLACE = "/etc/fairlead/place.json"
"""Where a node keeps its own Place, if anybody wrote one."""


class Seat(msgspec.Struct, frozen=True, kw_only=True):
    """Where a node is attached, the same in every plane, as spec/topology.py numbers it."""

    t0: int
    port: int


class Port(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A port of a node on the fabric. Ports of one rail, on different nodes, can reach each other."""

    rail: str
    """What findings call it: `plane 0`, `ib0`, or `mlx5_ib0` where the port has no interface."""
    plane: int | None = None
    """Number of the plane, where a sender can choose ways through it by address."""
    address: str = ""
    """IP address; empty: none, so that only RDMA verbs can use the port."""
    interface: str = ""
    """Network interface; empty: none, or not known."""
    device: str = ""
    """RDMA device; empty: none."""
    port: int = 1
    """Number of the port on that device."""
    link_layer: Literal["", "InfiniBand", "Ethernet"] = ""
    guid: str = ""
    pci: str = ""
    numa: int | None = None
    """NUMA node of the device; None: not known."""
    switch: str = ""
    """The switch it hangs below (T0, leaf); empty: not known."""
    rate_bps: float | None = None
    """What it is meant to carry; None: nobody says, other than perhaps the VM size."""


class Steering(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a sender can choose the way of a packet.

    usid    by its destination address, with the arithmetic of spec/usid.py; every T0 is joined to every T1
    ecmp    by its source port, but nobody says which port takes which way
    none    not at all: there is one way
    """

    by: Literal["usid", "ecmp", "none"] = "ecmp"
    t1: int = 0
    """T1 switches of each plane, where the arithmetic needs them."""
    trunk_bps: float | None = None
    """What a link between a T0 and a T1 is meant to carry."""


class Place(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One node."""

    schema: str = PLACE_SCHEMA
    node: str = ""
    address: str = ""
    """What programs use between nodes; empty: the node has none that others could reach."""
    why: str = ""
    """How that address was chosen: `fabric`, `default route`, ..."""
    interface: str = ""
    """The interface that has it."""
    management: str = ""
    """Where the node is reached for control: ssh, Slurm. Often the same."""
    ports: tuple[Port, ...] = ()
    seat: Seat | None = None
    steering: Steering = Steering()

    def port(self, rail: str) -> Port | None:
        """The port of a rail."""
        return next((p for p in self.ports if p.rail == rail), None)


class AddressBook(msgspec.Struct, frozen=True, kw_only=True):
    """Every node that could be asked."""

    schema: str = BOOK_SCHEMA
    places: tuple[Place, ...] = ()
    unread: dict[str, str] = {}
    """Nodes whose interfaces could not be read, and why; they have a Place without an address."""

    def place(self, node: str) -> Place | None:
        """Where a node is."""
        return next((p for p in self.places if p.node == node), None)

    @property
    def rails(self) -> tuple[str, ...]:
        """Every rail that any node has, in the order of the nodes' ports."""
        return tuple(dict.fromkeys(port.rail for place in self.places for port in place.ports))

"""Who is where: each node's addresses, its ports on the fabric, and how a packet's way through that can be chosen.

One record for all stages, which cannot tell who filled it. Most of it is found by the probe on any node
(`probe/addresses.py` makes the book from facts). What a node cannot see of the fabric it hangs on, a file on the node
may say: PLACE, one Place as JSON, written by whoever built the fabric. The lab writes it on its hosts.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

BOOK_SCHEMA = "fairlead.address-book/1"
PLACE_SCHEMA = "fairlead.place/1"
PLACE = "/etc/fairlead/place.json"
"""Where a node keeps its own Place, if anybody wrote one."""

Name = Annotated[str, Meta(max_length=253)]
"""A node says its own Place: what it says is bounded, as others reckon with it."""
Seated = Annotated[int, Meta(ge=0, le=4095)]
"""Switches of a tier, and ports of a switch, number no further (spec/topology.py, MAX_PER_TIER)."""
Rate = Annotated[float, Meta(ge=0, le=1e15)]


class Seat(msgspec.Struct, frozen=True, kw_only=True):
    """Where a node is attached, the same in every plane, as spec/topology.py numbers it."""

    t0: Seated
    port: Seated


class Port(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A port of a node on the fabric. Ports of one rail, on different nodes, can reach each other."""

    rail: Name
    """What findings call it: `plane 0`, `ib0`, or `mlx5_ib0` where the port has no interface."""
    plane: Annotated[int, Meta(ge=0, le=255)] | None = None
    """Number of the plane, where a sender can choose ways through it by address."""
    address: Name = ""
    """IP address; empty: none, so that only RDMA verbs can use the port."""
    interface: Name = ""
    """Network interface; empty: none, or not known."""
    device: Name = ""
    """RDMA device; empty: none."""
    port: Annotated[int, Meta(ge=0, le=255)] = 1
    """Number of the port on that device."""
    link_layer: Literal["", "InfiniBand", "Ethernet"] = ""
    guid: Name = ""
    pci: Name = ""
    numa: Annotated[int, Meta(ge=0, le=4095)] | None = None
    """NUMA node of the device; None: not known."""
    switch: Name = ""
    """The switch it hangs below (T0, leaf); empty: not known."""
    rate_bps: Rate | None = None
    """What it is meant to carry; None: nobody says, other than perhaps the VM size."""


class Steering(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a sender can choose the way of a packet.

    usid    by its destination address, with the arithmetic of spec/usid.py; every T0 is joined to every T1
    ecmp    by its source port, but nobody says which port takes which way
    none    not at all: there is one way
    """

    by: Literal["usid", "ecmp", "none"] = "ecmp"
    t1: Annotated[int, Meta(ge=0, le=4096)] = 0
    """T1 switches of each plane, where the arithmetic needs them."""
    trunk_bps: Rate | None = None
    """What a link between a T0 and a T1 is meant to carry."""


class Place(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One node."""

    schema: str = PLACE_SCHEMA
    node: Name = ""
    address: Name = ""
    """What programs use between nodes; empty: the node has none that others could reach."""
    why: Name = ""
    """How that address was chosen: `fabric`, `default route`, ..."""
    interface: Name = ""
    """The interface that has it."""
    management: Name = ""
    """Where the node is reached for control: ssh, Slurm. Often the same."""
    ports: Annotated[tuple[Port, ...], Meta(max_length=256)] = ()
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

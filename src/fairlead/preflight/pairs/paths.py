"""Which addresses of a node the pair phase uses: the one programs use, and one for each plane or rail. Pure.

All of it comes from the address book. A rail on which fewer than two nodes have an address connects nobody by IP; it is
listed with the reason, for nothing is left out without a word.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fairlead.base.nodeset import NodeSet
from fairlead.probe.addresses import natural
from fairlead.records.addressbook import AddressBook, Place
from fairlead.spec import usid
from fairlead.spec.contract import contract_of
from fairlead.spec.model import Spec


@dataclass(frozen=True, slots=True)
class Gap:
    """A port, or a node where `rail` is empty, that no packet can be sent to."""

    node: str
    rail: str
    why: str
    address: str = ""
    """What it has and nobody else can use."""


@dataclass(frozen=True, slots=True)
class Paths:
    """Labels of the paths, each node's address on each (empty: it has none), and the switch each node hangs below."""

    labels: tuple[str, ...]
    addresses: dict[str, tuple[str, ...]]
    groups: Mapping[str, int] = field(default_factory=dict)
    """Nodes of one number hang below the same switch in every plane; empty where that is not known of all of them."""
    switches: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Node -> the switch it hangs below, path by path; empty where that is not known."""
    untested: Mapping[str, str] = field(default_factory=dict)
    """Rails that no packet of the pair phase takes, and why."""
    gaps: tuple[Gap, ...] = ()
    """The same port by port, with those of rails that others use."""
    rate_bps: float | None = None
    """What a port is said to carry."""
    t1: int = 0
    """T1 switches of each plane, where ways can be chosen by address."""
    seats: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Node -> T0 and port, for the same."""
    planes: Mapping[int, int] = field(default_factory=dict)
    """Path -> number of its plane, for the same."""

    def first(self, node: str) -> str:
        """The address programs use."""
        return self.addresses[node][0]


def paths_of(book: AddressBook) -> Paths:
    """The paths between the nodes of a book. A node whose interfaces could not be read has no address at all."""
    named = {place.node: {port.rail: port for port in place.ports} for place in book.places}
    rails = sorted(book.rails, key=natural)
    shared = [rail for rail in rails if sum(bool(own[rail].address) for own in named.values() if rail in own) > 1]
    addresses, switches = {}, {}
    for place in book.places:
        own = [named[place.node].get(rail) for rail in shared]
        addresses[place.node] = (place.address, *(port.address if port else "" for port in own))
        switches[place.node] = ("", *(port.switch if port else "" for port in own))
    rates = [port.rate_bps for place in book.places for port in place.ports if port.rate_bps]
    usable = _of_one_family(addresses)
    return Paths(
        labels=(_label(book), *shared),
        addresses=usable,
        groups=_groups(book, switches),
        switches=switches,
        untested=_untested(book, shared),
        gaps=tuple(_gaps(book, shared, usable)),
        rate_bps=min(rates) if rates else None,
        **_steering(book, shared),
    )


def _label(book: AddressBook) -> str:
    """What the address that programs use is called: how most nodes' was chosen."""
    why = Counter(place.why for place in book.places if place.why)
    has_address = any(place.address for place in book.places)
    return why.most_common(1)[0][0] if why else "address" if has_address else "no address"


def _gaps(book: AddressBook, shared: list[str], usable: Mapping[str, tuple[str, ...]]) -> Iterator[Gap]:
    """Where no packet can be sent, and why."""
    number = {rail: i for i, rail in enumerate(shared, 1)}
    for place in book.places:
        if place.node in book.unread:
            yield Gap(place.node, "", f"its interfaces could not be read: {book.unread[place.node]}")
        elif not place.address and not any(port.address for port in place.ports):
            yield Gap(place.node, "", "it has no IP address at which other nodes could reach it")
        elif not shared and place.address and not usable[place.node][0]:
            yield Gap(place.node, "", _foreign(place.address), place.address)
        for port in place.ports:
            if not port.address:
                yield Gap(place.node, port.rail, "the port has no IP address")
            elif port.rail not in number:
                yield Gap(place.node, port.rail, "no other node has an IP address on this rail", port.address)
            elif not usable[place.node][number[port.rail]]:
                yield Gap(place.node, port.rail, _foreign(port.address), port.address)


def _foreign(address: str) -> str:
    own, others = ("IPv6", "IPv4") if ":" in address else ("IPv4", "IPv6")
    return f"its address there is {own}, and those of most others are {others}"


def _of_one_family(addresses: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """On each path only the addresses of the family that most nodes have there: IPv4 and IPv6 do not reach each other.

    >>> _of_one_family({"a": ("10.0.0.1",), "b": ("10.0.0.2",), "c": ("2001:db8::3",)})["c"]
    ('',)
    """
    columns = list(zip(*addresses.values(), strict=True))
    num6 = [sum(":" in a for a in column) for column in columns]
    most6 = [six > sum(bool(a) for a in column) - six for six, column in zip(num6, columns, strict=True)]
    return {
        node: tuple(a if (":" in a) == is6 else "" for a, is6 in zip(own, most6, strict=True))
        for node, own in addresses.items()
    }


def _steering(book: AddressBook, shared: list[str]) -> dict[str, Any]:
    """What choosing ways needs; nothing where most nodes cannot.

    A way ends at the seat that a node says is its own: it counts where the addresses of its ports have that seat in
    them, as whoever is there is asked at those. Of planes and T1s what most nodes say counts.
    """
    by_rail = [{p.node: port.plane for p in book.places if (port := p.port(rail))} for rail in shared]
    planes = {i: plane for i, said in enumerate(by_rail, 1) if (plane := _usual(said.values())) is not None}
    t1 = _usual(place.steering.t1 if place.seat and place.steering.by == "usid" else 0 for place in book.places)
    seats = {
        place.node: (place.seat.t0, place.seat.port)
        for place in book.places
        if place.seat and place.steering.by == "usid" and place.steering.t1 == t1
        if all(place.node not in (own := by_rail[i - 1]) or own[place.node] == planes[i] for i in planes)
        if _is_seated(place)
    }
    return {"t1": t1, "seats": seats, "planes": planes} if t1 and len(seats) > 1 else {}


def _usual(said: Iterable[int | None]) -> int | None:
    """What more than half say."""
    found = Counter(said)
    most = max(found, key=found.__getitem__, default=None)
    return most if found and 2 * found[most] > found.total() else None


def _is_seated(place: Place) -> bool:
    """Whether the addresses of a node's ports are those of its seat."""
    seat = place.seat
    return seat is not None and all(
        port.address == str(usid.port_address(port.plane, seat.t0, seat.port))
        for port in place.ports
        if port.address and port.plane is not None
    )


def port_bps(book: AddressBook, spec: Spec, nodes: NodeSet) -> float:
    """What the slowest port between some nodes is meant to carry, b/s; 0 where nobody says.

    A port whose place says its rate carries that, or its share of the trunks where these carry less; of others the VM
    size says it.
    """
    places = [place for place in book.places if place.node in nodes]
    if said := [rate for place in places if (rate := _said_bps(place, places))]:
        return min(said)
    sizes = [contract_of(spec, pool) for pool in spec.pools if pool.nodes & nodes]
    return 1e9 * min((gbps for size in sizes for gbps in (size.ethernet_gbps, *size.hca_rates_gbps) if gbps), default=0)


def _said_bps(place: Place, places: list[Place]) -> float:
    rate = min((port.rate_bps for port in place.ports if port.rate_bps), default=0.0)
    steering, seat = place.steering, place.seat
    if not seat or not steering.trunk_bps:
        return rate
    beside = sum(other.seat is not None and other.seat.t0 == seat.t0 for other in places)
    return min(rate, steering.trunk_bps * min(1.0, steering.t1 / beside))


def _groups(book: AddressBook, switches: Mapping[str, tuple[str, ...]]) -> dict[str, int]:
    """Nodes that hang below the same switch on every path; nothing where some do on one path and not on another."""
    seats = {place.node: place.seat.t0 for place in book.places if place.seat}
    if len(seats) == len(switches):
        return seats
    own = {node: names[1:] for node, names in switches.items()}
    if not own or not all(names and all(names) for names in own.values()):
        return {}
    numbers = {names: i for i, names in enumerate(dict.fromkeys(own.values()))}
    is_alike = all(len({names[i] for names in numbers}) == len(numbers) for i in range(len(next(iter(numbers)))))
    return {node: numbers[names] for node, names in own.items()} if is_alike else {}


def _untested(book: AddressBook, shared: list[str]) -> dict[str, str]:
    out = {}
    for rail in sorted(book.rails, key=natural):
        ports = [port for place in book.places if (port := place.port(rail))]
        if rail not in shared and len(ports) > 1:
            num = sum(bool(port.address) for port in ports)
            out[rail] = "one node alone has an IP address there" if num else "no node has an IP address there"
    return out

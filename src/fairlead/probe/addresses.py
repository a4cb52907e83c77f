"""The address book from what probes read: which address of a node others use, which ports it has on the fabric. Pure.

Knows: how an interface is told from a bridge of containers, and which is preferred (`addresses.toml`, first row that
fits). Must not know: what the addresses are used for, or whether a node should have them. A file on the node that says
its place goes before anything found; what it leaves out of a port's device is filled in.
"""

from __future__ import annotations

import functools
import ipaddress
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib import resources
from typing import Any, TypeAlias

import msgspec

from fairlead.records.addressbook import AddressBook, Place, Port
from fairlead.records.border import shown
from fairlead.records.facts import Facts, NodeFacts, Unread

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
BROADCAST = ipaddress.ip_address("255.255.255.255")
MIN_PREFIX = {4: 16, 6: 32}
"""Of a network that proves anything: a node with a route to half the world owns nothing there."""
MAX_PREFIX = {4: 32, 6: 64}
"""Interface identifiers have 64 bits (RFC 4291, 2.5.1): a node that was given one address of a network, /128, as DHCPv6
does in Azure and AWS, is in that network."""
MAX_NAME = 64
"""Characters of what a rail or device is called; the kernel's own names are shorter (IFNAMSIZ, IB_DEVICE_NAME_MAX)."""


class _Kind(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    kind: str
    why: str
    names: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    drivers: tuple[str, ...] = ()
    devtypes: tuple[str, ...] = ()
    device: bool | None = None
    enslaved: bool | None = None


class _Rank(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    why: str
    kinds: tuple[str, ...]
    carrier: bool = False
    route: int = 0
    reached: bool = False
    note: str = ""


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    kind: tuple[_Kind, ...]
    rank: tuple[_Rank, ...]


@functools.cache
def _table() -> _Table:
    text = resources.files("fairlead.probe").joinpath("addresses.toml").read_text("utf-8")
    return msgspec.convert(tomllib.loads(text), _Table)


@dataclass(frozen=True, slots=True)
class Interface:
    """What counts of one interface. What could not be read of it is empty."""

    name: str
    address: str
    """The first that reaches beyond its own link, IPv4 before IPv6; empty: none."""
    all_addresses: tuple[str, ...]
    type: str
    driver: str
    devtype: str
    has_device: bool
    is_enslaved: bool
    has_carrier: bool


def book_of(facts: Iterable[NodeFacts], reached: Mapping[str, str] | None = None) -> AddressBook:
    """Every node's place. `reached` are addresses by which a scheduler knows nodes, where it does."""
    facts, places, unread = list(facts), [], {}
    for record in facts:
        try:
            places.append(_place(Facts(record), (reached or {}).get(record.node, "")))
        except Unread as hole:
            places.append(Place(node=record.node))
            unread[record.node] = str(hole)
    return AddressBook(places=tuple(_reachable(places, facts)), unread=unread)


def _place(facts: Facts, reached: str) -> Place:
    links = interfaces(facts)
    devices = list(_devices(facts))
    if (said := _said(facts)) is not None:
        ports = tuple(_filled_in(port, devices) for port in said.ports)
        return msgspec.structs.replace(said, node=facts.node, ports=ports)
    routes = {4: _get(facts, "net.default_interface"), 6: _get(facts, "net.default_interface6")}
    management = {plain(a) for a in (reached, _get(facts, "net.reached_at")) if a}
    chosen, why = choose(links, routes, management)
    own = next((link for link in links if link.name == chosen), None)
    back = [a for link in links for a in link.all_addresses if a in management]
    address = own.address if own else ""
    return Place(
        node=facts.node,
        address=address,
        why=why,
        interface=chosen,
        management=back[0] if back else address,
        ports=tuple(_ports(links, devices, routes[4])),
    )


# ---- interfaces ------------------------------------------------------------------------------------------------------


def interfaces(facts: Facts) -> list[Interface]:
    """The interfaces of a node; Unread where they could not be listed."""
    return [_interface(facts, name) for name in facts.keys("net.links")]


def kind_of(link: Interface) -> str:
    """What an interface is, by the table."""
    driver = link.driver.rsplit("/", 1)[-1]
    for row in _table().kind:
        if (
            (not row.names or any(fnmatch(link.name, n) for n in row.names))
            and (not row.types or link.type in row.types)
            and (not row.drivers or driver in row.drivers)
            and (not row.devtypes or link.devtype in row.devtypes)
            and row.device in (None, link.has_device)
            and row.enslaved in (None, link.is_enslaved)
        ):
            return row.kind
    raise AssertionError("the last row of the table fits any interface")


def choose(links: Sequence[Interface], routes: Mapping[int, str], reached: Iterable[str]) -> tuple[str, str]:
    """The interface whose address programs use, and why that one; empty where none will do.

    `routes`: 4 and 6 -> the interface of that default route. `reached`: addresses somebody outside uses already.
    """
    usable = [(link, kind_of(link)) for link in links if link.address]
    for row in _table().rank:
        for link, kind in usable:
            if (
                kind in row.kinds
                and (not row.carrier or link.has_carrier)
                and (not row.route or routes.get(row.route) == link.name)
                and (not row.reached or set(reached) & set(link.all_addresses))
            ):
                return link.name, row.why
    return "", ""


def _interface(facts: Facts, name: str) -> Interface:
    def text(key: str) -> str:
        return _get(facts, "net.links", name, key)

    found = tuple(str(a).partition("/")[0] for a in _list(facts, "net.links", name, "addresses"))
    # a captured node may not say what stands behind an interface: its driver does, then
    has_device = bool(text("pci") or text("driver"))
    return Interface(
        name=name,
        address=_best(found),
        all_addresses=found,
        type=text("type"),
        driver=text("driver"),
        devtype=text("devtype"),
        has_device=has_device,
        is_enslaved=bool(text("master")),
        has_carrier=text("operstate") == "up",
    )


def plain(address: str) -> str:
    """An address as the kernel writes it; anything else as it is: slurm.conf and ssh may write IPv6 in another way.

    >>> plain("2001:DB8:0::7"), plain("n7.cluster")
    ('2001:db8::7', 'n7.cluster')
    """
    try:
        return str(ipaddress.ip_address(address))
    except ValueError:
        return address


def _best(found: Sequence[str]) -> str:
    routed = [a for a in found if not a.startswith(("fe80:", "127.", "169.254.")) and a != "::1"]
    return next((a for a in routed if ":" not in a), routed[0] if routed else "")


# ---- ports on the fabric ---------------------------------------------------------------------------------------------


def _devices(facts: Facts) -> Iterator[Port]:
    """Every port of every RDMA device, as far as it could be read."""
    try:
        names = facts.keys("ib.devices")
    except Unread:
        return
    for name in sorted(names, key=natural):
        netdevs = _list(facts, "ib.devices", name, "netdevs")
        numa = _value(facts, "ib.devices", name, "numa_node")
        for i, number in enumerate(sorted(_names(facts, "ib.devices", name, "ports"), key=natural)):
            layer = _get(facts, "ib.devices", name, "ports", number, "link_layer")
            yield Port(
                rail=shown(name if number == "1" else f"{name}/{number}", MAX_NAME),
                interface=str(netdevs[i]) if i < len(netdevs) else "",
                device=name,
                port=int(number) if re.fullmatch("[0-9]{1,5}", number) else 1,
                link_layer="InfiniBand" if layer == "InfiniBand" else "Ethernet" if layer == "Ethernet" else "",
                guid=_get(facts, "ib.devices", name, "node_guid"),
                pci=_get(facts, "ib.devices", name, "pci"),
                numa=numa if isinstance(numa, int) and numa >= 0 else None,
            )


def _ports(links: Sequence[Interface], devices: Sequence[Port], default: str) -> Iterator[Port]:
    """The rails: RDMA interfaces beside the default route's, then RDMA ports that have no interface."""
    by_name = {link.name: link for link in links}
    kinds = {link.name: kind_of(link) for link in links}
    owners = {port.interface: port for port in devices if port.interface}
    for name in sorted(by_name, key=natural):
        if kinds[name] == "rdma" and name != default:
            port = owners.get(name, Port(rail=name))
            yield msgspec.structs.replace(
                port, rail=shown(name, MAX_NAME), interface=name, address=by_name[name].address
            )
    yield from (port for port in devices if port.interface not in by_name)


def _filled_in(said: Port, devices: Iterable[Port]) -> Port:
    """What a file says of a port, with what was read of its device."""
    found = next((p for p in devices if p.device and (p.device, p.port) == (said.device, said.port)), None)
    if found is None:
        return said
    empty = ("guid", "pci", "link_layer", "numa")
    return msgspec.structs.replace(said, **{k: getattr(said, k) or getattr(found, k) for k in empty})


def natural(name: str) -> tuple[tuple[int, int | str], ...]:
    """Sorts `ib2` before `ib10`."""
    parts = re.findall(r"[0-9]{1,18}|[^0-9]+", name)
    return tuple((0, int(part)) if part[0] in "0123456789" else (1, part) for part in parts)


# ---- what a node says is no reason to send to somebody else ----------------------------------------------------------


def _reachable(places: Sequence[Place], facts: Sequence[NodeFacts]) -> Iterator[Place]:
    """The places without addresses that the others must not send to, whatever a node says its own are.

    A unicast address of private use (RFC 6890) may be anybody's of this site. A global one is somebody's in the world:
    it counts where another node of the run has an interface in its network.
    """
    networks = _Networks(facts if any(_scope(a) == "global" for place in places for a in _addresses(place)) else ())
    for place in places:

        def kept(address: str, node: str = place.node) -> str:
            scope = _scope(address) if address else ""
            return address if scope == "site" or (scope == "global" and networks.show(address, node)) else ""

        own = [kept(port.address) for port in place.ports]
        if kept(place.address) == place.address and own == [port.address for port in place.ports]:
            yield place
            continue
        ports = tuple(msgspec.structs.replace(p, address=a) for p, a in zip(place.ports, own, strict=True))
        yield msgspec.structs.replace(place, address=kept(place.address), ports=ports)


def _addresses(place: Place) -> Iterator[str]:
    return (a for a in (place.address, *(port.address for port in place.ports)) if a)


class _Networks:
    """The networks of all nodes' interfaces, and whose each is."""

    def __init__(self, facts: Iterable[NodeFacts]) -> None:
        self._who: dict[tuple[int, int], dict[int, set[str]]] = {}
        """(version, length of prefix) -> network -> nodes."""
        for record in facts:
            for network in _networks(Facts(record)):
                found = self._who.setdefault((network.version, network.prefixlen), {})
                found.setdefault(
                    int(network.network_address) >> (network.max_prefixlen - network.prefixlen), set()
                ).add(record.node)

    def show(self, address: str, node: str) -> bool:
        """Whether an address lies in a network of another node than this one."""
        try:
            found = ipaddress.ip_address(address)
        except ValueError:
            return False
        number = int(found)
        return any(
            who.get(number >> (found.max_prefixlen - length), set()) - {node}
            for (version, length), who in self._who.items()
            if version == found.version
        )


@functools.lru_cache(1 << 16)
def _scope(address: str) -> str:
    """Whose an address can be: `site`, `global`, or nobody's alone (empty)."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return ""
    if found.is_multicast or found.is_unspecified or found.is_reserved or found == BROADCAST:
        return ""
    return "global" if found.is_global else "site"


def _networks(facts: Facts) -> Iterator[Network]:
    """The networks of a node's interfaces."""
    for name in _names(facts, "net.links"):
        for address in _list(facts, "net.links", name, "addresses"):
            try:
                network = ipaddress.ip_network(str(address), strict=False)
            except ValueError:
                continue
            if network.prefixlen >= MIN_PREFIX[network.version]:
                yield network.supernet(new_prefix=min(network.prefixlen, MAX_PREFIX[network.version]))


# ---- facts, where a hole is nothing ----------------------------------------------------------------------------------


def _said(facts: Facts) -> Place | None:
    """What the node's file says of its place; None where there is none, or it is no such record."""
    try:
        found = facts.get("net.place")
        return msgspec.convert(found, Place) if found else None
    except (Unread, msgspec.ValidationError):
        return None


def _value(facts: Facts, path: str, *keys: str) -> Any:
    try:
        return facts.get(path, *keys)
    except Unread:
        return None


def _get(facts: Facts, path: str, *keys: str) -> str:
    found = _value(facts, path, *keys)
    return "" if found is None else str(found)


def _list(facts: Facts, path: str, *keys: str) -> list[Any]:
    found = _value(facts, path, *keys)
    return found if isinstance(found, list) else []


def _names(facts: Facts, path: str, *keys: str) -> list[str]:
    found = _value(facts, path, *keys)
    return list(found) if isinstance(found, dict) else []

"""Where nodes reach each other, and how fast that link is: the address book that the probe makes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from fairlead.base.nodeset import NodeSet, fold
from fairlead.cluster import Cluster, Command
from fairlead.errors import ClusterError, PathsExhausted
from fairlead.fabric.transport.lanes import lanes
from fairlead.probe import KEEP_BYTES, LIMIT_S, NodeAnswer, arguments, program, sort_answers
from fairlead.probe.addresses import book_of
from fairlead.records.addressbook import Place
from fairlead.records.facts import Facts, NodeFacts, Unread
from fairlead.spec import vmsize
from fairlead.spec.model import Spec


@dataclass(frozen=True)
class Reach:
    """Of each node."""

    addresses: Mapping[str, str]
    """The address by which the others take from it."""
    links: Mapping[str, tuple[float, str]]
    """(bytes a second of the link that has this address, who says so); only of nodes where somebody does."""
    places: Mapping[str, Place]
    """All that is known of where each node sits; only of nodes that answered."""


def reach(cluster: Cluster, spec: Spec, nodes: NodeSet) -> Reach:
    """Asks every node. Raises ClusterError where one answers without an address."""
    probe, words = program(), arguments(imds=False, limit_s=LIMIT_S)
    pythons = {n: pool.python for pool in spec.pools for n in pool.nodes}
    commands = {n: Command(argv=probe.words(pythons.get(n, "python3"), words), stdin=probe.stdin) for n in nodes}
    results = cluster.run_each(commands, limit_s=max(spec.access.timeout_s, LIMIT_S), keep_bytes=KEEP_BYTES)
    facts, _ = sort_answers([
        NodeAnswer(r.node, r.stdout.data if r.ok else None, r.error, r.hint, r.code) for r in results
    ])  # fmt: skip
    places = {place.node: place for place in book_of(facts).places}
    found = {name: place.address for name, place in places.items()}
    without = [n for n in found if not found[n]]
    if without:
        text = f"{fold(without)} cannot be reached by the others: no address that the probe found will do"
        raise ClusterError("weights/no-address", text, nodes=fold(without), hint=f"fairlead probe -w {fold(without)}")
    # one that does not answer takes part all the same: that it is lost is said where everything is said of it
    of = {record.node: record for record in facts}
    links = {n: link for n in of if (link := _link(of[n], places[n].interface, spec)) is not None}
    return Reach({n: found.get(n, "0.0.0.0") for n in nodes}, links, places)  # noqa: S104 - never bound: it does not answer


def meeting_places(found: Reach) -> Mapping[str, str]:
    """Where nodes meet to agree on planes: by management, which stays while planes come and go. Raises PathsExhausted
    where a node and the next one have no plane in common.
    """
    known = [place for place in found.places.values() if place.address]
    for here, there in pairwise([*known, *known[:1]]):
        lanes(here, there)
    return {n: (found.places[n].management if n in found.places else "") or at for n, at in found.addresses.items()}


def also_at(place: Place | None, address: str) -> list[str]:
    """Addresses of a node's further ports on the fabric, where there are several; it listens at these, too."""
    addresses = [port.address for port in place.ports if port.address] if place is not None else []
    return [other for other in addresses if other != address] if len(addresses) > 1 else []


def lanes_of(here: Place | None, there: Place | None) -> list[tuple[str, str]]:
    """(address here, address there) of each rail that two nodes have in common, where there are several."""
    if here is None or there is None:
        return []
    try:
        found = [(lane.here, lane.there) for lane in lanes(here, there)]
    except PathsExhausted:
        return []
    return found if len(found) > 1 else []


def _link(record: NodeFacts, interface: str, spec: Spec) -> tuple[float, str] | None:
    """What the kernel says of an interface; where it does not, what the VM size is documented with for Ethernet."""
    facts = Facts(record)
    try:
        speed = facts.get("net.links", interface, "speed")
        if isinstance(speed, int) and speed > 0:
            return speed * 1e6 / 8, f"speed of {interface}"
    except Unread:
        pass
    try:
        is_ethernet = str(facts.get("net.links", interface, "type")) == "1"
    except Unread:
        return None
    size = next((vmsize.size(pool.size) for pool in spec.pools if record.node in pool.nodes), None)
    if is_ethernet and size is not None and size.ethernet_gbps:
        return size.ethernet_gbps * 1e9 / 8, f"documentation of {size.name}"
    return None

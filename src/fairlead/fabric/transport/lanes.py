"""Which planes two ends share, and every way through them that a sender can choose. Pure.

A lane is one plane as one end sees it: its own port, the peer's port, and the addresses to send to. Where the fabric
is steered by micro-segments, each address is a path (spec/usid.py); elsewhere there is one address, and the UDP source
port is what a switch spreads flows by.

Slots are the core's: plane by plane, a power of two in each; so is the way that each takes (mrc/ways.py). Where a plane
has fewer ways than slots they repeat, each with a flow label or a source port of its own, so that every slot is an
entropy value that answers can name.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address

from fairlead.errors import PathsExhausted
from fairlead.fabric.mrc import ways
from fairlead.fabric.mrc.profile import Profile
from fairlead.records.addressbook import Place, Port
from fairlead.spec import usid

MAX_EVS = 256
SOURCES = 8
"""Source ports of a plane whose ways nobody can name: by so many values a switch may spread."""
LABEL_BITS = 16
WINDOWS = 3
"""A largest window is 1.5 round trips; to stand at the target delay it takes so many of them."""
MAX_BDP_BYTES = 2_000_000
"""Rate times round trip: with it and the target delay below, NSCC's integers and 1024 packets suffice."""
SACK_PACKETS = 16
"""Packets to a SACK where the ends themselves are what limits: each SACK costs both of them as much as a packet."""
SACK_LEAST_BYTES = 1024  # what a short packet counts as, `sack_floor` of the profile
DELAY_ROUND_TRIPS = 4
"""A program is away from its sockets for milliseconds now and then: that is no congestion."""


@dataclass(frozen=True, slots=True)
class Lane:
    """One plane between two ends."""

    rail: str
    here: str
    there: str
    ways: tuple[str, ...]
    """Addresses to send to, one a path; a single one where the source port is the choice."""
    is_steered: bool = False
    rate_mbps: int = 0
    """What both ports are meant to carry; 0: nobody says."""


@dataclass(frozen=True, slots=True)
class Route:
    """How a packet of one entropy value goes out."""

    rail: int
    """Number of the local port."""
    source: int
    """Which of its sockets, by the source port they have."""
    to: str
    label: int


def lanes(here: Place, there: Place) -> tuple[Lane, ...]:
    """The planes that both ends have a port in, in the order of this end's ports. PathsExhausted if there is none."""
    steering = here.steering
    steered = steering.by == "usid" and there.steering == steering and here.seat is not None and there.seat is not None
    if not steered and "usid" in (steering.by, there.steering.by):
        raise PathsExhausted(
            "fabric/no-common-plane",
            f"{_said(here)} and {_said(there)}: only one end's fabric, or another one's, is steered by micro-segments",
            hint="give both ends places of the same fabric",
        )
    out = []
    for port in here.ports:
        other = next((p for p in there.ports if _fits(port, p, steered=steered)), None)
        if other is None:
            continue
        ways = _usid_ways(here, there, port.plane) if steered and port.plane is not None else (other.address,)
        rates = [p.rate_bps for p in (port, other) if p.rate_bps]
        rate_mbps = int(min(rates) // 1_000_000) if rates else 0
        out.append(Lane(port.rail, port.address, other.address, ways, steered, rate_mbps))
    if not out and (family := _family(here.address)) and family == _family(there.address):
        out.append(Lane("", here.address, there.address, (there.address,)))
    if not out:
        raise PathsExhausted(
            "fabric/no-common-plane",
            f"{_said(here)} and {_said(there)}: no plane in common",
            hint="give both ends ports of one plane, with addresses of one family",
        )
    return tuple(out)


def _fits(mine: Port, theirs: Port, *, steered: bool) -> bool:
    if not mine.address or not _family(mine.address) or _family(mine.address) != _family(theirs.address):
        return False
    return mine.plane == theirs.plane if steered else mine.rail == theirs.rail


def _family(address: str) -> int:
    try:
        return ip_address(address).version
    except ValueError:
        return 0


def _said(place: Place) -> str:
    rails = ", ".join(p.rail for p in place.ports if p.address) or place.address or "no address"
    return f"{place.node or 'one end'} has {rails}"


def _usid_ways(here: Place, there: Place, plane: int) -> tuple[str, ...]:
    assert here.seat is not None
    assert there.seat is not None
    args = (there.seat.t0, there.seat.port)
    if here.seat.t0 == there.seat.t0:
        return (str(usid.path_address(plane, here.seat.t0, None, *args)),)
    return tuple(str(usid.path_address(plane, here.seat.t0, t1, *args)) for t1 in range(here.steering.t1))


def evs_per_plane(lanes: Sequence[Lane]) -> int:
    """Slots of each plane: a power of two that holds the ways of every plane, within what a queue pair can have."""
    need = max(len(lane.ways) if lane.is_steered else SOURCES for lane in lanes)
    room = 1 << (MAX_EVS // len(lanes)).bit_length() - 1
    return min(1 << (need - 1).bit_length(), room)


def routes(
    lanes: Sequence[Lane], ports: Sequence[Sequence[int]], rails: Sequence[int], seed: int
) -> tuple[list[int], dict[int, Route]]:
    """The entropy value of each slot, and the route of each entropy value.

    `ports` are the source ports of this end's sockets, `rails` the local port of each lane.
    """
    chance = random.Random(seed)  # noqa: S311 - spreads flows, keeps no secret
    count = evs_per_plane(lanes)
    labels = chance.sample(range(1, 1 << LABEL_BITS), count * len(lanes))  # all ports may have one number
    evs: list[int] = []
    out: dict[int, Route] = {}
    for number, (lane, rail) in enumerate(zip(lanes, rails, strict=True)):
        sources, num_ways = ports[rail], len(lane.ways)
        first, step = chance.randrange(num_ways), chance.choice(ways.steps(num_ways))
        for i in range(count):
            source = 0 if lane.is_steered else i % len(sources)
            label = labels[len(evs)] if lane.is_steered else 0
            # sockets of two addresses may have got the same port
            ev = sources[source] << LABEL_BITS | (label or number)
            evs.append(ev)
            out[ev] = Route(rail, source, lane.ways[ways.way_of(i, num_ways, first, step)], label)
    return evs, out


def profile(
    lanes: Sequence[Lane], *, mtu: int, rtt_ns: int, driver_mbps: int, rate_mbps: int = 0, **changes: object
) -> Profile:
    """What a queue pair over these lanes is to be like; `mtu` is the payload of a packet.

    `driver_mbps` is what this end can hope to send and the other to hold; nothing is reckoned from more. Where that is
    less than the links carry, a SACK stands for several packets of a burst.
    """
    said = rate_mbps or sum(lane.rate_mbps for lane in lanes if all(other.rate_mbps for other in lanes))
    count = evs_per_plane(lanes)
    own: dict[str, object] = {"planes": len(lanes), "evs_per_plane": count, "evs_active": count, "mtu": mtu}
    own["ev_min_active"] = 1  # one way of one plane is enough to go on by
    own["target_delay_ns"] = DELAY_ROUND_TRIPS * rtt_ns
    links_mbps = min(WINDOWS * said or driver_mbps, MAX_BDP_BYTES * 8_000 // rtt_ns)
    own["rate_mbps"] = min(links_mbps, driver_mbps)
    if driver_mbps <= links_mbps:
        own["sack_bytes"] = SACK_PACKETS * max(mtu, SACK_LEAST_BYTES)
    return Profile.software(rtt_ns, **(own | changes))

"""Which packets `fairlead fabric ping` sends over named paths between nodes, and what is seen of them. Pure.

Where ways can be chosen (micro-segments), a pair of nodes is tested over every T1 of every plane, and each node besides
by packets to itself: over its T0 and one T1 and back, which need a single link between switches, and by its T0 alone.
Elsewhere a pair is tested by several source ports on every rail, and nobody knows which way each takes.

An address that two nodes give as theirs is nobody's: no packet is sent to it or from it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fairlead.base.units import counted
from fairlead.preflight.pairs.paths import Paths
from fairlead.preflight.pairs.steered import T0_ALONE, Steering
from fairlead.spec import usid

FLOWS = 8
"""Source ports of a pair on a rail, where the source port is what a switch spreads by."""
MAX_PARTNERS = 16
"""Nodes that each node sends to, the next ones in the list: a port has witnesses enough, and time does not grow."""


@dataclass(frozen=True, slots=True)
class Ping:
    """One path that packets are sent over, and the way answers take."""

    src: int
    dst: int
    path: int
    """Number of the plane or rail, as in Paths."""
    t1: int | None = None
    """The T1 that the packets take, or T0_ALONE; None: there is none to choose."""
    flow: int = 0
    to: str = ""
    back: str = ""
    """Address for answers; empty: where the packet came from."""

    @property
    def is_loop(self) -> bool:
        """Whether it goes back to its sender."""
        return self.src == self.dst


@dataclass(frozen=True, slots=True)
class Seen:
    """What became of the packets of one Ping, window by window."""

    sent: tuple[int, ...]
    heard: tuple[int, ...]
    """At the other end."""
    back: tuple[int, ...]
    """Answers that came back."""
    rtt_ns: tuple[int, ...]
    """The shortest round trip of each window; 0: none."""
    p50_ns: int = 0
    p99_ns: int = 0
    full_there: int = 0
    """Packets that the other end's socket had no room for, of this path and of others."""
    full_here: int = 0
    """As many that the sender's own socket for answers had no room for."""
    aside_there: tuple[int, ...] = ()
    """Packets that did come to the other end, but by another NIC or from another address: they tested another path."""
    aside_here: tuple[int, ...] = ()
    """Answers that came back so."""
    refused: tuple[int, ...] = ()
    """Answers that the other end's own kernel did not let out."""
    big: tuple[int, int, int] = (0, 0, 0)
    """Full-size packets of the whole run: sent, heard, and answered by such that came back."""
    big_bytes: int = 0
    """Payload of one."""


@dataclass(frozen=True)
class Plan:
    """Who is tested, and how."""

    nodes: tuple[str, ...]
    paths: Paths
    steering: Steering
    pings: tuple[Ping, ...]
    partners: int
    twins: Mapping[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    """Address -> the (node, path) that give it as theirs, where these are several nodes."""

    @property
    def used(self) -> tuple[int, ...]:
        """The paths that packets are sent over."""
        return tuple(range(1, len(self.paths.labels))) or (0,)

    def name(self, ping: Ping) -> str:
        """A path as people call it."""
        label = self.paths.labels[ping.path]
        if ping.t1 is None:
            return f"{label} flow {ping.flow}"
        return f"{label} over {'its T0 alone' if ping.t1 == T0_ALONE else f't1-{ping.t1}'}"


def plan_of(nodes: Sequence[str], paths: Paths) -> Plan:
    """Every path between each node and its partners; `nodes` all have a place."""
    twins = _twins(nodes, paths)
    seats = {i: paths.seats[n] for i, n in enumerate(nodes) if n in paths.seats}
    steering = Steering(paths.t1, seats, paths.planes, len(paths.labels))
    partners = min(len(nodes) - 1, MAX_PARTNERS)
    pings: list[Ping] = []
    for src, name in enumerate(nodes):
        for shift in range(1, partners + 1):
            dst = (src + shift) % len(nodes)
            other = nodes[dst]
            for path in range(1, len(paths.labels)) or (0,):
                here, there = paths.addresses[name][path], paths.addresses[other][path]
                if here and there and not {here, there} & twins.keys():
                    pings += _between(steering, src, dst, path, there)
        if steering.is_there and src in seats:
            for path in steering.planes:
                if paths.addresses[name][path] not in {"", *twins}:
                    ways = range(T0_ALONE, steering.t1)
                    pings += [Ping(src, src, path, t1, to=steering.address(src, path, t1)) for t1 in ways]
    return Plan(tuple(nodes), paths, steering, tuple(pings), partners, twins)


def _twins(nodes: Sequence[str], paths: Paths) -> dict[str, tuple[tuple[int, int], ...]]:
    """Addresses that several nodes give as theirs on the paths that are used."""
    own: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for n, name in enumerate(nodes):
        for path in range(1, len(paths.labels)) or (0,):
            if address := paths.addresses[name][path]:
                own[address].append((n, path))
    return {address: tuple(ends) for address, ends in own.items() if len({n for n, _ in ends}) > 1}


def _between(steering: Steering, src: int, dst: int, path: int, there: str) -> Iterator[Ping]:
    """The paths of a pair on one plane or rail."""
    if path not in steering.planes or not {src, dst} <= steering.seats.keys():
        yield from (Ping(src, dst, path, flow=flow, to=there) for flow in range(FLOWS))
        return
    (t0, port), (other, far), plane = steering.seats[src], steering.seats[dst], steering.planes[path]
    for t1 in [None] if t0 == other else range(steering.t1):
        to, back = (
            usid.path_address(plane, t0, t1, other, far),
            usid.path_address(plane, other, t1, t0, port),
        )
        yield Ping(src, dst, path, T0_ALONE if t1 is None else t1, to=str(to), back=str(back))


def tested(plan: Plan) -> str:
    """What was sent over, in words."""
    links = len({(plan.steering.seats[p.src][0], p.t1, p.path) for p in plan.pings if p.is_loop and p.t1 != T0_ALONE})
    beside = f", {counted(links, 'link')} between switches by themselves" if links else ""
    return f"{len(plan.nodes)} nodes, {counted(len(plan.pings), 'path')}{beside}"

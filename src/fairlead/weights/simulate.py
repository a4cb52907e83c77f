"""A spread in virtual time: the real scheduler and the real order of sending, over links that are arithmetic.

A link carries one chunk after the other at its rate, each way; the origin gives one chunk after the other at its own.
What a node forwards is verified first, so it is passed on when it has come whole. Control messages take `control_s`
each way.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fairlead.weights.onnode.edges import NOWHERE, Edge, may_fetch
from fairlead.weights.scheduler import Lease, Look, Order, Return, Scheduler, Survey, Take


@dataclass(frozen=True, kw_only=True)
class World:
    """What is simulated."""

    nodes: int
    chunks: int
    chunk_bytes: int = 4 << 20
    link: float = 1.25e9
    """Bytes a second of a node's link, each way."""
    origin: float = 1e12
    """Bytes a second of the origin."""
    per_node: float = 1e12
    """Bytes a second that one node can get from the origin."""
    latency_s: float = 50e-6
    control_s: float = 2e-3
    window: int = 16
    fetching: int = 0
    """Nodes that may ask the origin, spread evenly; 0: all."""
    slow: Mapping[int, float] = field(default_factory=dict)
    """Node -> the share of its link that it has."""
    dies: Mapping[int, float] = field(default_factory=dict)
    """Node -> when it is lost, in seconds."""
    joins_s: tuple[float, ...] = ()
    """When further nodes come."""
    has: Mapping[int, int] = field(default_factory=dict)
    """Node -> how many of the first chunks it has to begin with."""
    lost_after_s: float = 1.0
    """How long it takes until the loss of a node is known."""

    @property
    def bound_s(self) -> float:
        """No way of spreading ends sooner: the origin gives every byte once, every link takes every byte once."""
        size = self.chunks * self.chunk_bytes
        return max(size / self.origin, size / self.link, size / self.per_node / (self.fetching or self.nodes))


@dataclass
class Node:
    """A simulated node."""

    rate: float
    has: bytearray
    out_free_s: float = 0.0
    in_free_s: float = 0.0
    fetch_free_s: float = 0.0
    edges: dict[int, Edge] = field(default_factory=dict)
    under_way: dict[int, int] = field(default_factory=dict)
    """Peer -> chunks that were sent to it and have not come whole: a connection buffers a little."""
    hops: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Chunk -> (hops it came, who fetched it)."""
    sent: dict[int, int] = field(default_factory=dict)
    to_fetch: list[int] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)
    fetching: int = 0
    alive: bool = True
    count: int = 0
    done_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """What came of it."""

    took_s: float
    """When the last node that lives had everything."""
    done_s: dict[int, float]
    from_origin: int
    """Chunks that left the origin, also twice."""
    orders: int
    told: int
    """Messages of nodes to the control side, signs of life left out."""
    transfers: int
    incomplete: int


class Simulation:
    """One spread."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.nodes = [Node(rate=world.link * world.slow.get(n, 1.0), has=self._first(n)) for n in range(world.nodes)]
        for node in self.nodes:
            node.count = sum(node.has)
            node.hops = {c: (1, NOWHERE) for c, flag in enumerate(node.has) if flag}
        step = world.nodes / (world.fetching or world.nodes)
        may = {int(i * step) for i in range(world.fetching or world.nodes)}
        self.scheduler = Scheduler(
            world.chunks, [bytearray(n.has) for n in self.nodes], fetching=may, window=world.window
        )
        self.now = self.origin_free_s = 0.0
        self.queue: list[tuple[float, int, Callable[..., None], tuple[int, ...]]] = []
        self.order = itertools.count()
        self.from_origin = self.orders = self.told = self.transfers = 0

    def run(self, limit_s: float = 1e6) -> Simulated:
        """To its end."""
        world = self.world
        self.at(world.control_s, lambda: self.obey(self.scheduler.start()))
        for node, when in world.dies.items():
            self.at(when, self.die, node)
        for when in world.joins_s:
            self.at(when, self.join)
        self.at(1.0, self.look)
        while self.queue and self.now < limit_s:
            self.now, _, what, args = heapq.heappop(self.queue)
            what(*args)
        alive = {n: node.done_s for n, node in enumerate(self.nodes) if node.alive}
        return Simulated(
            took_s=max(alive.values()),
            done_s=alive,
            from_origin=self.from_origin,
            orders=self.orders,
            told=self.told,
            transfers=self.transfers,
            incomplete=sum(node.count < world.chunks for node in self.nodes if node.alive),
        )

    def at(self, when: float, what: Callable[..., None], *args: int) -> None:
        """Something will happen."""
        heapq.heappush(self.queue, (max(self.now, when), next(self.order), what, args))

    def tell(self, event: Callable[[], list[Order]]) -> None:
        """A message to the control side, and what it orders then."""
        self.told += 1
        self.at(self.now + self.world.control_s, lambda: self.obey(event()))

    def obey(self, orders: list[Order]) -> None:
        """Orders reach their nodes."""
        self.orders += len(orders)
        for order in orders:
            self.at(self.now + self.world.control_s, lambda order=order: self.ordered(order))

    def ordered(self, order: Order) -> None:
        """One order at its node."""
        node = self.nodes[order.node]
        if not node.alive:
            return
        match order:
            case Lease():
                node.to_fetch.extend(order.chunks)
                self.fetch(order.node)
            case Return():
                left, node.to_fetch = node.to_fetch, []
                self.tell(lambda: self.scheduler.returned(order.node, left))
            case Survey():
                flags = bytearray(node.has)
                self.tell(lambda: self.scheduler.surveyed(order.node, flags))
            case Take():
                self.take(order)

    def take(self, order: Take) -> None:
        """A node takes from others now: what it had taken from before is over."""
        me = order.node
        for n in self.nodes[me].sources:
            self.nodes[n].edges.pop(me, None)
        self.nodes[me].sources = [source for source, _ in order.sources]
        for source, kind in order.sources:
            other = self.nodes[source]
            edge = Edge(kind, source, me, order.width, bytearray(self.nodes[me].has))
            for chunk, (hops, first) in sorted(other.hops.items()):
                edge.offer(chunk, hops, first)
            other.edges = dict(sorted({**other.edges, me: edge}.items(), key=lambda e: not e[1].is_main))
            self.send(source)

    def fetch(self, n: int) -> None:
        """Ask the origin for as much as may be under way."""
        node, world = self.nodes[n], self.world
        while node.to_fetch and node.fetching < 4 and may_fetch(node.edges.values()):
            chunk = node.to_fetch.pop(0)
            if node.has[chunk]:
                self.tell(lambda chunk=chunk: self.scheduler.fetched(n, [chunk]))  # type: ignore[misc]
                continue
            node.fetching += 1
            self.from_origin += 1
            self.origin_free_s = max(self.now, self.origin_free_s) + world.chunk_bytes / world.origin
            node.fetch_free_s = max(self.origin_free_s, node.fetch_free_s + world.chunk_bytes / world.per_node)
            self.at(node.fetch_free_s, self.came, n, chunk)

    def came(self, n: int, chunk: int) -> None:
        """What the origin gave has reached a node's link."""
        self.into(n, self.fetched, n, chunk)

    def fetched(self, n: int, chunk: int) -> None:
        """A chunk came from the origin."""
        node = self.nodes[n]
        if not node.alive:
            return
        node.fetching -= 1
        self.tell(lambda: self.scheduler.fetched(n, [chunk]))
        for source in node.sources:
            if n in self.nodes[source].edges:
                self.nodes[source].edges[n].peer_has([chunk])
        self.got(n, chunk, 0, n)
        self.fetch(n)

    def into(self, n: int, then: Callable[..., None], *args: int) -> None:
        """A chunk has come as far as a node's own link, which takes one after the other."""
        node = self.nodes[n]
        needs_s = self.world.chunk_bytes / node.rate
        # it came in while it was sent: an idle link has it now, a busy one when it has taken what came before
        node.in_free_s = max(self.now, node.in_free_s + needs_s)
        self.at(node.in_free_s + self.world.latency_s, then, *args)

    def got(self, n: int, chunk: int, hops: int, first: int) -> None:
        """A node has one more chunk."""
        node = self.nodes[n]
        if node.has[chunk]:
            return
        node.has[chunk] = 1
        node.count += 1
        node.hops[chunk] = (hops, first)
        if node.count == self.world.chunks:
            node.done_s = self.now
        for edge in node.edges.values():
            edge.offer(chunk, hops, first)
        self.send(n)

    def send(self, n: int) -> None:
        """Begin what can be sent: one chunk at a time to each peer, those of the ring first."""
        node, world = self.nodes[n], self.world
        if not node.alive or node.out_free_s > self.now:
            return
        for peer, edge in node.edges.items():
            if not edge.hops or node.under_way.get(peer, 0) >= 2:
                continue
            chunk = edge.next()
            if chunk < 0:
                continue
            self.transfers += 1
            node.under_way[peer] = node.under_way.get(peer, 0) + 1
            node.sent[peer] = node.sent.get(peer, 0) + 1
            node.out_free_s = self.now + world.chunk_bytes / node.rate
            self.at(node.out_free_s, self.left, n, peer, chunk)
            return

    def left(self, n: int, peer: int, chunk: int) -> None:
        """A node has sent a chunk, and can send to another peer."""
        self.into(peer, self.arrived, n, peer, chunk)
        self.send(n)

    def arrived(self, n: int, peer: int, chunk: int) -> None:
        """A chunk is whole at the node it was sent to."""
        node, other = self.nodes[n], self.nodes[peer]
        node.under_way[peer] -= 1
        if other.alive and node.alive:
            hops, first = node.hops[chunk]
            self.got(peer, chunk, hops + 1, first)
        self.send(n)
        if node.to_fetch:
            self.fetch(n)

    def die(self, n: int) -> None:
        """A node is lost."""
        self.nodes[n].alive = False
        self.at(self.now + self.world.lost_after_s, lambda: self.missed(n))

    def missed(self, n: int) -> None:
        """Its loss is known: nobody sends to it any more."""
        for source in self.nodes[n].sources:
            self.nodes[source].edges.pop(n, None)
        self.obey(self.scheduler.ended(n))

    def join(self) -> None:
        """One more node."""
        self.nodes.append(Node(rate=self.world.link, has=bytearray(self.world.chunks)))
        self.tell(lambda: self.scheduler.joined(bytearray(self.world.chunks)))

    def look(self) -> None:
        """Once a second, as long as anybody lacks something."""
        looks = {
            n: Look(node.count, {p: e.backlog for p, e in node.edges.items()}, dict(node.sent))
            for n, node in enumerate(self.nodes)
            if node.alive
        }
        self.obey(self.scheduler.look(looks))
        if any(node.alive and node.count < self.world.chunks for node in self.nodes):
            self.at(self.now + 1.0, self.look)

    def _first(self, n: int) -> bytearray:
        num = self.world.has.get(n, 0)
        return bytearray(b"\x01" * num + bytes(self.world.chunks - num))


def simulate(world: World) -> Simulated:
    """One spread, to its end."""
    return Simulation(world).run()

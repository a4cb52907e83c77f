"""Who fetches what from the origin, and who takes from whom: a state machine. Events in, orders out; no clock, no
socket.

The control side decides, nodes carry out. It leases chunks to nodes, a few at a time, as they ask for more: each chunk
is with one node only, and a node that is slow to fetch is given less. Once chunks are on their way it says nothing
about them: a node tells of what it fetched, many chunks a message, and once a second how far it is. Whom a node takes
from changes only where a node is lost, is late or is slow.

When a node is lost, all others say what they have; what none of them has, and no living node is fetching, is leased
again. So a byte leaves the origin twice only where every node that had it is gone.
"""

from __future__ import annotations

import statistics
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from fairlead.weights.onnode.edges import ALL
from fairlead.weights.shape import Shape, Sources, apart, grid, ring, width_for

SLOW_LOOKS = 3
"""Looks, one a second, in which a node must be found slow before it is taken out of the ring."""
SLOW_S = 2.0
"""What waits for a node must need so long, and three times as long as with the others."""
MAX_BAD = 3
"""Chunks from one node to another that do not verify before the two are parted."""
MAX_TRIES = 4
"""Nodes that try to fetch a chunk before it counts as not to be had."""


@dataclass(frozen=True, slots=True)
class Lease:
    """Fetch these chunks from the origin, in this order; of those it has already, be the first holder."""

    node: int
    chunks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Take:
    """Take what you lack from these nodes, and from no others."""

    node: int
    sources: Sources
    width: int


@dataclass(frozen=True, slots=True)
class Return:
    """Give back what you were leased and have not begun to fetch."""

    node: int


@dataclass(frozen=True, slots=True)
class Survey:
    """Say what you have."""

    node: int


Order: TypeAlias = Lease | Return | Take | Survey


@dataclass(slots=True)
class Peer:
    """What is known of one node."""

    fetches: bool = True
    """It may ask the origin."""
    denied: bool = False
    """The origin has refused it something that it may give to others."""
    alive: bool = True
    slow: bool = False
    late: bool = False
    has: int = 0
    """Chunks it has."""
    leased: set[int] = field(default_factory=set)
    sources: Sources = ()
    looks: int = 0
    """In how many looks it was found slow."""


@dataclass(frozen=True, slots=True)
class Look:
    """What a node tells once a second."""

    has: int
    """Chunks it has."""
    backlog: Mapping[int, int] = field(default_factory=dict)
    """Node -> chunks that wait to be sent to it."""
    sent: Mapping[int, int] = field(default_factory=dict)
    """Node -> chunks sent to it so far."""


class Scheduler:
    """One spread. Every call returns what is to be ordered."""

    def __init__(
        self,
        num_chunks: int,
        has: Sequence[bytearray],
        *,
        fetching: Iterable[int],
        window: int,
        slow_share: float = 0.5,
    ) -> None:
        """`has` holds what each node has to begin with; `fetching` are the nodes that may ask the origin, `window` the
        chunks that one of them is leased at a time. A node that takes less than `slow_share` of what the middle one
        takes may be slow.
        """
        may = set(fetching)
        # where there are few, everybody is to fetch some: a grid carries only what enters all its rows alike
        self.num_chunks, self.window = num_chunks, max(1, min(window, num_chunks // (2 * max(1, len(may)))))
        self.peers = [Peer(fetches=n in may, has=sum(flags)) for n, flags in enumerate(has)]
        self.shape: Shape | None = None
        self.tries: dict[int, int] = {}
        self.lost: set[int] = set()
        """Chunks that the origin does not give."""
        self.slow_share = slow_share
        self.num_fetched = 0
        self.num_leased = 0
        anywhere = _union(has, num_chunks)
        self.fresh = not any(anywhere)
        self.to_fetch = deque(chunk for chunk, flag in enumerate(anywhere) if not flag)
        self._surveyed: dict[int, bytearray] | None = None
        self._looks: dict[int, Look] = {}
        self._before: dict[int, Look] = {}
        self._best: dict[int, float] = {}
        """Node -> the most chunks that it took in a second."""
        self._demoted_by: dict[int, int] = {}
        self.bad: Counter[tuple[int, int]] = Counter()
        """(giver, taker) -> chunks that did not verify."""
        self.parted: set[tuple[int, int]] = set()

    # ---- events ------------------------------------------------------------------------------------------------------

    def start(self) -> list[Order]:
        """All nodes have said what they have."""
        return [*self._arranged(), *self._leases()]

    def fetched(self, node: int, chunks: Iterable[int]) -> list[Order]:
        """A node has these from the origin; they are verified, and on their way to the next."""
        peer = self.peers[node]
        done = peer.leased.intersection(chunks)
        peer.leased -= done
        self.num_fetched += len(done)
        return self._leases() if done else []

    def refused(self, node: int, chunks: Iterable[int], *, final: bool = False) -> list[Order]:
        """A node could not fetch these. `final`: nobody else could. Others try, a bounded number of them."""
        peer = self.peers[node]
        for chunk in sorted(peer.leased.intersection(chunks), reverse=True):
            peer.leased.discard(chunk)
            self.tries[chunk] = self.tries.get(chunk, 0) + 1
            if final or self.tries[chunk] >= MAX_TRIES:
                self.lost.add(chunk)
            else:
                self.to_fetch.appendleft(chunk)
        if not final and len(self._fetching()) > 1:
            peer.fetches, peer.denied = False, True
        return self._leases()

    def given_up(self) -> None:
        """The origin gives nobody anything any more: what was not fetched is not to be had in this run."""
        self.lost.update(self.to_fetch, *(peer.leased for peer in self.peers if peer.alive))
        self.to_fetch.clear()
        for peer in self.peers:
            peer.leased.clear()

    def returned(self, node: int, chunks: Iterable[int]) -> list[Order]:
        """A node has not begun with these, and will not: others fetch them."""
        peer = self.peers[node]
        for chunk in sorted(peer.leased.intersection(chunks), reverse=True):
            peer.leased.discard(chunk)
            self.to_fetch.appendleft(chunk)
        return self._leases()

    def ended(self, node: int) -> list[Order]:
        """A node is lost: its place in the ring is closed, and the others are asked what they have."""
        peer = self.peers[node]
        if not peer.alive:
            return []
        peer.alive = False
        if peer.fetches:
            self._stand_in()
        self._surveyed = {}
        self._looks.pop(node, None)
        return [*self._arranged(), *(Survey(n) for n in self._alive())]

    def surveyed(self, node: int, flags: bytearray) -> list[Order]:
        """A node's answer. With the last one, what no living node has is leased again."""
        if self._surveyed is None or not self.peers[node].alive:
            return []
        self._surveyed[node] = flags
        self.peers[node].has = sum(flags)
        if not self._surveyed.keys() >= set(self._alive()):
            return []
        known = set(self.to_fetch) | self.lost
        for n in self._alive():
            known |= self.peers[n].leased
        held = _union([flags for n, flags in self._surveyed.items() if self.peers[n].alive], self.num_chunks)
        gone = [chunk for chunk, flag in enumerate(held) if not flag and chunk not in known]
        self.to_fetch.extendleft(reversed(gone))
        self._surveyed = None
        return self._leases()

    def joined(self, flags: bytearray) -> list[Order]:
        """One more node, or one that comes back: it takes from a node of the ring and asks the origin for nothing."""
        self.peers.append(Peer(fetches=not self._fetching(), late=True, has=sum(flags)))
        return [*self._arranged(), *self._leases()]

    def did_not_verify(self, giver: int, taker: int) -> list[Order]:
        """A chunk came otherwise than it was sent. The memory or the link of either may be at fault: the two are
        parted, and what happens with others tells which (`culprits`).
        """
        self.bad[giver, taker] += 1
        if self.bad[giver, taker] != MAX_BAD:
            return []
        self.parted.add((giver, taker))
        return self._arranged()

    @property
    def culprits(self) -> dict[int, list[int]]:
        """Nodes that gave bad chunks to two others, or got bad ones from two, and those others; also the taker of a
        pair that cannot be parted, as it cannot go on.
        """
        out: dict[int, list[int]] = {}
        for side in (0, 1):
            for node in self._alive():
                others = sorted({pair[1 - side] for pair in self.parted if pair[side] == node})
                if len(others) > 1:
                    out[node] = others
        for (giver, taker), num in self.bad.items():
            ends = giver in out or taker in out or not (self.peers[giver].alive and self.peers[taker].alive)
            if num >= 4 * MAX_BAD and not ends:
                out[taker] = [giver]
        return {node: others for node, others in out.items() if self.peers[node].alive}

    def look(self, looks: Mapping[int, Look]) -> list[Order]:
        """What the nodes told in the last second. Who holds up the ring is hung at its side."""
        known = {node: told for node, told in looks.items() if node < len(self.peers)}
        self._before, self._looks = self._looks, {**self._looks, **known}
        for node, told in known.items():
            self.peers[node].has = told.has
        if len(self._alive()) < 3:
            return []
        found = self._slow()
        for node, peer in enumerate(self.peers):
            peer.looks = peer.looks + 1 if node in found else 0
        # a slow node is slow to take and slow to give, so the one behind it is found too: the first of them is meant
        givers = {n: next((s for s, kind in self.peers[n].sources if kind == ALL), n) for n in found}
        for node in sorted(found, key=lambda n: (givers[n] in found, n)):
            if self.peers[node].looks < SLOW_LOOKS:
                continue
            giver = givers[node]
            if giver in self._demoted_by and self.peers[self._demoted_by[giver]].slow:
                # two in a row take slowly from the same one: it is the one that gives slowly
                self.peers[self._demoted_by[giver]].slow = False
                node, giver = giver, node  # noqa: PLW2901
            self.peers[node].slow, self.peers[node].looks = True, 0
            self._demoted_by[giver] = node
            return [Return(node), *self._arranged(), *self._leases()]
        return []

    # ---- what follows ------------------------------------------------------------------------------------------------

    @property
    def is_complete(self) -> bool:
        """Whether every living node has everything that can be had."""
        wanted = self.num_chunks - len(self.lost)
        return all(self.peers[n].has >= wanted for n in self._alive())

    def _alive(self) -> list[int]:
        return [n for n, peer in enumerate(self.peers) if peer.alive]

    def _fetching(self) -> list[int]:
        return [n for n in self._alive() if self.peers[n].fetches]

    def _stand_in(self) -> None:
        """One of those that were not to ask the origin does it in the place of one that is lost; one that the origin
        refused, only where nobody else is left.
        """
        others = [n for n in self._alive() if not self.peers[n].fetches]
        peer = min((self.peers[n] for n in others), key=lambda p: (p.denied, p.slow, p.late), default=None)
        if peer is not None and not (peer.denied and self._fetching()):
            peer.fetches = True

    def _arranged(self) -> list[Order]:
        """Who takes from whom now; orders for those for whom that has changed."""
        alive = self._alive()
        slow = [n for n in alive if self.peers[n].slow]
        late = [n for n in alive if self.peers[n].late]
        whole = len(alive) == len(self.peers) and not slow and not late and self.fresh and not self.parted
        width = width_for(len(alive), self.num_chunks) if whole else len(alive)
        self.shape = (
            grid(len(alive), width) if whole and width < len(alive) else ring(apart(alive, self.parted), slow, late)
        )
        orders: list[Order] = []
        for node in alive:
            sources = self.shape.sources[node]
            if sources != self.peers[node].sources:
                self.peers[node].sources = sources
                orders.append(Take(node, sources, self.shape.width))
        return orders

    def _leases(self) -> list[Order]:
        """Something to fetch for each node that has less than half of what it may have at a time."""
        if self._surveyed is not None or not self.to_fetch:
            return []
        able = [n for n in self._fetching() if not self.peers[n].slow] or self._fetching()
        orders: list[Order] = []
        for node in able:
            room = self.window - len(self.peers[node].leased)
            if room * 2 < self.window or not self.to_fetch:
                continue
            chunks = tuple(self.to_fetch.popleft() for _ in range(min(room, len(self.to_fetch))))
            self.peers[node].leased.update(chunks)
            self.num_leased += len(chunks)
            orders.append(Lease(node, chunks))
        return orders

    def _slow(self) -> set[int]:
        """Nodes that take so slowly that the one before them has much waiting, while the others keep pace."""
        waits: dict[int, float] = {}
        rates: dict[int, float] = {}
        for node in self._alive():
            peer = self.peers[node]
            if peer.slow or peer.late:
                continue
            for source, kind in peer.sources:
                now, before = self._looks.get(source), self._before.get(source)
                if kind != ALL or now is None or before is None:
                    continue
                rate = now.sent.get(node, 0) - before.sent.get(node, 0)
                rates[node] = rate
                self._best[node] = max(rate, self._best.get(node, 0.0))
                waits[node] = now.backlog.get(node, 0) / max(rate, 0.25)
        if len(rates) < 3:
            return set()
        # who has nothing to take now, as a slow one holds it back, has shown earlier what is usual
        usual_rate = statistics.median(self._best[node] for node in rates)
        usual_wait = statistics.median(waits.values())
        return {
            node
            for node, wait in waits.items()
            if wait > SLOW_S + 3 * usual_wait and rates[node] < self.slow_share * usual_rate
        }


def _union(has: Iterable[bytearray], num_chunks: int) -> bytes:
    """What any of them has, a flag for each chunk."""
    bits = 0
    for flags in has:
        bits |= int.from_bytes(flags, "little")
    return bits.to_bytes(num_chunks, "little")

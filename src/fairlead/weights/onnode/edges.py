"""What a node sends to the nodes that take from it, and in which order. Pure; Python 3.9.

A node that takes says once what it has; from then on it is sent whatever it lacks and this node gets. So a first copy,
a resumed one, a late node and a spliced ring are one and the same. The chunk that has gone the fewest hops is sent
first: it is the rarest, and has the longest way before it.
"""

from __future__ import annotations

import heapq

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

ALL, ROW, COLUMN, OWN, SIDE = "all", "row", "column", "own", "side"
"""Which chunks a node takes over an edge: all that it lacks; those that came from the origin within its own row of the
grid; those that did not; those that this very node fetched from the origin; all that it
lacks, after what the ring takes."""
KINDS = (ALL, ROW, COLUMN, OWN, SIDE)
NOWHERE = -1
"""The first holder of a chunk that was here before the run."""
MAX_AHEAD = 16
"""Chunks fetched from the origin that may wait to be passed on before more are fetched: what waits longer has to be
read from disk again."""


class Edge:
    """One node that takes from this one."""

    def __init__(self, kind: str, me: int, peer: int, width: int, has: bytearray) -> None:
        """`width` is the number of nodes of a row; `has` a flag for each chunk, kept by the edge from now on."""
        self.kind, self.me, self.peer, self.width, self.has = kind, me, peer, width, has
        self.heap: list[tuple[int, int]] = []
        self.num_own = 0
        """Of those that wait, how many this node fetched itself."""
        self.hops: dict[int, int] = {}
        """What waits: chunk -> hops it has gone."""

    def passes(self, first: int) -> bool:
        """Whether a chunk that `first` fetched goes this way."""
        if self.kind in (ALL, SIDE):
            return True
        if self.kind == OWN:
            return first == self.me
        return (first // self.width == self.peer // self.width) == (self.kind == ROW)

    def offer(self, chunk: int, hops: int, first: int) -> bool:
        """This node has it now. Returns whether it is to be sent."""
        if self.has[chunk] or chunk in self.hops or not self.passes(first):
            return False
        self.hops[chunk] = hops
        self.num_own += not hops
        heapq.heappush(self.heap, (hops, chunk))
        return True

    def next(self) -> int:
        """The chunk to be sent now, which counts as sent; -1 for none."""
        while self.heap:
            _, chunk = heapq.heappop(self.heap)
            hops = self.hops.pop(chunk, NOWHERE)
            if hops == NOWHERE:
                continue
            self.num_own -= not hops
            if not self.has[chunk]:
                self.has[chunk] = 1
                return chunk
        return -1

    def peer_has(self, chunks: Iterable[int]) -> None:
        """It has got them otherwise."""
        for chunk in chunks:
            self.has[chunk] = 1
            hops = self.hops.pop(chunk, NOWHERE)
            self.num_own -= hops == 0

    def peer_lacks(self, chunk: int, hops: int, first: int) -> None:
        """What it was sent did not arrive whole."""
        self.has[chunk] = 0
        self.offer(chunk, hops, first)

    @property
    def is_main(self) -> bool:
        """Whether it is one of the ring or the grid: what hangs at it waits for these."""
        return self.kind in (ALL, ROW, COLUMN)

    @property
    def backlog(self) -> int:
        """Chunks that wait."""
        return len(self.hops)


def may_fetch(edges: Iterable[Edge]) -> bool:
    """Whether this node should ask the origin for more: not while much of what it fetched waits to be passed on."""
    return all(edge.num_own < MAX_AHEAD for edge in edges if edge.is_main)

"""Who takes from whom: a ring, or a grid of rings where there are many nodes. Pure.

In a ring every node sends to the next one all that it has and the next one lacks; a chunk fetched by one node has N - 1
hops before it. With N nodes and K chunks a ring ends (N - 1)/K later than the bound. In a grid a chunk goes along its
own row, and every node of that row hands it down its column: each byte still enters each node once, over one of two
links, and the longest way is rows + columns - 2. See bench/weights_plan.py.

Slow nodes take, and nobody takes from them but what they fetched themselves.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from fairlead.weights.onnode.edges import ALL, COLUMN, OWN, ROW, SIDE

GRID_FROM = 0.02
"""The part of the whole time that a ring's last chunk may be under way; above, nodes form a grid."""

Sources = tuple[tuple[int, str], ...]
"""(node taken from, kind of edge)."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Who takes from whom."""

    width: int
    """Nodes of a row; all of them for a ring."""
    sources: dict[int, Sources]

    @property
    def is_grid(self) -> bool:
        """Whether there are several rows."""
        return self.width < len(self.sources)


def hops(num_nodes: int, width: int) -> int:
    """The longest way of a chunk."""
    rows = -(-num_nodes // width)
    return (min(width, num_nodes) - 1) + (rows - 1)


def width_for(num_nodes: int, num_chunks: int) -> int:
    """Nodes of a row: all of them, as long as the way is short beside the whole; else the most equal factors.

    >>> width_for(16, 2048), width_for(1000, 1000), width_for(997, 1000), width_for(1000, 300_000)
    (16, 25, 997, 1000)
    """
    if num_nodes < 4 or (num_nodes - 1) <= GRID_FROM * num_chunks:
        return num_nodes
    best = num_nodes
    for width in range(2, num_nodes):
        if num_nodes % width == 0 and hops(num_nodes, width) < hops(num_nodes, best):
            best = width
    return best if hops(num_nodes, best) <= num_nodes // 4 else num_nodes


def ring(nodes: Sequence[int], slow: Collection[int] = (), joined: Collection[int] = ()) -> Shape:
    """A ring of the nodes that are not slow, in their order; the slow ones hang at it, spread over it.

    What a slow node fetched itself the next in the ring takes from it. One that `joined` late hangs at the ring, too:
    nobody needs anything of it.
    """
    hanging = [n for n in nodes if n in slow or n in joined]
    members = [n for n in nodes if n not in slow and n not in joined] or list(nodes)
    sources: dict[int, Sources] = dict.fromkeys(nodes, ())
    if len(members) > 1:
        for at, node in enumerate(members):
            sources[node] = ((members[at - 1], ALL),)
    for at, node in enumerate(n for n in hanging if n not in members):
        before = members[at * len(members) // max(1, len(hanging))]
        sources[node] = ((before, SIDE),)
        if node in slow:
            after = members[(members.index(before) + 1) % len(members)]
            sources[after] += ((node, OWN),)
    return Shape(width=max(len(nodes), max(nodes, default=0) + 1), sources=sources)


def apart(nodes: Sequence[int], pairs: Collection[tuple[int, int]]) -> list[int]:
    """The nodes in an order in which none of these (giver, taker) are neighbours in the ring, as far as that can be.

    >>> apart([0, 1, 2, 3], {(0, 1), (3, 0)})
    [1, 0, 2, 3]
    """
    order = list(nodes)
    for _ in range(len(order)):
        at = next((i for i in range(len(order)) if (order[i - 1], order[i]) in pairs), None)
        if at is None:
            break
        after = (at + 1) % len(order)
        order[at], order[after] = order[after], order[at]
    return order


def grid(num_nodes: int, width: int) -> Shape:
    """Rows of `width` nodes; every node takes from the one before it in its row and the one above it in its column."""
    if width >= num_nodes:
        return ring(range(num_nodes))
    assert num_nodes % width == 0, "a grid has whole rows"
    sources: dict[int, Sources] = {}
    for node in range(num_nodes):
        row, column = divmod(node, width)
        before = row * width + (column - 1) % width
        above = (node - width) % num_nodes
        sources[node] = ((before, ROW), (above, COLUMN))
    return Shape(width=width, sources=sources)

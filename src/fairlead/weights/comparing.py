"""Comparing with what the store says: which node reads which files, and what came of it. A state machine; no clock, no
socket.

All nodes have the same chunks by our own digests, so each file is read by one node, and its answer holds for all.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence


class Comparison:
    """From the moment at which every node has everything until every file was read."""

    def __init__(self, sizes: Sequence[int], said: Mapping[int, str]) -> None:
        """`sizes` of all files; `said`: file -> the store's digest, of those that it gives one for."""
        self.sizes, self.said = sizes, {f: d for f, d in said.items() if sizes[f]}
        self.given: dict[int, int] = {}
        """File -> the node that reads it."""
        self.bad: dict[int, str] = {}
        """File -> what its bytes have instead."""

    def assign(self, nodes: Collection[int]) -> dict[int, list[int]]:
        """Node -> files that it is to read now: the large ones first, each to the node with the least. Those of a node
        that is gone go to others.
        """
        for file in [f for f, n in self.given.items() if n not in nodes]:
            del self.given[file]
        assert nodes, "somebody must be left to read"
        load = dict.fromkeys(nodes, 0)
        for file, node in self.given.items():
            load[node] += self.sizes[file]
        new: dict[int, list[int]] = {}
        for file in sorted(self.said.keys() - self.given.keys(), key=lambda f: (-self.sizes[f], f)):
            node = min(load, key=lambda n: (load[n], n))
            load[node] += self.sizes[file]
            self.given[file] = node
            new.setdefault(node, []).append(file)
        return new

    def compared(self, node: int, file: int, found: str) -> None:
        """A node has read a file."""
        if self.given.get(file) == node and file in self.said:
            if found != self.said[file]:
                self.bad[file] = found
            del self.said[file], self.given[file]

    @property
    def is_over(self) -> bool:
        """Whether every file was read."""
        return not self.said

"""Comparing with what the store says: which node reads which files, and what came of it. A state machine; no clock, no
socket.

All nodes have the same chunks by our own digests, so each file is read by one node, and its answer holds for all.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from fairlead.weights.onnode.stored import CRCS


class Comparison:
    """From the moment at which every node has everything until every file was read."""

    def __init__(self, sizes: Sequence[int], said: Mapping[int, str]) -> None:
        """`sizes` of all files; `said`: file -> the store's digest, of those that it gives one for."""
        self.sizes, self.said = sizes, {f: d for f, d in said.items() if sizes[f]}
        self.given: dict[int, int] = {}
        """File -> the node that reads it."""
        self.bad: dict[int, str] = {}
        """File -> what its bytes have instead."""
        self.cannot: set[int] = set()
        """Nodes whose Python makes no CRC."""
        self.unread: set[int] = set()
        """Files that no node can make the store's digest of."""

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
            able = [n for n in load if not (self._is_crc(file) and n in self.cannot)]
            if not able:
                self.unread.add(file)
                del self.said[file]
                continue
            node = min(able, key=lambda n: (load[n], n))
            load[node] += self.sizes[file]
            self.given[file] = node
            new.setdefault(node, []).append(file)
        return new

    def compared(self, node: int, file: int, found: str) -> None:
        """A node has read a file; `found` is empty where it cannot make such a digest."""
        if self.given.get(file) == node and file in self.said:
            if not found and self._is_crc(file):
                self.cannot.add(node)
                del self.given[file]
                return
            if found != self.said[file]:
                self.bad[file] = found
            del self.said[file], self.given[file]

    def _is_crc(self, file: int) -> bool:
        return self.said[file].partition(":")[0] in CRCS

    @property
    def is_over(self) -> bool:
        """Whether every file was read."""
        return not self.said

"""Which links between switches are tested by themselves, by whom, over which address; where a sender can choose. Pure.

A way up over a T0 to one T1 and back down by the same T0 needs one link between switches, in both directions, and the
ports of the two nodes at its ends. So each link is tested alone, also where a plane has two T0s, between which every
way takes two links. In a round each node sends to the next below its T0 over a T1 of its own: no port and no link
carries two tests. A node that sits alone below its T0 sends to itself, once also by its T0 alone, so that its port and
the links can be told apart.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fairlead.preflight.pairs.schedule import Test
from fairlead.spec import usid

T0_ALONE = -1
"""Stands for the T1 of a way that takes none."""


@dataclass(frozen=True)
class Steering:
    """What is needed to choose ways: where nodes sit, and the number of each path's plane. Empty: nobody can choose."""

    t1: int = 0
    """T1 switches of each plane."""
    seats: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """Node -> T0, port."""
    planes: Mapping[int, int] = field(default_factory=dict)
    """Path -> plane."""
    first: int = 0
    """The number of the first steered path: behind all others."""

    @property
    def is_there(self) -> bool:
        """Whether there is any link between switches that traffic needs, and a way to choose it."""
        return bool(self.t1 and self.planes and len({t0 for t0, _ in self.seats.values()}) > 1)

    def number(self, path: int, t1: int) -> int:
        """The steered path over a T1 in the plane of a path."""
        return self.first + sorted(self.planes).index(path) * (self.t1 + 1) + t1 + 1

    def ways(self) -> dict[int, tuple[int, int]]:
        """Steered path -> (path, T1)."""
        every = range(T0_ALONE, self.t1)
        return {self.number(path, t1): (path, t1) for path in self.planes for t1 in every} if self.is_there else {}

    def address(self, dst: int, path: int, t1: int) -> str:
        """Where to send to."""
        t0, port = self.seats[dst]
        plane = self.planes[path]
        if t1 == T0_ALONE:
            return str(usid.path_address(plane, t0, None, t0, port))
        return str(usid.loop_address(plane, t0, t1, port))


def without_link(test: tuple[int, int, int], ways: Mapping[int, tuple[int, int]]) -> tuple[int, int, int]:
    """The test (src, dst, path) of the same two ports by their T0 alone, for one that goes over a link besides."""
    src, dst, path = test
    plane, _ = ways[path]
    alone = next((p for p, way in ways.items() if way == (plane, T0_ALONE)), plane)
    return src, dst, alone if src == dst else plane


def rounds(steering: Steering, members: Sequence[int], paths: Sequence[int]) -> list[list[Test]]:
    """Tests of every link between the T0s of the members and their T1s, on some paths at once."""
    if not steering.is_there or not paths:
        return []
    below: defaultdict[int, list[int]] = defaultdict(list)
    for node in (n for n in members if n in steering.seats):
        below[steering.seats[node][0]].append(node)
    out: list[list[Test]] = []
    for nodes in below.values():
        num = len(nodes)
        tests = [(nodes[t1 % num], nodes[(t1 + 1) % num], t1, t1 // num) for t1 in range(steering.t1)]
        if num == 1:
            tests.append((nodes[0], nodes[0], T0_ALONE, steering.t1))
        for src, dst, t1, number in tests:
            while len(out) <= number:
                out.append([])
            out[number].append(Test(src, dst, tuple(steering.number(path, t1) for path in paths)))
    return out

"""The ranks of a data-parallel run, and what they say to each other; torch.distributed carries it.

Each kind of traffic has a process group of its own, because each is used by a thread of its own: weights by the thread
that fills slots, sums by the one that passes them on, totals by the one that takes them home, words by the one that
computes. Within a group every rank does the same in the same order.

    team = Team(timeout)        # after torch.distributed.init_process_group: gloo, NCCL or mrc

Must not know: layers, homes, files.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

KINDS = ("weights", "sums", "totals", "words")


def share(num: int, world: int, rank: int) -> range:
    """The micro-batches of a rank: neighbours of each other, so that sums go through the ranks in order.

    >>> [list(share(5, 3, rank)) for rank in range(3)]
    [[0, 1], [2, 3], [4]]
    """
    each, more = divmod(num, world)
    first = rank * each + min(rank, more)
    return range(first, first + each + (rank < more))


@dataclass(frozen=True, slots=True)
class Planned:
    """Ranks of a run that has not begun, seen from one of them; a plan is made for it."""

    world: int
    on_node: int
    """Ranks that share a node's memory, processors and disk."""
    wire: torch.device
    rank: int = 0

    def owns(self, block: int) -> bool:
        """As a run that begins shares blocks out."""
        return block % self.world == self.rank


class Team:
    """All ranks, seen from one of them."""

    def __init__(self, timeout: timedelta | None = None, node: str = "") -> None:
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        is_nccl = dist.get_backend() == "nccl"
        self.wire = torch.device("cuda", torch.cuda.current_device()) if is_nccl else torch.device("cpu")
        """Where a tensor must lie to be sent."""
        self.node = node or platform.node()
        self.owners: Sequence[int] = range(self.world)
        """Who holds the first, the second and each next block, again and again."""
        self._on_node = 0
        self._groups: dict[str, Any] = {kind: dist.new_group(timeout=timeout) for kind in KINDS}

    @property
    def on_node(self) -> int:
        """Ranks on this rank's node. All ask at once."""
        if not self._on_node:
            self._on_node = self.names().count(self.node)
        return self._on_node

    def owner(self, block: int) -> int:
        """Who holds the state of a block."""
        return self.owners[block % len(self.owners)]

    def owns(self, block: int) -> bool:
        """Whether this rank does."""
        return self.owner(block) == self.rank

    def spread(self, flat: torch.Tensor, owner: int) -> None:
        """Give everybody what the owner has; in one order everywhere. Any dtype: bytes are carried."""
        if self.world == 1 or not flat.numel():
            return
        there = flat if flat.device.type == self.wire.type else flat.to(self.wire)
        dist.broadcast(there.view(torch.uint8), owner, group=self._groups["weights"])
        if there is not flat and self.rank != owner:
            flat.copy_(there)

    def send(self, kind: str, flat: torch.Tensor, rank: int) -> Any:
        """Begin to send; `wait` of what is returned ends when `flat` may be written again."""
        return dist.isend(flat, rank, group=self._groups[kind])

    def receive(self, kind: str, flat: torch.Tensor, rank: int) -> None:
        """Wait for what a rank sends."""
        dist.recv(flat, rank, group=self._groups[kind])

    def summed(self, numbers: torch.Tensor) -> torch.Tensor:
        """The sum over all ranks, on the CPU. Exact, and in any order the same, where only one has a number."""
        there = numbers.to(self.wire, copy=True)
        dist.all_reduce(there, group=self._groups["words"])
        return there.cpu()

    def least(self, number: int) -> int:
        """The smallest number that any rank has."""
        there = torch.tensor([number], dtype=torch.int64, device=self.wire)
        dist.all_reduce(there, op=dist.ReduceOp.MIN, group=self._groups["words"])
        return int(there)

    def rows(self, mine: Sequence[Sequence[int]]) -> list[list[tuple[int, ...]]]:
        """The rows of small numbers that each rank has, as many as it likes, all of one width."""
        most = -self.least(-len(mine))
        width = -self.least(-max(map(len, mine), default=0))
        said = torch.zeros(self.world, 1 + most * width, dtype=torch.float64)
        said[self.rank, 0] = len(mine)
        said[self.rank, 1 : 1 + len(mine) * width] = torch.tensor([n for row in mine for n in row], dtype=torch.float64)
        heard = self.summed(said).to(torch.int64).tolist()
        return [
            [tuple(flat[1 + at * width : 1 + (at + 1) * width]) for at in range(num)]
            for num, flat in ((line[0], line) for line in heard)
        ]

    def told(self, said: bytes, rank: int) -> bytes:
        """What one rank says."""
        size = int(self.summed(torch.tensor([len(said) * (self.rank == rank)], dtype=torch.float64))[0])
        flat = torch.zeros(size, dtype=torch.uint8)
        if self.rank == rank:
            flat.copy_(torch.frombuffer(bytearray(said), dtype=torch.uint8))
        self.spread(flat, rank)
        return flat.numpy().tobytes()

    def names(self) -> list[str]:
        """The node of each rank."""
        return [bytes(number for (number,) in rows).decode() for rows in self.rows([(n,) for n in self.node.encode()])]

    def meet(self) -> None:
        """Return when all are here."""
        self.least(0)

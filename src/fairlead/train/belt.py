"""Memory that pieces of updates pass through: read ahead, computed with, written behind, block after block.

Updates are done in the order in which they were asked for, as a rule; so what is read while a block's last pieces are
computed are the first of the next one, and the disk does not rest between blocks. Out of turn they are read once more.

Must not know: what an update is, what lies where.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from fairlead.train.memory import arena

Job = Callable[[], object]


class Owner(Protocol):
    """Whose pieces they are."""

    def pieces(self) -> Sequence[tuple[int, int]]:
        """(begin, length) of each, in elements."""

    def reads(self, begin: int, size: int, buffers: Sequence[torch.Tensor]) -> Sequence[Job]:
        """What fills the buffers with a piece; each may run in a thread of its own."""


@dataclass(slots=True)
class Piece:
    """A stretch of a block, in buffers."""

    owner: Owner
    begin: int
    size: int
    buffers: Sequence[torch.Tensor]
    writes: list[Future[Any]]
    """To be added to: until these are done nothing else goes into the buffers."""
    reads: list[Future[Any]] = field(default_factory=list)


class Belt:
    """`places` times the memory of a piece, for one who computes at a time."""

    def __init__(self, pool: Executor, places: int, numel: int) -> None:
        self.pool = pool
        self.buffers = [[arena(numel, torch.float32, torch.device("cpu")) for _ in range(4)] for _ in range(places)]
        """p, m, v and gradients; fp32, or seen as what is narrower."""
        self._writes: list[list[Future[Any]]] = [[] for _ in range(places)]
        self._due: deque[Owner] = deque()
        self._coming: deque[tuple[Owner, int, int]] = deque()
        """Of the owners next in turn, what is not being read yet."""
        self._reading: deque[Piece] = deque()
        self._at = 0

    def ask(self, owner: Owner) -> None:
        """An update is due; everything that it reads may be read from now on."""
        if owner.pieces():
            self._due.append(owner)

    def pieces(self, owner: Owner) -> Iterator[Piece]:
        """Those of one block whose update is due, each when it has been read."""
        num = len(owner.pieces())
        waiting = (*(piece.owner for piece in self._reading), *(other for other, *_ in self._coming), *self._due)
        if num and waiting[0] is not owner:
            self._back(owner)
        try:
            for _ in range(num):
                self._ahead()
                piece = self._reading.popleft()
                for future in piece.reads:
                    future.result()
                yield piece
        except BaseException:  # whoever asks again is told what went wrong again, or begins anew
            self._back(owner)
            raise

    def _ahead(self) -> None:
        """Read as far as there is memory: one piece is computed with, one written."""
        while len(self._reading) < len(self.buffers) - 1:
            if not self._coming:
                if not self._due:
                    return
                owner = self._due.popleft()
                self._coming.extend((owner, begin, size) for begin, size in owner.pieces())
                continue
            owner, begin, size = self._coming.popleft()
            place = self._at % len(self.buffers)
            self._at += 1
            for future in self._writes[place]:
                future.result()
            self._writes[place] = []
            piece = Piece(owner, begin, size, self.buffers[place], self._writes[place])
            piece.reads = [self.pool.submit(job) for job in owner.reads(begin, size, piece.buffers)]
            self._reading.append(piece)

    def _back(self, owner: Owner) -> None:
        """Another one's turn: what is under way for others is begun anew after it."""
        ahead = dict.fromkeys([*(piece.owner for piece in self._reading), *(other for other, *_ in self._coming)])
        wait([future for piece in self._reading for future in piece.reads])
        self._reading.clear()
        self._coming.clear()
        self._due = deque([owner, *(other for other in [*ahead, *self._due] if other is not owner)])

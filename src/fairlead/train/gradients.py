"""Gradients of one block at a time on the device: summed over micro-batches, measured, and sent home.

Must not know: layers, where a home is.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import torch

from fairlead.train.homes import Home, OnDevice
from fairlead.train.lanes import Lanes, Mark
from fairlead.train.layout import Block
from fairlead.train.memory import arena
from fairlead.train.optimizer import norm


class Sum:
    """The gradients of one block; which parameters have any is known at the end."""

    def __init__(self, flat: torch.Tensor) -> None:
        self.flat = flat
        self.seen: set[str] = set()

    def add(self, block: Block, gradients: Mapping[str, torch.Tensor | None]) -> None:
        """By local name; the first of a parameter is copied, later ones are added in the order they come."""
        first: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
        again: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
        for param in block.trainable:
            gradient = gradients.get(param.local)
            if gradient is not None:
                into, source = again if param.name in self.seen else first
                into.append(self.flat[param.span])
                source.append(gradient.reshape(-1))
                self.seen.add(param.name)
        if first[0]:
            torch._foreach_copy_(*first)  # one kernel for all
        if again[0]:
            torch._foreach_add_(*again)

    def norms(self, block: Block) -> dict[int, torch.Tensor]:
        """The 2-norm of each gradient that exists, by its parameter's place in the model."""
        return {
            param.order: norm(self.flat[param.span].view(param.shape))
            for param in block.trainable
            if param.name in self.seen
        }


class Rows:
    """The gradient of a weight that embedding and head share, as autograd adds it up: of each micro-batch both parts
    first, and then micro-batches in their order.

    The head's part comes first, and the embedding's after all layers; only rows that were looked up have one. So the
    sum of the head's parts is whole in all other rows, and of these each micro-batch's part waits.
    """

    def __init__(self, looked_up: torch.Tensor | slice) -> None:
        """`looked_up`: numbers of rows, each once; or all of them."""
        self.looked_up = looked_up
        self._waiting: list[torch.Tensor] = []
        self._next = 0

    def wait(self, gradient: torch.Tensor) -> None:
        """The head's part of the next micro-batch."""
        self._waiting.append(gradient[self.looked_up])

    def join(self, gradient: torch.Tensor) -> None:
        """The embedding's part of the next micro-batch, in the order of `wait`."""
        self._waiting[self._next].add_(gradient[self.looked_up])
        self._next += 1

    @property
    def whole(self) -> list[torch.Tensor]:
        """Both parts of each micro-batch."""
        assert self._next == len(self._waiting)
        return self._waiting

    def put(self, total: torch.Tensor) -> None:
        """Into the sum of the head's parts, one row a token, where the embedding has a part, too."""
        first, *others = self.whole
        summed = first.to(total.dtype)
        for other in others:
            summed.add_(other)
        total[self.looked_up] = summed


class Way:
    """The way home: sums are made in one of two buffers while the other one leaves. Embedding and head have a buffer of
    their own.
    """

    def __init__(self, lanes: Lanes, blocks: Sequence[Block], dtype: torch.dtype) -> None:
        self.lanes = lanes
        ends = [block.trained for block in blocks if block.role]
        layers = max((block.trained for block in blocks[1:] if not block.role), default=0)
        self.sums = [arena(numel, dtype, lanes.device) for numel in (layers, layers, *([max(ends)] if ends else []))]
        self._left: list[Mark | None] = [None] * len(self.sums)
        self._last: list[tuple[int, torch.Tensor] | None] = [None] * len(self.sums)
        """Whose sum lies in each buffer."""
        self._at = 0
        self.waited_s = 0.0
        """How long `open` waited for a buffer in this step, as the host sees it."""

    def open(self, block: Block) -> Sum:
        """A sum to fill; its buffer has left before the lane goes on."""
        if not block.role:
            self._at = 1 - self._at
        at = 2 if block.role else self._at
        begin = time.perf_counter()
        self.lanes.after(self._left[at])
        self.waited_s += time.perf_counter() - begin
        self._last[at] = None
        return Sum(self.sums[at][: block.trained])

    def send(self, block: Block, total: Sum, home: Home) -> None:
        """Let the home keep it, in the lane `out`, or here where the home is on the device."""
        at = 2 if block.role else self._at
        self._last[at] = block.index, total.flat
        if isinstance(home, OnDevice):
            home.keep(total.flat)
            return
        packed = self.lanes.mark()
        with self.lanes.lane("out"):
            self.lanes.after(packed)
            self._left[at] = home.keep(total.flat)

    def lying(self, block: int) -> torch.Tensor | None:
        """The last sum of a block, if it still lies in its buffer: until `open` gives the buffer to another."""
        return next((last[1] for last in self._last if last is not None and last[0] == block), None)

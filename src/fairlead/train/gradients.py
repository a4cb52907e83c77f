"""Gradients of one block at a time on the device: summed over micro-batches, measured, and sent home.

Must not know: layers, where a home is.
"""

from __future__ import annotations

from collections.abc import Mapping

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


class Way:
    """The way home: sums are made in one of two buffers while the other one leaves."""

    def __init__(self, lanes: Lanes, numel: int, dtype: torch.dtype) -> None:
        self.lanes = lanes
        self.sums = [arena(numel, dtype, lanes.device) for _ in range(2)]
        self._left: list[Mark | None] = [None, None]
        self._at = 0

    def open(self, block: Block) -> Sum:
        """A sum to fill; its buffer has left before the lane goes on."""
        self._at = 1 - self._at
        self.lanes.after(self._left[self._at])
        return Sum(self.sums[self._at][: block.trained])

    def send(self, block: Block, total: Sum, home: Home) -> None:
        """Let the home keep it, in the lane `out`, or here where the home is on the device."""
        if isinstance(home, OnDevice):
            home.keep(total.flat)
            return
        packed = self.lanes.mark()
        with self.lanes.lane("out"):
            self.lanes.after(packed)
            self._left[self._at] = home.keep(total.flat)

"""The gradients of a step: summed over micro-batches block by block, measured, and sent home, or on to other ranks.

Those of layers are summed one block after another. Those of a head that streams wait for the embedding's where both are
one weight; where the head's loss is taken in pieces, they come piece by piece.

Must not know: weights, slots, when updates happen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from fairlead.train.gradients import Rows, Sum, Way
from fairlead.train.homes import Home, OnDevice, Spread
from fairlead.train.lanes import Lanes
from fairlead.train.layout import Block
from fairlead.train.memory import arena
from fairlead.train.model import Parts, Unit
from fairlead.train.relay import Pile, Relay
from fairlead.train.settings import Settings


class Homeward:
    """Of one engine."""

    def __init__(self, parts: Parts, settings: Settings, lanes: Lanes, homes: Sequence[Home]) -> None:
        self.parts, self.settings, self.lanes, self.homes = parts, settings, lanes, homes
        blocks = parts.blocks
        self.way: Way | Relay = (
            Way(lanes, blocks, settings.gradients) if settings.ranks is None else Relay(lanes, settings.ranks, blocks)
        )
        self.head = parts.units[-1] if settings.head_tokens and parts.has_head else None
        """A head that streams and whose loss is taken in pieces: no node of autograd."""
        is_summed = settings.team is None or settings.head_tokens
        self._outer = arena(blocks[0].trained if is_summed else 0, torch.float32, settings.device)
        pieces = blocks[self.head.block].trained if self.head is not None and settings.team is not None else 0
        self._pieces = arena(pieces, torch.float32, settings.device)
        self.begin()

    def begin(self) -> None:
        """A step."""
        self.norms: dict[int, torch.Tensor] = {}
        """Of what is measured here, by place in the model."""
        self.seen: dict[int, set[str]] = {}
        """By block, which parameters have a gradient."""
        if isinstance(self.way, Way):
            self.way.waited_s = 0.0
        self._total = Sum(self._outer)
        self._sums: dict[int, Sum | Pile] = {}
        self._rows: Rows | None = None

    def comes(self, unit: Unit, given: Any) -> None:
        """A unit is computed with what all micro-batches give it."""
        block = self.parts.blocks[unit.block]
        if block.role == "both" and block.trained and self._rows is None and self.head is None:
            ids = [leaf.reshape(-1) for leaf in pytree.tree_leaves(given) if isinstance(leaf, torch.Tensor)]
            self._rows = Rows(torch.cat(ids).unique() if isinstance(self.way, Way) else slice(None))

    def open(self, unit: Unit) -> None:
        """Gradients of a unit are about to come."""
        if unit.block in self._sums:
            return
        block = self.parts.blocks[unit.block]
        is_one = self.head is not None and block.index == self.head.block and isinstance(self.way, Relay)
        self._sums[unit.block] = Sum(self._pieces) if is_one else self.way.open(block)

    def take(self, unit: Unit, gradients: Mapping[str, torch.Tensor | None]) -> None:
        """Those of the next micro-batch, by name seen from the unit."""
        block, total = self.parts.blocks[unit.block], self._sums[unit.block]
        found = {param.local: gradients.get(local) for local, param in unit.params}
        if block.role != "both" or self._rows is None:
            total.add(block, found)
            return
        (gradient,) = found.values()
        assert gradient is not None
        if unit is not self.parts.units[-1]:
            self._rows.join(gradient)
            return
        self._rows.wait(gradient)
        if isinstance(total, Sum):
            total.add(block, found)

    def piece(self, name: str, gradient: torch.Tensor) -> None:
        """That of a piece of the loss, by name in the model."""
        for local, param in self.head.params if self.head is not None else ():
            assert self.head is not None
            if name == f"{self.head.name}.{local}":
                self._sums[self.head.block].add(self.parts.blocks[self.head.block], {param.local: gradient})
                return
        self._total.add(self.parts.blocks[0], {name: gradient})

    def send(self, unit: Unit) -> bool:
        """A unit has gone back: its gradients leave, unless some are still to come; whether they do."""
        block = self.parts.blocks[unit.block]
        if block.role == "both" and unit is self.parts.units[-1]:
            return False
        total = self._sums.pop(block.index)
        if block.role == "both" and self._rows is not None:
            self._put(block, total, self._rows)
            self._rows = None
        if isinstance(self.way, Relay):
            pile = self._pile(self.way, block, total) if isinstance(total, Sum) else total
            self.way.send(block, pile, self._spread(block.index))
            return True
        assert isinstance(total, Sum)
        self._measure(block.index, total)
        self.way.send(block, total, self.homes[block.index])
        return True

    def outer(self, shells: Sequence[Any]) -> None:
        """Outside the layers each micro-batch has leaves of its own; they are summed in the order of micro-batches."""
        block, in_pieces = self.parts.blocks[0], bool(self.settings.head_tokens)
        pile = self.way.open(block) if isinstance(self.way, Relay) and not in_pieces else None
        for shell in shells:
            params = {name: param for name, param in shell.named_parameters() if param.device == self.settings.device}
            (self._total if pile is None else pile).add(block, {name: param.grad for name, param in params.items()})
            for param in params.values():
                param.grad = None
        if isinstance(self.way, Relay):
            pile = pile if isinstance(pile, Pile) else self._pile(self.way, block, self._total)
            self.way.send(block, pile, self._spread(0))
            return
        self._measure(0, self._total)
        if isinstance(self.homes[0], OnDevice):
            self.homes[0].keep(self._outer)
            return
        packed = self.lanes.mark()
        with self.lanes.lane("out"):
            self.lanes.after(packed)
            self.homes[0].keep(self._outer)

    def agree(self, losses: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Losses of all micro-batches, when norms are those of all blocks; of several ranks all learn them here."""
        if isinstance(self.way, Relay):
            self.norms, self.seen, losses = self.way.agree(self.parts.blocks, losses, self.settings)
        return losses

    def lying(self, index: int) -> torch.Tensor | None:
        """The gradients of a block, where they stay on the device until the next backward."""
        if not isinstance(self.way, Way):
            return None
        return self._outer if not index else self.way.lying(index)

    @property
    def waited_s(self) -> float:
        """How long gradients of this step waited until those before had left; of several ranks it is not told."""
        return self.way.waited_s if isinstance(self.way, Way) else 0.0

    def close(self) -> None:
        """End threads."""
        if isinstance(self.way, Relay):
            self.way.close()

    def _put(self, block: Block, total: Sum | Pile, rows: Rows) -> None:
        (param,) = block.params
        if isinstance(total, Sum):
            rows.put(total.flat[param.span].view(param.shape))
            return
        for gradient in rows.whole:
            total.add(block, {param.local: gradient})

    def _pile(self, way: Relay, block: Block, total: Sum) -> Pile:
        """What this rank has added up by itself, as pieces of a loss: one number by now."""
        pile = way.open(block)
        pile.add(block, {p.local: total.flat[p.span] for p in block.trainable if p.name in total.seen})
        return pile

    def _measure(self, index: int, total: Sum) -> None:
        self.norms |= total.norms(self.parts.blocks[index])
        self.seen[index] = total.seen

    def _spread(self, index: int) -> Spread:
        home = self.homes[index]
        assert isinstance(home, Spread)
        return home

"""Where the state of a block lives between uses: parameters, both moments, and gradients until they are applied.

Moments are fp32; parameters, too, or bf16 where a run asks for that.

    OnDevice    device memory: nothing is copied; updated by the device
    InHost      host memory: parameters and gradients are registered for copies; updated by the CPU
    OnDisk      files, see disk.py
    Spread      a home on one rank of several; the others get the parameters from there

A home is asked in a fixed order each step: `update` with the gradients of the step before, `load` for forward, `load`
for backward, `keep`.

Must not know: layers, schedules.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from fairlead.train.lanes import Lanes, Mark
from fairlead.train.layout import Block
from fairlead.train.memory import arena, release
from fairlead.train.optimizer import Moment, update
from fairlead.train.team import Team


@dataclass(frozen=True, slots=True)
class Lying:
    """What an update need not fetch, as it lies in host memory and stays there until the update is done."""

    weights: torch.Tensor | None = None
    """The parameters before the update, in their own dtype."""
    gradients: torch.Tensor | None = None
    """What was kept last."""


NOTHING = Lying()


class Home(Protocol):
    """The state of one block."""

    block: Block

    def put(self, p: torch.Tensor) -> None:
        """First values of all parameters, flat, from any device; moments are zero."""

    def update(self, moment: Moment, lying: Lying = NOTHING) -> None:
        """Apply the kept gradients, at the latest with the next `load` or `settle`; from one thread at a time."""

    def settle(self) -> None:
        """Return when updates asked for are applied."""

    def load(self, weights: torch.Tensor) -> None:
        """Put the parameters into `weights`, in its dtype; in the current lane."""

    def read(self, span: slice) -> torch.Tensor:
        """A stretch of the parameters as they are, after a `load`: a view, or a copy."""

    def keep(self, gradients: torch.Tensor) -> Mark:
        """Take gradients for the next update, in the current lane and in the dtype homes were made with.

        The mark is reached when the gradients are not read any more.
        """

    def state(self) -> dict[str, torch.Tensor]:
        """The flat arenas `p`, `m`, `v`, or copies of them; not while an update is under way."""

    def close(self) -> None:
        """Give memory back."""


class OnDevice:
    """In device memory, which on the CPU is host memory without a second copy."""

    def __init__(
        self, block: Block, lanes: Lanes, gradient_dtype: torch.dtype, dtype: torch.dtype = torch.float32
    ) -> None:
        self.block = block
        self.lanes = lanes
        device = lanes.device
        self.p = arena(block.numel, dtype, device)
        self.m, self.v = (arena(block.trained, torch.float32, device) for _ in "mv")
        self.g = arena(block.trained, gradient_dtype, device)

    def put(self, p: torch.Tensor) -> None:
        """Copied."""
        self.p.copy_(p)

    def settle(self) -> None:
        """Updates run in the current lane."""

    def update(self, moment: Moment, lying: Lying = NOTHING) -> None:
        """In the current lane."""
        update(self.block, self.p, self.m, self.v, self.g, moment)

    def load(self, weights: torch.Tensor) -> None:
        """Rounds to the dtype of computing."""
        weights.copy_(self.p)

    def read(self, span: slice) -> torch.Tensor:
        """A view."""
        return self.p[span]

    def keep(self, gradients: torch.Tensor) -> Mark:
        """A copy beside the parameters."""
        self.g.copy_(gradients)
        return self.lanes.mark()

    def state(self) -> dict[str, torch.Tensor]:
        """Of this device."""
        return {"p": self.p, "m": self.m, "v": self.v}

    def close(self) -> None:
        """Nothing is registered."""
        self.p = self.m = self.v = self.g = torch.empty(0)


class InHost:
    """In host memory; the device sees parameters and gradients pass by."""

    def __init__(
        self,
        block: Block,
        lanes: Lanes,
        gradient_dtype: torch.dtype,
        staging: torch.Tensor | None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.block = block
        self.lanes = lanes
        host = torch.device("cpu")
        self.p = arena(block.numel, dtype, host, pinned=lanes.cuda)
        self.g = arena(block.trained, gradient_dtype, host, pinned=lanes.cuda)
        self.m, self.v = (arena(block.trained, torch.float32, host) for _ in "mv")
        self.staging = staging
        """Device memory for fp32 parameters on their way to a narrower dtype; shared by all homes of one lane."""
        self.kept: Mark | None = None

    def put(self, p: torch.Tensor) -> None:
        """Copied."""
        self.p.copy_(p)

    def settle(self) -> None:
        """Updates are done when they return."""

    def update(self, moment: Moment, lying: Lying = NOTHING) -> None:
        """By the CPU, once the gradients have arrived."""
        if self.kept is not None:
            self.kept.synchronize()
        update(self.block, self.p, self.m, self.v, self.g, moment)

    def load(self, weights: torch.Tensor) -> None:
        """Parameters cross the bus as they are; the device rounds fp32."""
        if self.staging is None or weights.dtype == self.p.dtype:
            weights.copy_(self.p, non_blocking=True)
        else:
            for begin in range(0, self.block.numel, self.staging.numel()):
                piece = slice(begin, min(begin + self.staging.numel(), self.block.numel))
                passing = self.staging[: piece.stop - piece.start]
                passing.copy_(self.p[piece], non_blocking=True)
                weights[piece].copy_(passing)

    def read(self, span: slice) -> torch.Tensor:
        """A view."""
        return self.p[span]

    def keep(self, gradients: torch.Tensor) -> Mark:
        """Copied in the current lane; the next update waits for it."""
        self.g.copy_(gradients, non_blocking=True)
        self.kept = self.lanes.mark()
        return self.kept

    def state(self) -> dict[str, torch.Tensor]:
        """Of the host."""
        return {"p": self.p, "m": self.m, "v": self.v}

    def close(self) -> None:
        """Unregister, then forget."""
        if self.lanes.cuda:
            release(self.p)
            release(self.g)
        self.p = self.m = self.v = self.g = torch.empty(0)


class Spread:
    """A block of a data-parallel run: its owner holds it, and everybody else gets its parameters from there.

    `load` and `state` are done by all ranks, in the same order. Gradients come to `held` by themselves: see relay.py.
    """

    def __init__(
        self,
        block: Block,
        lanes: Lanes,
        team: Team,
        held: Home | None,
        passing: torch.Tensor | None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.block = block
        self.lanes = lanes
        self.team = team
        self.held = held
        """Where the state is; None at all ranks but the owner."""
        self.dtype = dtype
        """Of parameters."""
        self.passing = passing
        """Host memory for parameters between the wire and a device, where the wire ends in the host."""

    def put(self, p: torch.Tensor) -> None:
        """Kept by the owner."""
        if self.held is not None:
            self.held.put(p)

    def settle(self) -> None:
        """Of the owner."""
        if self.held is not None:
            self.held.settle()

    def update(self, moment: Moment, lying: Lying = NOTHING) -> None:
        """By the owner."""
        if self.held is not None:
            self.held.update(moment, lying)

    def load(self, weights: torch.Tensor) -> None:
        """From the owner to all, in the dtype of computing."""
        there = weights if self.passing is None else self.passing[: len(weights)]
        if self.held is not None:
            self.held.load(there)
        self.team.spread(there, self.team.owner(self.block.index))
        if self.passing is not None:
            weights.copy_(there, non_blocking=True)
            self.lanes.mark().synchronize()

    def read(self, span: slice) -> torch.Tensor:
        """From the owner to all, in the dtype of parameters."""
        size = span.stop - span.start
        flat = torch.empty(size, dtype=self.dtype) if self.held is None else self.held.read(span)
        self.team.spread(flat, self.team.owner(self.block.index))
        return flat

    def keep(self, gradients: torch.Tensor) -> Mark:
        """Only the relay keeps gradients, at the owner."""
        raise NotImplementedError

    def state(self) -> dict[str, torch.Tensor]:
        """The owner's arenas; copies of them at the others."""
        sizes = {"p": self.block.numel, "m": self.block.trained, "v": self.block.trained}
        found = self.held.state() if self.held is not None else {}
        for kind, size in sizes.items():
            if self.held is None:
                found[kind] = arena(size, self.dtype if kind == "p" else torch.float32, torch.device("cpu"))
            self.team.spread(found[kind], self.team.owner(self.block.index))
        return found

    def close(self) -> None:
        """Of the owner."""
        if self.held is not None:
            self.held.close()

"""How an engine works and what it computes, and what a step of it gave; values that planner and engine share.

Must not know: how it is done.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from fairlead.train.optimizer import AdamW, Rule
from fairlead.train.team import Planned, Team, share


@dataclass(frozen=True, slots=True)
class Settings:
    """How an engine works. What it computes: `dtype`, `parameters`, `accumulation`, `clip`, `rule`, `head_tokens`."""

    device: torch.device
    dtype: torch.dtype = torch.float32
    """Of computing."""
    parameters: torch.dtype = torch.float32
    """Of parameters; with bf16 updates are rounded by chance. Moments are fp32 always."""
    accumulation: int = 1
    """Micro-batches of a step."""
    clip: float | None = None
    """The largest global norm of gradients."""
    rule: Rule = field(default_factory=AdamW)
    slots: int = 3
    """Places for weights on the device; one is computed with, the others are filled."""
    on_device: frozenset[int] = frozenset()
    """Blocks whose state stays on the device."""
    store: Path | None = None
    """The folder on disk where the state of all blocks lives; without one it ends with the engine."""
    snapshots: Path | None = None
    """Without a store: the folder where `save` writes the state, and where it is found again."""
    run: str = ""
    """What the store belongs to; one that belongs to something else is refused."""
    head_tokens: int = 0
    """Rows of logits at a time; 0: all of a micro-batch at once, to the bit as without streaming."""
    team: Team | Planned | None = None
    """The ranks among which micro-batches and state are shared; all make the same calls with the same arguments."""

    @property
    def gradients(self) -> torch.dtype:
        """One micro-batch's gradients are no wider than what computed them; sums of several are."""
        return self.dtype if self.accumulation == 1 else torch.float32

    @property
    def ranks(self) -> Team | None:
        """The ranks of a run, not those of a plan."""
        assert not isinstance(self.team, Planned)
        return self.team

    @property
    def mine(self) -> range:
        """The micro-batches that are computed here."""
        team = self.team
        return range(self.accumulation) if team is None else share(self.accumulation, team.world, team.rank)


@dataclass(frozen=True, slots=True)
class Result:
    """What a step gave."""

    step: int
    loss: float
    grad_norm: float
    """Before clipping."""
    clip: float
    """What gradients were multiplied by."""
    seconds: Mapping[str, float]
    """`forward` and `backward` as the device took them; in them `waited`: for weights, by the thread that computes;
    `update`: the CPU's work on updates of the step before, in memory."""


def seed_of(seed: int, step: int, micro: int) -> int:
    """The seed of the random generators before a micro-batch; plain training that sets the same draws the same."""
    return ((seed * 1_000_003 + step) * 1_000_003 + micro) % (1 << 63)

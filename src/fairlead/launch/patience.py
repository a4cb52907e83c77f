"""How long to wait for what, from patience.toml: each number has a source and grows with the group. Pure."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources

import msgspec


class Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row of patience.toml."""

    what: str
    base_s: float
    per_rank_s: float = 0.0
    in_container_s: float | None = None
    together: bool = False
    least_s: float | None = None
    """What the group has shown so far counts instead, from this on."""
    source: str


@functools.cache
def rows() -> Mapping[str, Row]:
    """The table."""
    text = resources.files("fairlead.launch").joinpath("patience.toml").read_text("utf-8")
    return msgspec.convert(tomllib.loads(text), dict[str, Row])


@dataclass(frozen=True, kw_only=True)
class Patience:
    """The patience for one group."""

    ranks: int
    in_container: bool = False
    own: Mapping[str, float] = field(default_factory=dict)
    """Seconds the cluster file gives instead."""
    planned_s: float = 0.0
    """The longest that a phase of the stage's own takes by its plan, without a word."""

    def __getitem__(self, name: str) -> float:
        """Seconds for a row, or for a phase of a stage's own: `step`."""
        row = rows().get(name)
        if row is None:
            return self["step"]
        if name in self.own:
            return self.own[name]
        base_s = row.base_s if not self.in_container or row.in_container_s is None else row.in_container_s
        return base_s + row.per_rank_s * self.ranks

    def after(self, name: str, longest_s: float) -> float:
        """The same for a group whose longest phase so far took `longest_s`: it may be less.

        >>> patience = Patience(ranks=8)
        >>> [round(patience.after(name, 12.0)) for name in ("join", "reduce")], round(patience.after("reduce", 1.0))
        ([184, 12], 6)
        """
        row = rows().get(name, rows()["step"])
        if row.least_s is None or "step" in self.own:
            return self[name]
        plan_s = 2 * self.planned_s
        return max(plan_s, min(self[name], max(row.least_s + row.per_rank_s * self.ranks, longest_s)))

    def is_together(self, phase: str) -> bool:
        """Whether ranks come through a phase together."""
        return rows().get(phase, rows()["step"]).together

    @property
    def silent_s(self) -> float:
        """How long a task may say nothing: a few of its beats, whatever those are."""
        return max(self["silent"], 3 * self["beat"])

    @property
    def start_s(self) -> float:
        """All that comes before the group stands."""
        return sum(self[phase] for phase in ("pending", "start", "import", "rendezvous", "join"))

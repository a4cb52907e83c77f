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

    def __getitem__(self, name: str) -> float:
        """Seconds for a row, or for a phase of a stage's own: `step`."""
        row = rows().get(name)
        if row is None:
            return self["step"]
        if name in self.own:
            return self.own[name]
        base_s = row.base_s if not self.in_container or row.in_container_s is None else row.in_container_s
        return base_s + row.per_rank_s * self.ranks

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

"""Whom the probe still waits for, and why no longer: by signs of life, and by what the fleet needs. Pure.

A node's time counts from its own turn behind the fan-out, and without the time in which this side did not listen.

    not reached      until others were, and some seconds more
    reached, silent  a few seconds: something is sent there once a second, also while a driver takes its time
    alive            until others have answered, and as long again as a slow driver may need
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import resources

import msgspec

from fairlead.base.units import duration
from fairlead.preflight.table import Preflight
from fairlead.records.limit import Judges, Limit
from fairlead.spec.model import Spec

GAP_RATIO = 3.0
"""A node is silent for no less than this multiple of the longest gap that one has come back from."""


class Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row of patience.toml."""

    value: float
    in_slurm: float | None = None
    """The value where nodes are reached through steps of Slurm."""
    unit: str
    judges: Judges
    what: str
    source: str
    code: str


@functools.cache
def rows() -> Mapping[str, Row]:
    """The table."""
    text = resources.files("fairlead.preflight.nodes").joinpath("patience.toml").read_text("utf-8")
    return msgspec.convert(tomllib.loads(text), dict[str, Row])


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbePatience:
    """The numbers in force."""

    probe_s: float
    probe_ratio: float
    probe_reach_s: float
    probe_silent_s: float
    node_limit_s: float
    """The longest, whatever the fleet does."""

    def after(self, done_s: Iterable[float], num_nodes: int, more_s: float) -> float:
        """How long a node may take, given how long others took: all of the limit before half of them are done.

        >>> [DEFAULT.after(done, 4, 13.0) for done in ([1.0, 1.2], [9.0, 10.0, 11.0], [1.0])]
        [14.0, 30.0, 60.0]
        """
        done = sorted(done_s)
        half = max(1, -(-num_nodes // 2))
        if len(done) < half:
            return self.node_limit_s
        return min(self.node_limit_s, max(self.probe_ratio * done[half - 1], more_s + done[0]))


DEFAULT = ProbePatience(**{name: row.value for name, row in rows().items()}, node_limit_s=Preflight().node_limit_s)


def patience_of(spec: Spec) -> ProbePatience:
    """The numbers for a cluster: the table's, with what the cluster file says instead."""
    own, in_slurm = spec.table(Preflight).limits, spec.access.via == "slurm"
    found = {
        name: own.get(name, row.in_slurm if in_slurm and row.in_slurm is not None else row.value)
        for name, row in rows().items()
    }
    return ProbePatience(**found, node_limit_s=spec.table(Preflight).node_limit_s)


def limits(spec: Spec) -> Iterator[Limit]:
    """All of them, for `fairlead limits`."""
    ours, own = patience_of(spec), spec.table(Preflight).limits
    for name, row in rows().items():
        yield Limit(
            name=name,
            what=row.what,
            judges=row.judges,
            value=getattr(ours, name),
            unit=row.unit,
            source="the cluster file" if name in own else row.source,
            key=f"preflight.limits.{name}",
            code=row.code,
        )


@dataclass
class Waiting:
    """Nodes whose probe is waited for. Times are this side's clock."""

    patience: ProbePatience
    nodes: frozenset[str]
    took_s: dict[str, float] = field(default_factory=dict)
    """Those that ended, and how long each took from its own turn."""
    gone: dict[str, str] = field(default_factory=dict)
    """Those given up, and why."""
    resumed: float = 0.0
    """When this side last listened again after it had not for a while."""
    deaf_s: float = 0.0
    """How long it did not, in all."""
    _reached: dict[str, float] = field(default_factory=dict)
    """When each was reached."""
    _heard: dict[str, float] = field(default_factory=dict)
    """The last sign of life of each."""
    _gap_s: float = 0.0
    """The longest between two of them."""

    def listened(self, now: float, late_s: float) -> None:
        """This side listens, `late_s` later than it meant to."""
        self.resumed, self.deaf_s = now, self.deaf_s + late_s

    def hear(self, alive: Mapping[str, float]) -> None:
        """Signs of life: node -> the last one."""
        for node, at in alive.items():
            before = self._heard.get(node)
            if before is None:
                self._reached[node] = at
            elif at > before > self.resumed:
                self._gap_s = max(self._gap_s, at - before)
            self._heard[node] = at

    @property
    def left(self) -> frozenset[str]:
        """Those still waited for."""
        return self.nodes - self.took_s.keys() - self.gone.keys()

    def ended(self, node: str, now: float, begun: Mapping[str, float]) -> None:
        """A node's probe has ended; one that was given up counts no more."""
        if node not in begun:
            self.nodes -= {node}  # refused before its turn came: it tells nothing of how long others need
        elif node not in self.gone:
            self.took_s[node] = now - begun[node]

    def give_up(self, now: float, begun: Mapping[str, float]) -> dict[str, str]:
        """Those that are waited for no longer, from now on, and why."""
        num, ours = len(self.nodes), self.patience
        reach_s = ours.after((at - begun.get(n, at) for n, at in self._reached.items()), num, ours.probe_reach_s)
        probe_s = ours.after(self.took_s.values(), num, ours.probe_s)
        silent_s = max(ours.probe_silent_s, GAP_RATIO * self._gap_s)
        new: dict[str, str] = {}
        for node in self.left & begun.keys():
            since_s, heard = now - begun[node] - self.deaf_s, self._heard.get(node)
            if heard is None and since_s > reach_s:
                new[node] = f"it was not reached within {duration(since_s)}, while others were"
            elif heard is not None and now - max(heard, self.resumed) > silent_s:
                new[node] = f"no sign of life for {duration(now - heard)}, while its probe ran: it hangs as a whole"
            elif since_s > probe_s:
                new[node] = f"no answer within {duration(since_s)}, while others answered"
        self.gone |= new
        return new

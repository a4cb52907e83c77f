"""A Finding: one thing learned about a node, a link or a job, with what was read and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from fairlead.records.verdict import Verdict, aggregate

SubjectKind = Literal["cluster", "job", "node", "device", "port", "plane", "link", "pair", "rank"]


class Subject(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a finding is about. `nodes` names every node involved: two for a pair, all of them for a cluster."""

    kind: SubjectKind
    nodes: tuple[str, ...] = ()
    name: str = ""
    """The part inside or between the nodes: `mlx5_ib3/1`, `plane 2`, `rank 5`; empty for a whole node."""

    def __str__(self) -> str:
        nodes = " <-> ".join(self.nodes) if self.kind in ("pair", "link") else ",".join(self.nodes)
        return " ".join(p for p in (nodes, self.name) if p) or self.kind


def node(name: str) -> Subject:
    """The subject of a finding about one whole node."""
    return Subject(kind="node", nodes=(name,))


class Evidence(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where something was read and what stood there, as read."""

    source: str
    """A path, a command line, or a fact path."""
    value: str


class WaiverNote(msgspec.Struct, frozen=True, kw_only=True):
    """A waiver that turned this finding's verdict; `was` is what it would have been."""

    reason: str
    expires: str
    was: Verdict


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One judged statement. `code` has an explanation under `fairlead explain`."""

    code: str
    verdict: Verdict
    subject: Subject
    message: str
    """One sentence, with values and units."""
    evidence: tuple[Evidence, ...] = ()
    remedy: str = ""
    """What to do or type next; empty for a pass."""
    data: dict[str, Any] = {}
    """Values for machines: value, expected, unit, limit, source of the limit, ..."""
    waived: WaiverNote | None = None

    def __str__(self) -> str:
        return f"{self.verdict.upper():7} {self.subject}  {self.code}  {self.message}"


def verdict_of(findings: Iterable[Finding]) -> Verdict:
    """The verdict of a set of findings."""
    return aggregate(f.verdict for f in findings)


_ORDER = {Verdict.FAIL: 0, Verdict.UNKNOWN: 1, Verdict.WARN: 2, Verdict.PASS: 3, Verdict.SKIP: 4}


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Findings in the order a person wants them; the order among equals is kept."""
    return sorted(findings, key=lambda f: _ORDER[f.verdict])

"""What a preflight found: a Report, with what was read and measured on the way; and which finding comes first.

Pure. Turning it into text, HTML or metrics is for faces.py, page.py and report/prom.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fairlead.preflight.everywhere import is_shared
from fairlead.preflight.pairs.facts import PairFacts
from fairlead.preflight.pairs.paths import Paths
from fairlead.preflight.ranks.facts import RankFacts
from fairlead.preflight.ranks.judge import has_succeeded
from fairlead.records.facts import NodeFacts
from fairlead.records.finding import Finding, Subject, verdict_of, worst_first
from fairlead.records.report import Report, is_own
from fairlead.records.verdict import Verdict
from fairlead.spec.model import Spec


@dataclass(frozen=True, kw_only=True)
class PreflightReport(Report):
    """The result of one preflight. Its findings are in the order of `in_order`: culprits first."""

    stage: str = "preflight"
    spec: Spec
    facts: tuple[NodeFacts, ...] = ()
    paths: Paths | None = None
    pairs: PairFacts | None = None
    ranks: RankFacts | None = None
    history: dict[str, str] = field(default_factory=dict)
    """Node -> how often it failed before, in words; only nodes that fail now."""

    @property
    def rest(self) -> Verdict:
        """Go or no-go for the good nodes alone: without what is about a bad one, and not without a collective that went
        through where one was begun.
        """
        if not self.good:
            return Verdict.FAIL
        bad = set(self.bad)
        left = [f for f in self.findings if not (_is_somebodys(f.subject) and bad & set(f.subject.nodes))]
        found = verdict_of(left)
        unproven = self.ranks is not None and not self.has_succeeded
        return Verdict.UNKNOWN if unproven and found is not Verdict.FAIL else found

    @property
    def has_succeeded(self) -> bool:
        """Whether the ranks went through every collective."""
        return has_succeeded(self.findings)

    def body(self) -> dict[str, Any]:
        """The document's own keys."""
        ranks = len(self.ranks.ends) if self.ranks else 0
        more = {"rest": str(self.rest), "ranks": ranks, "success": self.has_succeeded, "history": self.history}
        return {**super().body(), **more}


def _is_somebodys(subject: Subject) -> bool:
    """Whether a finding about this goes with the node it is about."""
    return is_own(subject) or subject.kind == "pair"


# What makes others fail comes before what fails because of it: a node, then its fabric, then its launch, then the job.
_STAGE = {"node": 0, "pairs": 1, "launch": 2, "ranks": 3}


def in_order(staged: Sequence[tuple[str, Sequence[Finding]]]) -> tuple[Finding, ...]:
    """Findings of all stages: the worst first, among equals those of the earlier stage, which explain later ones.

    What is the job's, or all nodes have in common, comes before any node's: nothing else is worth mending before it.
    A fault of one node comes before one of many, within the stage of node checks: an odd one out is seldom chance.
    """
    ranked: list[tuple[tuple[int, int, int], Finding]] = []
    for stage, findings in staged:
        for finding in findings:
            is_jobs = is_shared(finding) or (stage == "launch" and finding.subject.kind == "job")
            wide = 0 if stage != "node" or is_own(finding.subject) else 1
            ranked.append(((0 if is_jobs else 1, _STAGE[stage], wide), finding))
    ranked.sort(key=lambda item: item[0])
    return tuple(worst_first(f for _, f in ranked))

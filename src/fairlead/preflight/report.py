"""What a preflight found, as one record, and what follows from it: who can be used, and what to leave out.

Pure. Turning it into text, HTML or metrics is for faces.py, page.py and report/prom.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fairlead.base.nodeset import NodeSet
from fairlead.preflight.facts import PairFacts, RankFacts
from fairlead.preflight.judge_ranks import has_succeeded
from fairlead.preflight.paths import Paths
from fairlead.records.facts import NodeFacts
from fairlead.records.finding import Finding, Subject, verdict_of, worst_first
from fairlead.records.verdict import Verdict
from fairlead.spec.model import Spec

_OWN = ("node", "device", "port", "rank")
"""Subjects whose node is the one to leave out."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """The result of one preflight."""

    spec: Spec
    nodes: NodeSet
    """Everybody that was asked for."""
    findings: tuple[Finding, ...]
    """Culprits first; see `in_order`."""
    facts: tuple[NodeFacts, ...] = ()
    paths: Paths | None = None
    pairs: PairFacts | None = None
    ranks: RankFacts | None = None
    took_s: dict[str, float] = field(default_factory=dict)
    history: dict[str, str] = field(default_factory=dict)
    """Node -> how often it failed before, in words; only nodes that fail now."""

    @property
    def verdict(self) -> Verdict:
        """Go or no-go."""
        return verdict_of(self.findings)

    @property
    def bad(self) -> NodeSet:
        """Nodes to leave out, so that what is left was found well."""
        return bad_nodes(self.findings)

    @property
    def good(self) -> NodeSet:
        """The others; empty where a fault is nobody's in particular, such as a dead plane."""
        return self.nodes - self.bad

    @property
    def has_succeeded(self) -> bool:
        """Whether the ranks went through every collective."""
        return has_succeeded(self.findings)

    @property
    def culprit(self) -> Finding | None:
        """The first thing to look at."""
        return next((f for f in self.findings if f.verdict in (Verdict.FAIL, Verdict.UNKNOWN)), None)

    @property
    def exclude(self) -> str:
        """`--exclude=n2,n7` for sbatch and srun; empty where nobody is to be left out."""
        return f"--exclude={self.bad}" if self.bad else ""

    def body(self) -> dict[str, Any]:
        """The document's own keys."""
        return {
            "nodes": str(self.nodes),
            "good": str(self.good),
            "bad": str(self.bad),
            "exclude": self.exclude,
            "culprit": self.culprit,
            "ranks": len(self.ranks.ends) if self.ranks else 0,
            "success": self.has_succeeded,
            "findings": self.findings,
            "history": self.history,
            "took_s": self.took_s,
        }


def headline(report: Report) -> str:
    """One sentence: the culprit, or that all is well."""
    if report.culprit is not None:
        return f"{report.culprit.subject}: {report.culprit.message}"
    warned = ", with warnings" if report.verdict is Verdict.WARN else ""
    return f"{len(report.good)} of {len(report.nodes)} nodes are ready{warned}"


def is_cause(finding: Finding) -> bool:
    """Whether a finding closes the gate."""
    return finding.verdict is Verdict.FAIL


def bad_nodes(findings: Iterable[Finding]) -> NodeSet:
    """Nodes with a fault of their own, and of each bad pair that is left the node that is in most of them."""
    fails = [f for f in findings if is_cause(f)]
    bad = {n for f in fails if f.subject.kind in _OWN for n in f.subject.nodes}
    pairs = [set(f.subject.nodes) for f in fails if f.subject.kind == "pair"]
    while left := [p for p in pairs if not p & bad]:
        count = Counter(n for p in left for n in p)
        bad.add(max(count, key=lambda n: (count[n], n)))
    return NodeSet(bad)


def is_own(subject: Subject) -> bool:
    """Whether a finding about this is the fault of the nodes it names."""
    return subject.kind in _OWN


# What makes others fail comes before what fails because of it: a node, then its fabric, then its launch, then the job.
_STAGE = {"node": 0, "pairs": 1, "launch": 2, "ranks": 3}


def in_order(staged: Sequence[tuple[str, Sequence[Finding]]]) -> tuple[Finding, ...]:
    """Findings of all stages: the worst first, among equals those of the earlier stage, which explain later ones.

    A fault of one node comes before one of many, within the stage of node checks: an odd one out is seldom chance.
    """
    ranked: list[tuple[tuple[int, int, int], Finding]] = []
    for stage, findings in staged:
        for finding in findings:
            wide = 0 if stage != "node" or is_own(finding.subject) else 1
            ranked.append(((_STAGE[stage], wide, 0), finding))
    ranked.sort(key=lambda item: item[0])
    return tuple(worst_first(f for _, f in ranked))

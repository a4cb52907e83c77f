"""A Report: what one stage has to say when it is done. Every verb that judges answers with one; that of several stages
holds theirs.

Pure. Turning it into text, HTML or metrics is for the report room and for the faces of a stage.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fairlead.base.nodeset import NodeSet
from fairlead.records.finding import Finding, Subject
from fairlead.records.verdict import Verdict, aggregate

_OWN = ("node", "device", "port", "rank")
"""Subjects whose node is the one to leave out."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """What came of a stage. A stage that found out more than this has a Report of its own, with more fields."""

    stage: str
    """`preflight`, `lab up`."""
    nodes: NodeSet = field(default_factory=NodeSet)
    """Everybody that was asked for."""
    findings: tuple[Finding, ...] = ()
    """The first thing to look at comes first."""
    took_s: Mapping[str, float] = field(default_factory=dict)
    """Step -> how long it took."""
    said: str = ""
    """One sentence for people, where the findings do not say it."""
    ended: Verdict | None = None
    """How it ended, where it has no finding to show for it: a lab that is up."""
    parts: tuple[Report, ...] = ()
    """The stages it consists of, in their order."""

    @property
    def verdict(self) -> Verdict:
        """The worst of all that was found; nothing at all is unknown."""
        own = [f.verdict for f in self.findings] + ([self.ended] if self.ended else [])
        return aggregate([*own, *(part.verdict for part in self.parts)])

    @property
    def bad(self) -> NodeSet:
        """Nodes to leave out, so that what is left was found well."""
        return bad_nodes(self.findings, self.nodes)

    @property
    def good(self) -> NodeSet:
        """The others; empty where a fault is nobody's in particular, such as a dead plane."""
        return self.nodes - self.bad

    @property
    def culprit(self) -> Finding | None:
        """The first thing to look at."""
        return next((f for f in self.findings if f.verdict in (Verdict.FAIL, Verdict.UNKNOWN)), None)

    @property
    def exclude(self) -> str:
        """`--exclude=n2,n7` for sbatch and srun; empty where nobody is to be left out."""
        return f"--exclude={self.bad}" if self.bad else ""

    @property
    def took_in_all_s(self) -> float:
        """How long everything took."""
        return sum(self.took_s.values()) + sum(part.took_in_all_s for part in self.parts)

    def body(self) -> dict[str, Any]:
        """The keys a document has of every report."""
        return {
            "nodes": str(self.nodes),
            "good": str(self.good),
            "bad": str(self.bad),
            "exclude": self.exclude,
            "culprit": self.culprit,
            "findings": self.findings,
            "took_s": dict(self.took_s),
        }


def headline(report: Report) -> str:
    """One sentence: the culprit, or that all is well."""
    if report.said:
        return report.said
    if report.culprit is not None:
        return f"{report.culprit.subject}: {report.culprit.message}"
    warned = ", with warnings" if report.verdict is Verdict.WARN else ""
    return f"{len(report.good)} of {len(report.nodes)} nodes are ready{warned}"


def bad_nodes(findings: Iterable[Finding], among: NodeSet) -> NodeSet:
    """Nodes with a fault of their own, and those that more bad pairs meet in than in any of their partners.

    Of a bad pair alone nobody knows which end it is, and it leaves nobody out. A finding may quote a name that a node
    said of itself; whoever was not asked is not left out.
    """
    fails = [f for f in findings if f.verdict is Verdict.FAIL]
    bad = {n for f in fails if is_own(f.subject) for n in f.subject.nodes}
    while met := _met_most(_left_pairs(fails, bad)):
        bad |= met
    return NodeSet(n for n in bad if n in among)


def apart(findings: Iterable[Finding], among: NodeSet) -> NodeSet:
    """The bad nodes, and one of each bad pair that is left: without these, no two that are left are a bad pair.

    A choice of whom to go on with, and no accusation.
    """
    fails = [f for f in findings if f.verdict is Verdict.FAIL]
    out = set(bad_nodes(fails, among))
    while left := _left_pairs(fails, out):
        count = Counter(n for pair in left for n in pair)
        out.add(max(count, key=lambda n: (n in among, count[n], n)))
    return NodeSet(n for n in out if n in among)


def _left_pairs(fails: Sequence[Finding], out: set[str]) -> set[frozenset[str]]:
    """Bad pairs of which neither end is out."""
    pairs = (frozenset(f.subject.nodes) for f in fails if f.subject.kind == "pair")
    return {pair for pair in pairs if len(pair) > 1 and not pair & out}


def _met_most(pairs: Iterable[frozenset[str]]) -> set[str]:
    """Nodes that are in two bad pairs at least, and in more than each of their partners."""
    partners: defaultdict[str, set[str]] = defaultdict(set)
    for pair in pairs:
        for name in pair:
            partners[name] |= pair - {name}
    num = {name: len(others) for name, others in partners.items()}
    return {name for name in num if num[name] > 1 and all(num[other] < num[name] for other in partners[name])}


def is_own(subject: Subject) -> bool:
    """Whether a finding about this is the fault of the nodes it names."""
    return subject.kind in _OWN

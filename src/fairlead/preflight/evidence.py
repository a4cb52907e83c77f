"""Everything a run has read, and what follows from it by today's rules. Pure: `judge_all` can be asked again later."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fairlead.base.nodeset import NodeSet
from fairlead.checks import counted_gpus, judge
from fairlead.checks.waive import apply_waivers
from fairlead.preflight.consequences import without_consequences
from fairlead.preflight.everywhere import none_answered, shared
from fairlead.preflight.pairs.facts import PairFacts
from fairlead.preflight.pairs.judge import judge_pairs
from fairlead.preflight.pairs.limits import DEFAULT, Limits, assumed, limits_of
from fairlead.preflight.pairs.paths import Paths, paths_of
from fairlead.preflight.ranks.facts import RankFacts
from fairlead.preflight.ranks.judge import judge_ranks
from fairlead.preflight.ranks.judge_launch import judge_launch
from fairlead.preflight.ranks.wanted import Wanted, wanted_of
from fairlead.preflight.report import in_order
from fairlead.preflight.slurm.scheduler import SlurmNode, called, judge_scheduler
from fairlead.preflight.slurm.waiting import judge_waiting
from fairlead.probe.addresses import book_of
from fairlead.records.addressbook import AddressBook
from fairlead.records.facts import NodeFacts
from fairlead.records.finding import Finding
from fairlead.records.report import apart
from fairlead.spec.model import Spec


@dataclass
class Evidence:
    """Everything a run has read, and what follows from it: the input of `judge_all`."""

    spec: Spec
    nodes: NodeSet
    facts: list[NodeFacts] = field(default_factory=list)
    silent: list[Finding] = field(default_factory=list)
    """A finding for each node that gave no facts."""
    job: list[Finding] = field(default_factory=list)
    """What is wrong with the job this runs in."""
    slurm: dict[str, SlurmNode] = field(default_factory=dict)
    book: AddressBook = field(default_factory=AddressBook)
    """Where the nodes are that answered."""
    paths: Paths | None = None
    pairs: PairFacts | None = None
    ranks: RankFacts | None = None
    today: dt.date | None = None
    limits: Limits = DEFAULT

    @property
    def day(self) -> dt.date:
        """Today, by which waivers expire."""
        return self.today or dt.datetime.now(dt.UTC).date()

    def node_findings(self) -> list[Finding]:
        """Nodes by themselves and side by side, and what Slurm says of them."""
        found = list(self.silent) if self.facts else none_answered(self.silent, self.nodes)
        if self.facts:
            found += judge(self.facts, self.spec, today=self.today)
        if self.slurm:
            gpus = {node: pool.gpus for pool in self.spec.pools for node in pool.nodes}
            shown = {record.node: counted_gpus(record) for record in self.facts}
            found += judge_scheduler(self.slurm, self.nodes, gpus, shown)
        return shared(found, NodeSet(record.node for record in self.facts))

    def pair_findings(self) -> list[Finding]:
        """What pairs showed, and on what assumption."""
        return judge_pairs(self.pairs, self.limits, assumed(self.spec)) if self.pairs else []

    def before_ranks(self) -> list[Finding]:
        """What is known before ranks run. What is waived leaves nobody out: whom the report calls good is tested."""
        return [*self.node_findings(), *waived(self.pair_findings(), self.spec, self.day)]

    def launch_findings(self) -> list[Finding]:
        """What the ranks were."""
        return [*self.job, *(judge_launch(self.ranks, self.wanted(self.ranks.nodes)) if self.ranks else [])]

    def rank_findings(self) -> list[Finding]:
        """What the ranks did."""
        if self.ranks is None:
            return []
        if waiting := judge_waiting(self.ranks):
            return [waiting]
        addresses = {n: self.paths.first(n) for n in self.paths.addresses} if self.paths else {}
        return judge_ranks(self.ranks, addresses, self.wanted(self.ranks.nodes))

    def wanted(self, nodes: Iterable[str]) -> Wanted:
        """What ranks on some nodes are held against."""
        return wanted_of(self.spec, nodes, self.facts)

    def usable(self, findings: Sequence[Finding], *, for_ranks: bool = False) -> NodeSet:
        """Nodes that answered, have no fault of their own and are no bad pair; where that leaves fewer than two, all
        that answered.

        Ranks that are to be tasks of Slurm need nodes that Slurm gives work to.
        """
        answered = NodeSet(record.node for record in self.facts)
        known = {n: called(self.slurm, n) for n in answered}
        if for_ranks and any(known.values()):
            answered = NodeSet(n for n, said in known.items() if said is not None and not said.bad_states)
        good = answered - apart(findings, answered)
        return good if len(good) > 1 or len(answered) < 2 else answered


def judge_all(seen: Evidence) -> tuple[Finding, ...]:
    """Today's rules over everything a run has read."""
    day = seen.day
    later = {"pairs": seen.pair_findings(), "launch": seen.launch_findings()}
    later["ranks"] = without_consequences(seen.rank_findings(), [*later["pairs"], *seen.job])
    left = {stage: waived(found, seen.spec, day) for stage, found in later.items()}
    ranked = NodeSet(seen.ranks.nodes) if seen.ranks else NodeSet()
    left |= {stage: shared(left[stage], ranked, "job") for stage in ("launch", "ranks")}
    return in_order([("node", seen.node_findings()), *left.items()])


def waived(findings: Sequence[Finding], spec: Spec, day: dt.date) -> list[Finding]:
    """Waivers on findings of the later stages; what is wrong with a waiver itself was said with the nodes."""
    return [f for f in apply_waivers(findings, spec.waivers, day) if not f.code.startswith("spec/")]


def read_evidence(
    read: Callable[[str, type[Any]], Any], spec: Spec, nodes: NodeSet, facts: list[NodeFacts]
) -> Evidence:
    """The evidence of an earlier run; `read(name, kind)` returns a file's record, None where there is none."""
    seen = Evidence(spec, nodes, facts, limits=limits_of(spec))
    seen.silent = read("silent.json", list[Finding]) or []
    seen.slurm = read("slurm.json", dict[str, SlurmNode]) or {}
    seen.pairs, seen.ranks = read("pairs.json", PairFacts), read("ranks.json", RankFacts)
    seen.book = book_from(seen)
    seen.paths = paths_of(seen.book) if facts else None
    return seen


def book_from(seen: Evidence) -> AddressBook:
    """Where the nodes are: what they say themselves, and by which address Slurm knows them."""
    return book_of(seen.facts, {name: node.address for name, node in seen.slurm.items()})

"""The gate: nodes, then pairs, then ranks, each on those that are still good. Touches the world through `cluster`.

    1  every node is probed and judged; what the scheduler says of it counts too       -> facts/NODE.json, slurm.json
    2  the good ones test each other in pairs                                            -> pairs.json
    3  the good ones run ranks                                                           -> ranks.json
    4  everything is judged once more, together: the verdict, and who is to blame        -> findings.json

One dead node does not hide a second fault: the rest goes on without it. Everything read lies in the run folder before
it is judged, so `judge_all` can be asked again later.
"""

from __future__ import annotations

import datetime as dt
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from fairlead.base.nodeset import NodeSet
from fairlead.checks import judge
from fairlead.checks.waive import apply_waivers
from fairlead.cluster import Cluster, Command, Line, Result
from fairlead.cluster.live import Live
from fairlead.preflight.consequences import without_consequences
from fairlead.preflight.drive import Driver, Group
from fairlead.preflight.facts import PairFacts, RankFacts
from fairlead.preflight.inside import judge_job
from fairlead.preflight.judge_launch import judge_launch
from fairlead.preflight.judge_pairs import dead_part, judge_pairs
from fairlead.preflight.judge_ranks import judge_ranks
from fairlead.preflight.limits import DEFAULT, Limits
from fairlead.preflight.nodes import Progress, probe_nodes
from fairlead.preflight.pairs import Plan, Step, pair_phase
from fairlead.preflight.paths import Paths, paths_of, port_bps
from fairlead.preflight.pipe import AGENT, boot, program
from fairlead.preflight.ranks import Launch, run_ranks
from fairlead.preflight.report import Report, bad_nodes, in_order
from fairlead.preflight.scheduler import SHOW, SlurmNode, judge_scheduler, parse
from fairlead.preflight.waiting import judge_waiting
from fairlead.probe import sort_answers
from fairlead.records.facts import NodeFacts
from fairlead.records.finding import Finding
from fairlead.records.runs import RunFolder
from fairlead.records.verdict import Verdict
from fairlead.spec import contract_of
from fairlead.spec.model import Pool, Spec

Note = Callable[[str], object]

_CONTROL_S = 20.0
_GOODBYE_S = 0.5


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
    paths: Paths | None = None
    pairs: PairFacts | None = None
    ranks: RankFacts | None = None
    today: dt.date | None = None
    limits: Limits = DEFAULT

    def node_findings(self) -> list[Finding]:
        """Nodes by themselves and side by side, and what Slurm says of them."""
        found = list(self.silent)
        if self.facts:
            found += judge(self.facts, self.spec, today=self.today)
        if self.slurm:
            gpus = {node: pool.gpus for pool in self.spec.pools for node in pool.nodes}
            found += judge_scheduler(self.slurm, self.nodes, gpus)
        return found

    def pair_findings(self) -> list[Finding]:
        """What pairs showed."""
        return judge_pairs(self.pairs, self.limits) if self.pairs else []

    def launch_findings(self) -> list[Finding]:
        """What the ranks were."""
        return [*self.job, *(judge_launch(self.ranks, rdma=self.spec.fabric.rdma) if self.ranks else [])]

    def rank_findings(self) -> list[Finding]:
        """What the ranks did."""
        if self.ranks is None:
            return []
        if waiting := judge_waiting(self.ranks):
            return [waiting]
        addresses = {n: self.paths.first(n) for n in self.paths.addresses} if self.paths else {}
        pool = pool_of(self.spec, self.ranks.nodes[0])
        expected = contract_of(self.spec, pool).expected if pool else {}
        return judge_ranks(self.ranks, addresses, rdma=self.spec.fabric.rdma, expected=expected)

    def usable(self, findings: Sequence[Finding], *, for_ranks: bool = False) -> NodeSet:
        """Nodes that answered and have no fault of their own; where that leaves fewer than two, all that answered.

        Ranks that are to be tasks of Slurm need nodes that Slurm gives work to.
        """
        answered = NodeSet(record.node for record in self.facts)
        if for_ranks and self.slurm:
            answered = NodeSet(n for n in answered if n in self.slurm and not self.slurm[n].bad_states)
        good = answered - bad_nodes(findings)
        return good if len(good) > 1 or len(answered) < 2 else answered


def run(
    cluster: Cluster,
    spec: Spec,
    folder: RunFolder | None = None,
    *,
    nodes: NodeSet | None = None,
    inside: bool = False,
    note: Note = lambda _: None,
    progress: Progress | None = None,
    limits: Limits = DEFAULT,
    today: dt.date | None = None,
) -> Report:
    """Preflight `nodes` (all of the file, if left out). Whatever ails nodes is in the report, never raised.

    `inside`: the Slurm job this runs in is judged, too.
    """
    seen = Evidence(spec, nodes if nodes is not None else spec.nodes, today=today, limits=limits)
    seen.job = list(judge_job(os.environ, spec)) if inside else []
    stages = _Stages(cluster, seen, folder, note)
    with stages.timed("nodes"):
        stages.look_at_nodes(progress or (lambda *_: None))
    with stages.timed("pairs"):
        usable = seen.usable(seen.node_findings())
        port = stages.test_pairs(usable) if usable else 0
    with stages.timed("ranks"):
        usable = seen.usable([*seen.node_findings(), *seen.pair_findings()], for_ranks=True)
        if usable and port:
            stages.run_ranks(usable, port)
    findings = judge_all(seen)
    if folder:
        folder.write("findings.json", findings)
    return Report(
        spec=spec,
        nodes=seen.nodes,
        findings=findings,
        facts=tuple(seen.facts),
        paths=seen.paths,
        pairs=seen.pairs,
        ranks=seen.ranks,
        took_s=stages.took_s,
    )


# ---- judging, which touches nothing ----------------------------------------------------------------------------------


def judge_all(seen: Evidence) -> tuple[Finding, ...]:
    """Today's rules over everything a run has read."""
    day = seen.today or dt.datetime.now(dt.UTC).date()
    later = {"pairs": seen.pair_findings(), "launch": seen.launch_findings()}
    later["ranks"] = without_consequences(seen.rank_findings(), [*later["pairs"], *seen.job])
    waived = {stage: _waived(found, seen.spec, day) for stage, found in later.items()}
    return in_order([("node", seen.node_findings()), *waived.items()])


def _waived(findings: Sequence[Finding], spec: Spec, day: dt.date) -> list[Finding]:
    """Waivers on findings of the later stages; what is wrong with a waiver itself was said with the nodes."""
    return [f for f in apply_waivers(findings, spec.waivers, day) if not f.code.startswith("spec/")]


# ---- stages ----------------------------------------------------------------------------------------------------------


@dataclass
class _Stages:
    """What touches the nodes. Each stage adds to what was seen, and to the run folder."""

    cluster: Cluster
    seen: Evidence
    folder: RunFolder | None
    note: Note
    took_s: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Note how long a stage takes."""
        started = time.monotonic()
        yield
        self.took_s[name] = round(time.monotonic() - started, 3)

    def keep(self, name: str, record: Any) -> None:
        """Write a file of the run folder."""
        if self.folder:
            self.folder.write(name, record)

    def look_at_nodes(self, progress: Progress) -> None:
        """Probe every node; ask the scheduler what it thinks of them."""
        seen, limit_s = self.seen, self.seen.spec.preflight.node_limit_s
        answers = probe_nodes(self.cluster, seen.spec, seen.nodes, limit_s=limit_s, progress=progress)
        seen.facts, seen.silent = sort_answers(answers, silent=Verdict.FAIL)
        if self.folder:
            self.folder.write_facts(seen.facts)
        self.keep("silent.json", [*seen.silent, *seen.job])
        said = self.cluster.control(SHOW, limit_s=_CONTROL_S)
        if said is not None and said.rc == 0:
            seen.slurm = parse(said.out)
            self.keep("slurm.json", seen.slurm)

    def test_pairs(self, usable: NodeSet) -> int:
        """Run the pair phase; returns a port that is free on the first node that is still good, for the rendezvous."""
        seen = self.seen
        seen.paths = paths = paths_of([f for f in seen.facts if f.node in usable], seen.spec)
        names = tuple(usable)
        plan = Plan(
            nodes=names,
            paths=paths.labels,
            addresses=tuple(paths.addresses[n] for n in names),
            groups={i: paths.groups[n] for i, n in enumerate(names) if n in paths.groups},
            port_bps=port_bps(seen.spec, usable),
            limits=seen.limits,
        )
        self.note(f"pairs    {len(names)} nodes, {len(paths.labels)} paths")
        source, pool = program(AGENT), pool_of(seen.spec, names[0])
        argv = (pool.python if pool else "python3", *boot(source, "fairlead-agent"))
        with self.cluster.live(
            usable, Command(argv=argv, stdin=source), limit_s=seen.spec.preflight.timeout_s
        ) as group:
            driver = Driver(_OnePerNode(group), names, lost_s=seen.limits.lost_s)
            seen.pairs = driver.run(pair_phase(plan))
            self.keep("pairs.json", seen.pairs)
            left = seen.usable([*seen.node_findings(), *seen.pair_findings()], for_ranks=True)
            first = names.index(left[0]) if left and left[0] in names else 0
            line = {"do": "port", "step": -1, "only": [first]}
            report = driver.perform(Step(line=line, expect=frozenset([first]))).reports.get(first)
            group.send('{"do":"bye"}')
            group.close(_GOODBYE_S)
        return report.port if report else 0

    def run_ranks(self, usable: NodeSet, port: int) -> None:
        """Run the collective on every GPU of the nodes."""
        spec, paths = self.seen.spec, self.seen.paths
        assert paths is not None
        pools = [pool for pool in spec.pools if pool.nodes & usable]
        per_node = min(pool.gpus or 1 for pool in pools)
        launch = Launch(
            nodes=tuple(usable),
            per_node=per_node,
            python=pools[0].python,
            host=paths.first(usable[0]),
            port=port,
            addresses={n: paths.first(n) for n in usable},
            sizes=spec.preflight.message_bytes,
            reduce_s=spec.preflight.reduce_s,
            limit_s=spec.preflight.timeout_s,
            in_container=bool(spec.slurm.container),
            options=(f"--gres=gpu:{per_node}",) if any(n.gpus for n in self.seen.slurm.values()) else (),
            launch_only=dead_part(self.seen.pairs, self.seen.limits) if self.seen.pairs else "",
        )
        self.note(f"ranks    {launch.wanted} on {len(usable)} nodes")
        self.seen.ranks = run_ranks(self.cluster, launch, self.note)
        self.keep("ranks.json", self.seen.ranks)


class _OnePerNode(Group):
    """A live group of one process a node, with ends by node name."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def send(self, text: str) -> None:
        """One line to all."""
        self._live.send(text)

    def read(self, timeout_s: float) -> Line | None:
        """The next line of any."""
        return self._live.read(timeout_s)

    @property
    def ended(self) -> dict[str, Result]:
        """Those that have ended."""
        return {node: result for (node, _), result in self._live.ended.items()}


def pool_of(spec: Spec, node: str) -> Pool | None:
    """The pool a node belongs to."""
    return next((pool for pool in spec.pools if node in pool.nodes), None)


def read_evidence(
    read: Callable[[str, type[Any]], Any], spec: Spec, nodes: NodeSet, facts: list[NodeFacts]
) -> Evidence:
    """The evidence of an earlier run; `read(name, kind)` returns a file's record, None where there is none."""
    seen = Evidence(spec, nodes, facts)
    seen.silent = read("silent.json", list[Finding]) or []
    seen.slurm = read("slurm.json", dict[str, SlurmNode]) or {}
    seen.pairs, seen.ranks = read("pairs.json", PairFacts), read("ranks.json", RankFacts)
    seen.paths = paths_of(facts, spec) if facts else None
    return seen

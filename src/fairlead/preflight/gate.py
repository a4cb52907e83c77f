"""The gate: nodes, then pairs, then ranks, each on those that are still good. Touches the world through `cluster` alone.

    1  every node is probed and judged; what the scheduler says of it counts too       -> facts/NODE.json, slurm.json
    2  the good ones test each other in pairs                                            -> pairs.json
    3  the good ones run ranks                                                           -> ranks.json
    4  everything is judged once more, together: the verdict, and who is to blame        -> findings.json

One dead node does not hide a second fault: the rest goes on without it. Everything read lies in the run folder before it
is judged, so `judge_all` can be asked again later.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import resources

import msgspec

from fairlead.base.nodeset import NodeSet
from fairlead.checks import judge
from fairlead.checks.waive import apply_waivers
from fairlead.cluster import Cluster, Command, Line, Result
from fairlead.cluster.live import Live
from fairlead.preflight.drive import Driver, Group
from fairlead.preflight.facts import PairFacts, RankFacts
from fairlead.preflight.judge_launch import judge_launch
from fairlead.preflight.judge_pairs import judge_pairs
from fairlead.preflight.judge_ranks import judge_ranks
from fairlead.preflight.limits import DEFAULT, Limits
from fairlead.preflight.nodes import Progress, probe_nodes
from fairlead.preflight.pairs import Answers, Plan, Step, pair_phase
from fairlead.preflight.paths import Paths, paths_of
from fairlead.preflight.pipe import boot
from fairlead.preflight.ranks import Launch, run_ranks
from fairlead.preflight.report import Report, bad_nodes, in_order
from fairlead.preflight.scheduler import SHOW, SlurmNode, judge_scheduler, parse
from fairlead.probe import NodeAnswer, sort_answers
from fairlead.records.facts import NodeFacts
from fairlead.records.finding import Finding
from fairlead.records.runs import RunFolder
from fairlead.records.verdict import Verdict
from fairlead.spec import contract_of
from fairlead.spec.model import Pool, Spec

Note = Callable[[str], object]


@dataclass
class Evidence:
    """Everything a run has read: the input of `judge_all`."""

    spec: Spec
    nodes: NodeSet
    facts: list[NodeFacts] = field(default_factory=list)
    silent: list[Finding] = field(default_factory=list)
    """A finding for each node that gave no facts."""
    slurm: dict[str, SlurmNode] = field(default_factory=dict)
    paths: Paths | None = None
    pairs: PairFacts | None = None
    ranks: RankFacts | None = None


def run(
    cluster: Cluster,
    spec: Spec,
    folder: RunFolder | None = None,
    *,
    nodes: NodeSet | None = None,
    note: Note = lambda _: None,
    progress: Progress = lambda *_: None,
    limits: Limits = DEFAULT,
    today: dt.date | None = None,
) -> Report:
    """Preflight `nodes` (all of the file, if left out). Whatever ails nodes is in the report, never raised."""
    seen = Evidence(spec, nodes if nodes is not None else spec.nodes)
    took_s: dict[str, float] = {}

    @contextmanager
    def stage(name: str) -> Iterator[None]:
        started = time.monotonic()
        yield
        took_s[name] = round(time.monotonic() - started, 3)

    with stage("nodes"):
        _look_at_nodes(cluster, seen, folder, progress)
    with stage("pairs"):
        usable = _usable(seen, _node_findings(seen, today))
        port = _test_pairs(cluster, seen, usable, folder, note, limits) if usable else 0
    with stage("ranks"):
        usable = _usable(seen, [*_node_findings(seen, today), *_pair_findings(seen, limits)])
        if usable and port:
            _run_ranks(cluster, seen, usable, port, folder, note)
    findings = judge_all(seen, limits=limits, today=today)
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
        took_s=took_s,
    )


# ---- judging, which touches nothing ----------------------------------------------------------------------------------


def judge_all(seen: Evidence, *, limits: Limits = DEFAULT, today: dt.date | None = None) -> tuple[Finding, ...]:
    """Today's rules over everything a run has read."""
    launch, ranks = _rank_findings(seen)
    staged = [("node", _node_findings(seen, today)), ("pairs", _pair_findings(seen, limits)), ("launch", launch), ("ranks", ranks)]
    day = today or dt.datetime.now(dt.UTC).date()
    waived = [(stage, found if stage == "node" else _waived(found, seen.spec, day)) for stage, found in staged]
    return in_order(waived)


def _waived(findings: Sequence[Finding], spec: Spec, day: dt.date) -> list[Finding]:
    """Waivers on findings of the later stages; what is wrong with a waiver itself was said with the nodes."""
    return [f for f in apply_waivers(findings, spec.waivers, day) if f.code != "spec/waiver-expired"]


def _node_findings(seen: Evidence, today: dt.date | None) -> list[Finding]:
    found = list(seen.silent)
    if seen.facts:
        found += judge(seen.facts, seen.spec, today=today)
    if seen.slurm:
        gpus = {node: pool.gpus for pool in seen.spec.pools for node in pool.nodes}
        found += judge_scheduler(seen.slurm, seen.nodes, gpus)
    return found


def _pair_findings(seen: Evidence, limits: Limits) -> list[Finding]:
    return judge_pairs(seen.pairs, limits) if seen.pairs else []


def _rank_findings(seen: Evidence) -> tuple[list[Finding], list[Finding]]:
    if seen.ranks is None:
        return [], []
    rdma = seen.spec.fabric.rdma
    addresses = {n: seen.paths.first(n) for n in seen.paths.addresses} if seen.paths else {}
    pool = pool_of(seen.spec, seen.ranks.nodes[0])
    expected = contract_of(seen.spec, pool).expected if pool else {}
    return judge_launch(seen.ranks, rdma=rdma), judge_ranks(seen.ranks, addresses, rdma=rdma, expected=expected)


def _usable(seen: Evidence, findings: Sequence[Finding]) -> NodeSet:
    """Nodes that answered and have no fault of their own; where that leaves fewer than two, all that answered."""
    answered = NodeSet(record.node for record in seen.facts)
    good = answered - bad_nodes(findings)
    return good if len(good) > 1 or len(answered) < 2 else answered


# ---- stages ----------------------------------------------------------------------------------------------------------


def _look_at_nodes(cluster: Cluster, seen: Evidence, folder: RunFolder | None, progress: Progress) -> None:
    limit_s = seen.spec.preflight.node_limit_s
    answers: list[NodeAnswer] = probe_nodes(cluster, seen.spec, seen.nodes, limit_s=limit_s, progress=progress)
    seen.facts, seen.silent = sort_answers(answers, silent=Verdict.FAIL)
    if folder:
        folder.write_facts(seen.facts)
        folder.write("silent.json", seen.silent)
    said = cluster.control(SHOW, limit_s=limit_s)
    if said is not None and said.rc == 0:
        seen.slurm = parse(said.out)
        if folder:
            folder.write("slurm.json", seen.slurm)


def _test_pairs(
    cluster: Cluster, seen: Evidence, usable: NodeSet, folder: RunFolder | None, note: Note, limits: Limits
) -> int:
    """Run the pair phase; returns a port that is free on the first usable node, for the rendezvous."""
    seen.paths = paths = paths_of([f for f in seen.facts if f.node in usable], seen.spec)
    names = tuple(usable)
    plan = Plan(
        nodes=names,
        paths=paths.labels,
        addresses=tuple(paths.addresses[n] for n in names),
        groups={i: paths.groups[n] for i, n in enumerate(names) if n in paths.groups},
        limits=limits,
    )
    note(f"pairs: {len(names)} nodes, {len(paths.labels)} paths")
    source = resources.files("fairlead.preflight").joinpath("agent.py").read_bytes()
    pool = pool_of(seen.spec, names[0])
    argv = (pool.python if pool else "python3", *boot(source, "fairlead-agent"))
    with cluster.live(usable, Command(argv=argv, stdin=source), limit_s=seen.spec.preflight.timeout_s) as group:
        driver = Driver(_OnePerNode(group), names, lost_s=limits.lost_s)
        seen.pairs = driver.run(pair_phase(plan))
        if folder:
            folder.write("pairs.json", seen.pairs)
        # the rendezvous will be on the first node that is still good
        left = _usable(seen, [*_node_findings(seen, None), *_pair_findings(seen, limits)])
        first = names.index(left[0]) if left and left[0] in names else 0
        answers: Answers = driver.perform(Step(line={"do": "port", "step": -1, "only": [first]}, expect=frozenset([first])))
        group.send('{"do":"bye"}')
        group.close(0.5)
    report = answers.reports.get(first)
    return report.port if report else 0


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


def _run_ranks(
    cluster: Cluster, seen: Evidence, usable: NodeSet, port: int, folder: RunFolder | None, note: Note
) -> None:
    spec, paths = seen.spec, seen.paths
    assert paths is not None
    pools = [pool for pool in spec.pools if pool.nodes & usable]
    per_node = min((pool.gpus or 1 for pool in pools), default=1)
    on_slurm = any(n.gpus for n in seen.slurm.values())
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
        options=(f"--gres=gpu:{per_node}",) if on_slurm else (),
    )
    note(f"ranks: {launch.wanted} on {len(usable)} nodes")
    seen.ranks = run_ranks(cluster, launch, note)
    if folder:
        folder.write("ranks.json", seen.ranks)


def pool_of(spec: Spec, node: str) -> Pool | None:
    """The pool a node belongs to."""
    return next((pool for pool in spec.pools if node in pool.nodes), None)


def read_evidence(folder_files: Callable[[str, type], object | None], spec: Spec, nodes: NodeSet, facts: list[NodeFacts]) -> Evidence:
    """The evidence of an earlier run; `folder_files(name, kind)` returns a file's record, None where there is none."""
    seen = Evidence(spec, nodes, facts)
    seen.silent = msgspec.convert(folder_files("silent.json", list) or [], list[Finding])
    seen.slurm = msgspec.convert(folder_files("slurm.json", dict) or {}, dict[str, SlurmNode])
    pairs, ranks = folder_files("pairs.json", PairFacts), folder_files("ranks.json", RankFacts)
    seen.pairs = pairs if isinstance(pairs, PairFacts) else None
    seen.ranks = ranks if isinstance(ranks, RankFacts) else None
    answered = [f for f in facts if f.node in nodes]
    seen.paths = paths_of(answered, spec) if answered else None
    return seen

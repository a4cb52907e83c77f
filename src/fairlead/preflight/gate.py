"""The gate: nodes, then pairs, then ranks, each on those that are still good. Touches the world through `cluster`.

    1  every node is probed and judged; what the scheduler says of it counts too       -> facts/NODE.json, slurm.json
    2  the good ones test each other in pairs                                            -> pairs.json
    3  the good ones run ranks                                                           -> ranks.json
       then the ports' counters are read once more                                       -> pairs.json
    4  everything is judged once more, together: the verdict, and who is to blame        -> findings.json

One dead node does not hide a second fault: the rest goes on without it. Everything read lies in the run folder before
it is judged, so `judge_all` can be asked again later.
"""

from __future__ import annotations

import datetime as dt
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from fairlead.base.nodeset import NodeSet
from fairlead.cluster import Cluster, Line, Program, Result
from fairlead.cluster.live import Live
from fairlead.cluster.table import Slurm
from fairlead.launch.table import Launch as LaunchTable
from fairlead.launch.table import own_patience
from fairlead.preflight.evidence import Evidence, book_from, judge_all
from fairlead.preflight.nodes.patience import patience_of
from fairlead.preflight.nodes.probing import Progress, probe_nodes
from fairlead.preflight.pairs.counters import ports, probed
from fairlead.preflight.pairs.drive import AGENT, Agents, Driver
from fairlead.preflight.pairs.judge import dead_part
from fairlead.preflight.pairs.limits import Limits, limits_of
from fairlead.preflight.pairs.paths import paths_of, port_bps
from fairlead.preflight.pairs.phase import compare, pair_phase
from fairlead.preflight.pairs.steered import Steering
from fairlead.preflight.pairs.steps import Counted, Plan
from fairlead.preflight.pairs.watch import READER, last_look
from fairlead.preflight.ranks.run import Launch, run_ranks
from fairlead.preflight.ranks.wanted import common_hcas, per_node, rail_interfaces, sizes_to_try
from fairlead.preflight.report import PreflightReport
from fairlead.preflight.slurm.inside import judge_job
from fairlead.preflight.slurm.scheduler import SHOW, parse, unanswered
from fairlead.preflight.table import Preflight
from fairlead.preflight.telling import log, tell_findings, tell_limits, tell_usable
from fairlead.probe import sort_answers
from fairlead.records.addressbook import AddressBook
from fairlead.records.log import doing, tell
from fairlead.records.runs import RunFolder
from fairlead.records.verdict import Verdict
from fairlead.spec.model import Pool, Spec

Note = Callable[[str], object]

_CONTROL_S = 20.0
_GOODBYE_S = 0.5


def run(
    cluster: Cluster,
    spec: Spec,
    folder: RunFolder | None = None,
    *,
    nodes: NodeSet | None = None,
    inside: bool = False,
    note: Note = lambda _: None,
    progress: Progress | None = None,
    limits: Limits | None = None,
    today: dt.date | None = None,
) -> PreflightReport:
    """Preflight `nodes` (all of the file, if left out). Whatever ails nodes is in the report, never raised.

    `inside`: the Slurm job this runs in is judged, too.
    """
    seen = Evidence(spec, nodes if nodes is not None else spec.nodes, today=today, limits=limits or limits_of(spec))
    seen.job = list(judge_job(os.environ, spec)) if inside else []
    stages = _Stages(cluster, seen, folder, note)
    tell_limits(spec)
    with stages.timed("nodes"):
        stages.look_at_nodes(progress or (lambda *_: None))
    with stages.timed("pairs"):
        found = seen.node_findings()
        usable = seen.usable(found)
        tell_usable("pairs", seen.nodes, usable, found)
        if usable:
            stages.test_pairs(usable)
    with stages.timed("ranks"):
        found = seen.before_ranks()
        usable = seen.usable(found, for_ranks=True)
        tell_usable("ranks", seen.nodes, usable, found)
        if usable and seen.paths:
            stages.run_ranks(usable)
        stages.look_at_ports()
    findings = judge_all(seen)
    tell_findings(findings)
    if folder:
        folder.write("findings.json", findings)
    return PreflightReport(
        spec=spec,
        nodes=seen.nodes,
        findings=findings,
        facts=tuple(seen.facts),
        paths=seen.paths,
        pairs=seen.pairs,
        ranks=seen.ranks,
        took_s=stages.took_s,
    )


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
        with doing(log, f"stage {name}", nodes=str(self.seen.nodes)):
            yield
        self.took_s[name] = round(time.monotonic() - started, 3)

    def keep(self, name: str, record: Any) -> None:
        """Write a file of the run folder."""
        if self.folder:
            self.folder.write(name, record)

    def look_at_nodes(self, progress: Progress) -> None:
        """Probe every node; ask the scheduler what it thinks of them."""
        seen = self.seen
        answers = probe_nodes(self.cluster, seen.nodes, patience=patience_of(seen.spec), progress=progress)
        seen.facts, seen.silent = sort_answers(answers, silent=Verdict.FAIL)
        if self.folder:
            self.folder.write_facts(seen.facts)
        said = self.cluster.control(SHOW, limit_s=_CONTROL_S)
        if said is not None and said.rc == 0:
            seen.slurm = parse(said.out)
            kept = {name: node.states for name, node in seen.slurm.items() if node.bad_states or node.unsure_states}
            tell(log, f"Slurm knows {len(seen.slurm)} nodes and keeps {len(kept)} from work", states=kept)
            self.keep("slurm.json", seen.slurm)
        if said is not None and not seen.slurm:
            seen.job.append(unanswered(said.complaint or ("no answer" if said.rc is None else "no node in its answer")))
        self.keep("silent.json", [*seen.silent, *seen.job])

    def test_pairs(self, usable: NodeSet) -> None:
        """Run the pair phase."""
        seen, spec = self.seen, self.seen.spec
        seen.book = book_from(seen)
        self.keep("addressbook.json", seen.book)
        seen.paths = paths = paths_of(_of(seen.book, usable))
        names = tuple(usable)
        plan = Plan(
            nodes=names,
            paths=paths.labels,
            addresses=tuple(paths.addresses[n] for n in names),
            pools={i: pool.name for i, n in enumerate(names) if (pool := pool_of(spec, n))},
            groups={i: paths.groups[n] for i, n in enumerate(names) if n in paths.groups},
            switches=tuple(paths.switches[n] for n in names),
            steering=Steering(
                t1=paths.t1,
                seats={i: paths.seats[n] for i, n in enumerate(names) if n in paths.seats},
                planes=paths.planes,
                first=len(paths.labels),
            ),
            port_bps=port_bps(seen.book, spec, usable),
            counted=tuple(_counted(seen, n) for n in names),
            untested=paths.untested,
            limits=seen.limits,
        )
        self.note(f"pairs    {len(names)} nodes, {len(paths.labels)} paths")
        with self.cluster.start(Program.of(*AGENT), usable, limit_s=spec.table(Preflight).timeout_s) as group:
            driver = Driver(_OnePerNode(group), names, lost_s=seen.limits.lost_s)
            seen.pairs = driver.run(pair_phase(plan))
            self.keep("pairs.json", seen.pairs)
            group.send('{"do":"bye"}')
            group.close(_GOODBYE_S)

    def look_at_ports(self) -> None:
        """Read the counters of the ports that were tested once more, last of all."""
        facts, limits = self.seen.pairs, self.seen.limits
        if facts is None:
            return
        counted = [_counted(self.seen, n) for n in facts.nodes]
        step = last_look(facts, counted, limits)
        if not step.expect:
            return
        nodes = NodeSet(facts.nodes[n] for n in step.expect)
        program = Program.of(*READER, call="tell_counters()")
        with self.cluster.start(program, nodes, limit_s=limits.start_s) as group:
            answers = Driver(_OnePerNode(group), facts.nodes, lost_s=limits.lost_s).perform(step)
        for number, why in answers.lost.items():
            text = f"its ports' counters could not be read again: {why}"
            tell(log, text, level=logging.WARNING, node=facts.nodes[number])
        compare(facts, counted, answers.reports)
        self.keep("pairs.json", facts)

    def run_ranks(self, usable: NodeSet) -> None:
        """Run the collective on every GPU of the nodes."""
        spec, paths = self.seen.spec, self.seen.paths
        assert paths is not None
        wanted, ours = self.seen.wanted(usable), spec.table(Preflight)
        each = per_node(wanted)
        launch = Launch(
            nodes=tuple(usable),
            per_node=each,
            host=paths.first(usable[0]),
            addresses={n: paths.first(n) for n in usable},
            sizes=sizes_to_try(wanted, ours.message_bytes, len(usable)),
            reduce_s=ours.reduce_s,
            limit_s=ours.timeout_s,
            patience=own_patience(spec),
            backend=spec.table(LaunchTable).backend,
            in_container=spec.table(Slurm).container_runtime != "none",
            options=(f"--gres=gpu:{each}",) if any(n.gpus for n in self.seen.slurm.values()) else (),
            device=wanted.device,
            rails=tuple(rail_interfaces(self.seen.book, usable)) if self.seen.book else (),
            rail_bytes=ours.rail_mib << 20,
            perftest=common_hcas(wanted, usable) if ours.perftest else (),
            launch_only=dead_part(self.seen.pairs, self.seen.limits) if self.seen.pairs else "",
        )
        self.note(f"ranks    {launch.wanted} on {len(usable)} nodes")
        self.seen.ranks = run_ranks(self.cluster, launch, self.note)
        self.keep("ranks.json", self.seen.ranks)


class _OnePerNode(Agents):
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

    @property
    def has_unread(self) -> bool:
        """Whether a line waits."""
        return self._live.has_unread

    @property
    def num_starting(self) -> int:
        """Those not reached yet."""
        return self._live.num_starting


def pool_of(spec: Spec, node: str) -> Pool | None:
    """The pool a node belongs to."""
    return next((pool for pool in spec.pools if node in pool.nodes), None)


def _counted(seen: Evidence, node: str) -> Counted:
    """The ports of a node, and what the probe read of their counters."""
    place, record = seen.book.place(node), next((f for f in seen.facts if f.node == node), None)
    if place is None or record is None:
        return Counted(ports=())
    return Counted(ports=ports(place), before=probed(record, place), since_ns=record.taken_at_ns)


def _of(book: AddressBook, nodes: NodeSet) -> AddressBook:
    """The part of a book that is about some nodes."""
    return AddressBook(places=tuple(place for place in book.places if place.node in nodes), unread=book.unread)

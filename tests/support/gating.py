"""The gate as far as its pairs: what four imports of torch would say no more about is seen in a fourth of the time."""

from __future__ import annotations

from collections.abc import Callable

from fairlead.base.nodeset import NodeSet
from fairlead.cluster import connect
from fairlead.preflight import gate
from fairlead.preflight.evidence import Evidence, judge_all
from fairlead.preflight.report import PreflightReport
from fairlead.spec import load
from support.injector import World


def without_ranks(lab: World, between: Callable[[Evidence], object] = lambda _: None) -> PreflightReport:
    """Nodes, pairs, ports, and the judgement of all of it. `between` is done once the pairs have been tested."""
    spec = load(lab.file)
    with connect(spec) as cluster:
        seen = Evidence(spec, NodeSet(lab.nodes))
        stages = gate._Stages(cluster, seen, None, lambda _: None)
        with stages.timed("nodes"):
            stages.look_at_nodes(lambda *_: None)
        with stages.timed("pairs"):
            stages.test_pairs(seen.usable(seen.node_findings()))
        between(seen)
        stages.look_at_ports()
    return PreflightReport(
        spec=spec,
        nodes=seen.nodes,
        findings=judge_all(seen),
        facts=tuple(seen.facts),
        paths=seen.paths,
        pairs=seen.pairs,
        took_s=stages.took_s,
    )

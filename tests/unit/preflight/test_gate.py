"""Who takes part in the next stage, and an earlier run judged again by today's rules."""

from __future__ import annotations

import datetime as dt

import msgspec
import pytest

from fairlead.base.nodeset import NodeSet
from fairlead.cluster.child import Captured
from fairlead.preflight import gate, judge_all, read_evidence
from fairlead.preflight.evidence import Evidence
from fairlead.preflight.pairs.facts import Burst, PairFacts
from fairlead.preflight.slurm.scheduler import SHOW, SlurmNode
from fairlead.records.codec import from_json, to_json
from fairlead.records.facts import NodeFacts
from fairlead.records.finding import Finding, node
from fairlead.records.verdict import Verdict
from fairlead.spec.model import Access, Pool, Spec, Waiver
from support.rank_facts import ranks, stop_at

NODES = NodeSet("n[0-3]")
SPEC = Spec(schema=1, access=Access(via="ssh"), pools=(Pool(name="p", size="other", nodes=NODES, gpus=2),))


def facts(*names):
    return [NodeFacts(node=name, facts={}) for name in names]


def evidence(**more):
    return Evidence(SPEC, NODES, **({"facts": facts(*NODES)} | more))


def fail(name, verdict=Verdict.FAIL):
    return Finding(code="gpu/count", verdict=verdict, subject=node(name), message="")


def test_a_bad_node_and_a_silent_one_take_no_further_part():
    seen = evidence(facts=facts("n0", "n1", "n3"))
    assert str(seen.usable([fail("n1")])) == "n[0,3]"
    assert str(seen.usable([fail("n1", Verdict.WARN)])) == "n[0-1,3]"


def test_where_too_few_are_well_the_bad_ones_take_part_so_that_something_can_be_told():
    assert str(evidence().usable([fail(n) for n in ("n0", "n1", "n2")])) == "n[0-3]"


def test_tasks_of_slurm_go_where_slurm_gives_work():
    slurm = {n: SlurmNode(name=n, states=("IDLE",)) for n in ("n0", "n1", "n2")}
    slurm["n2"] = SlurmNode(name="n2", states=("IDLE", "DRAIN"))
    seen = evidence(slurm=slurm)
    assert str(seen.usable([], for_ranks=True)) == "n[0-1]"
    assert str(seen.usable([])) == "n[0-3]"


def test_a_slurm_of_another_cluster_keeps_nobody_from_the_ranks():
    seen = evidence(slurm={"x1": SlurmNode(name="x1", states=("IDLE",))})
    assert str(seen.usable([], for_ranks=True)) == "n[0-3]"


def test_what_is_waived_is_tested_too():
    """Else the report would call a node good that no collective has been on."""
    waiver = Waiver(code="preflight/unreachable", nodes=NodeSet("n2"), reason="ticket 7", expires=dt.date(2099, 1, 1))
    seen = evidence(pairs=bad_pairs())
    assert str(seen.usable(seen.before_ranks())) == "n[0-1,3]"
    seen.spec = msgspec.structs.replace(SPEC, waivers=(waiver,))
    assert str(seen.usable(seen.before_ranks())) == "n[0-3]"


def bad_pairs():
    blocked = [(a, b) for a in range(4) for b in range(4) if a != b and 2 in (a, b)]
    return PairFacts(
        nodes=tuple(NODES),
        paths=("default route",),
        members=(0, 1, 2, 3),
        small=200,
        full=8,
        num_flows=8,
        again_small=400,
        bursts=[Burst(a, b, 0, 0, 0, 0, 8) for a, b in blocked],
        again=[Burst(a, b, 0, 0, 0, 0, 8) for a, b in ((2, 0), (1, 2))],
    )


def test_what_explains_the_others_comes_first():
    late = ranks()
    stop_at(late, 5, "reduce", rc=-9, error="killed by SIGKILL")
    found = judge_all(evidence(pairs=bad_pairs(), ranks=late))
    fails = [f for f in found if f.verdict is Verdict.FAIL]
    assert [f.code for f in fails] == ["preflight/unreachable", "preflight/rank-died"]


def test_an_earlier_run_is_judged_again_from_its_files():
    pairs, said = bad_pairs(), ranks()
    files = {"pairs.json": to_json(pairs), "ranks.json": to_json(said), "silent.json": to_json([fail("n3")])}

    def read(name, kind):
        return from_json(files[name], kind) if name in files else None

    again = judge_all(read_evidence(read, SPEC, NODES, facts("n0", "n1", "n2")))
    codes = [f.code for f in again if f.verdict is Verdict.FAIL]
    assert codes == ["gpu/count", "preflight/unreachable"]


def test_a_file_of_an_older_form_is_refused_and_not_taken_for_a_fabric_that_is_well():
    older = to_json(bad_pairs()).replace("fairlead.pairs/2", "fairlead.pairs/1").replace('"bursts"', '"trains"')
    with pytest.raises(ValueError, match="schema"):
        from_json(older, PairFacts)


class OfSlurm:
    """A cluster of which nothing is asked but what its scheduler says."""

    def __init__(self, said: Captured | None) -> None:
        self.said = said

    def control(self, argv: object, *, limit_s: float) -> Captured | None:
        assert (argv, limit_s > 0) == (SHOW, True)
        return self.said


SILENT = [
    # what scontrol 22.05 prints where slurmctld is down, and where it has no nodes
    (
        Captured(1, "", "slurm_load_node error: Unable to contact slurm controller (connect failure)\n"),
        "Unable to contact",
    ),
    (Captured(None, "", ""), "no answer"),
    (Captured(0, "No nodes in the system\n", ""), "no node in its answer"),
]


@pytest.mark.parametrize(("said", "told"), SILENT)
def test_a_slurm_that_does_not_answer_leaves_unknown_what_it_keeps_from_work(said, told, monkeypatch):
    monkeypatch.setattr(gate, "probe_nodes", lambda *_args, **_more: [])
    seen = evidence(facts=[])
    gate._Stages(OfSlurm(said), seen, None, print).look_at_nodes(print)
    seen.facts, seen.silent = facts(*NODES), []
    (found,) = [f for f in judge_all(seen) if f.code == "preflight/node-state"]
    assert (found.verdict, found.subject.nodes) == (Verdict.UNKNOWN, ())
    assert told in found.message


def test_where_there_is_no_slurm_nothing_is_said_of_it(monkeypatch):
    monkeypatch.setattr(gate, "probe_nodes", lambda *_args, **_more: [])
    seen = evidence(facts=[])
    gate._Stages(OfSlurm(None), seen, None, print).look_at_nodes(print)
    assert not [f for f in judge_all(seen) if f.code == "preflight/node-state"]

"""Ranks that could not begin: what fails everywhere alike accuses nobody, what fails on one node accuses that."""

from __future__ import annotations

import pytest

from fairlead.base.nodeset import NodeSet
from fairlead.preflight.ranks.facts import CutByScheduler, RankEnd, RankFacts, nodes_by_rank
from fairlead.preflight.ranks.judge import judge_ranks
from fairlead.preflight.ranks.judge_start import judge_start
from fairlead.records.report import bad_nodes
from fairlead.records.verdict import Verdict, aggregate
from support.rank_facts import ranks

NODES = ("n0", "n1", "n2", "n3")
PYTHON = "/opt/py/bin/python3"


def begun(per_node: int = 2) -> RankFacts:
    """Every rank has spoken and tries to import torch."""
    wanted = len(NODES) * per_node
    facts = RankFacts(nodes=NODES, per_node=per_node, wanted=wanted, limit_s=60, backend="tasks", broken="a rank ended")
    for rank in range(wanted):
        own = {"rank": rank, "node": NODES[rank // per_node]}
        facts.lines.append(own | {"say": "start", "at_s": 0.4, "executable": PYTHON, "env": {}})
        facts.lines.append(own | {"say": "phase", "phase": "import", "at_s": 0.5})
    return facts


def fail(facts, *ranks, why="no-torch", kind="ModuleNotFoundError", text="No module named 'torch'"):
    for rank in ranks:
        own = {"rank": rank, "node": facts.nodes[rank // facts.per_node], "at_s": 3.0}
        facts.lines.append(own | {"say": "failed", "why": why, "kind": kind, "text": text})
    return facts


def over(facts, kind, *ranks, broken="they were waited for"):
    facts.broken = broken
    for rank in ranks:
        own = {"rank": rank, "node": facts.nodes[rank // facts.per_node], "at_s": 9.0}
        facts.lines.append(own | {"say": "over", "kind": kind})
    return facts


def test_a_group_that_did_its_work_has_nothing_to_say():
    assert judge_start(ranks()) == []


@pytest.mark.parametrize("who", [range(8), (0, 2), (5,)], ids=["all said so", "two said so in time", "one did"])
def test_no_torch_wherever_it_was_tried_is_one_finding_that_blames_no_node(who):
    (found,) = judge_start(fail(begun(), *who))
    assert (found.code, found.verdict, found.subject.kind) == ("preflight/no-torch", Verdict.UNKNOWN, "job")
    assert "ModuleNotFoundError: No module named 'torch'" in found.message
    assert f"{PYTHON} -m pip install torch" in found.remedy
    assert "[[pool]]" in found.remedy
    assert "dmesg" not in found.remedy
    assert not bad_nodes([found], NodeSet(NODES))
    assert aggregate([found.verdict]) is Verdict.UNKNOWN


def test_no_torch_on_one_node_while_others_have_it_is_that_nodes_fault():
    facts = fail(begun(), 4, 5)
    for rank in (0, 1, 2, 3, 6, 7):
        facts.lines.append({"say": "torch", "rank": rank, "node": NODES[rank // 2], "at_s": 3.0, "torch": "2.13"})
    (found,) = judge_start(facts)
    assert (found.code, found.verdict, found.subject.nodes) == ("preflight/no-torch", Verdict.FAIL, ("n2",))
    assert "well on n[0-1,3]" in found.message
    assert "fairlead exec -w 'n2'" in found.remedy


def test_two_different_reasons_are_two_findings():
    facts = fail(fail(begun(), 0, 1), 2, 3, why="no-torch", kind="ImportError", text="libcudart.so.12: cannot open")
    assert [f.data["ranks"] for f in judge_start(facts)] == [[0, 1], [2, 3]]


@pytest.mark.parametrize("why", ["no-device", "no-backend", "no-address", "no-rank", "what a newer one says"])
def test_other_reasons_have_their_words(why):
    (found,) = judge_start(fail(begun(), *range(8), why=why, kind="", text="so it is"))
    assert (found.code, found.verdict, found.data["why"]) == ("preflight/cannot-start", Verdict.UNKNOWN, why)
    assert "so it is" in found.message
    assert found.remedy
    assert "{" not in found.remedy


@pytest.mark.parametrize(("kind", "letter"), [("stopped", "(T)"), ("stuck", "(D)"), ("silent", "no sign of life")])
def test_a_rank_that_its_own_task_saw_stopped_is_named_though_it_beat_to_the_end(kind, letter):
    facts = over(begun(), kind, 5)
    facts.beats = {r: {"say": "beat", "rank": r, "node": NODES[r // 2], "at_s": 9.0} for r in range(8)}
    (found,) = judge_start(facts)
    assert (found.code, found.verdict, found.subject.name, found.subject.nodes) == (
        "preflight/rank-stopped", Verdict.FAIL, "rank 5", ("n2",),
    )  # fmt: skip
    assert letter in found.message
    assert "import" in found.message


def store(facts):
    facts.lines.append({"say": "store", "rank": 0, "node": "n0", "at_s": 3.0, "host": "fd00::1", "port": 4711})
    return facts


def test_who_does_not_reach_the_rendezvous_is_named_with_its_address():
    (found,) = judge_start(over(store(begun()), "rendezvous", 4, 5))
    assert (found.code, found.verdict, found.subject.nodes) == ("preflight/no-rendezvous", Verdict.FAIL, ("n2",))
    assert "fd00::1 port 4711 on n0" in found.message
    assert "nc -vz fd00::1 4711" in found.remedy


def test_where_hardly_anybody_reaches_it_nobody_is_left_out():
    (found,) = judge_start(over(store(begun()), "rendezvous", 2, 3, 4, 5, 6, 7))
    assert (found.subject.kind, found.verdict) == ("job", Verdict.FAIL)
    assert not bad_nodes([found], NodeSet(NODES))


@pytest.mark.parametrize("nodes", [("n0", "n1"), ("n0", "n1", "n2")], ids=["one of two", "one of three"])
def test_where_as_many_reach_it_as_do_not_it_may_be_the_store_that_cannot_be_reached(nodes):
    facts = begun()
    facts.nodes, facts.wanted = nodes, 2 * len(nodes)
    facts.lines[:] = [s for s in facts.lines if s["node"] in nodes]
    (found,) = judge_start(over(store(facts), "rendezvous", 2, 3))
    assert (found.code, found.subject.kind, found.subject.nodes) == ("preflight/no-rendezvous", "job", ("n1",))
    assert not bad_nodes([found], NodeSet(nodes))


def test_what_others_explain_is_left_to_them():
    assert judge_start(over(begun(), "behind", 3)) == []
    assert judge_start(over(begun(), "rendezvous", 3)) == [], "rank 0 never opened it"


# ---- steps that Slurm ended ------------------------------------------------------------------------------------------


def killed(facts, *cut):
    """All ranks but those of n2 end by SIGKILL, as Slurm does it, some seconds apart."""
    facts.ends[:] = [
        RankEnd(node=e.node, rank=e.rank, state="failed", rc=-9, error="killed by SIGKILL", at_s=8.0 + e.rank)
        for e in facts.ends
        if e.node != "n2"
    ]
    facts.lines[:] = [s for s in facts.lines if s.get("phase") != "done"]
    facts.cut[:] = cut
    return facts


def test_where_slurm_lost_a_node_that_is_blamed_and_not_those_it_then_killed():
    said = CutByScheduler(why="node failure", said="srun: error: Node failure on n2", nodes="n2")
    (found,) = judge_ranks(killed(ranks(), said), {})
    assert (found.code, found.verdict, found.subject.nodes) == ("preflight/node-lost", Verdict.FAIL, ("n2",))


@pytest.mark.parametrize("why", ["time limit", "preemption", "cancelled"])
def test_ranks_of_a_step_that_slurm_ended_are_nobodys_fault(why):
    """Without its word the first of them would have died by themselves."""
    (found,) = judge_ranks(killed(ranks(), CutByScheduler(why=why, said="slurmstepd: error: ...")), {})
    assert (found.code, found.verdict, found.subject.kind) == ("preflight/step-ended", Verdict.UNKNOWN, "job")
    assert why in found.message
    assert bad_nodes(judge_ranks(killed(ranks()), {}), NodeSet(NODES))


def test_a_word_of_slurm_about_a_node_that_is_not_ours_accuses_nobody():
    said = CutByScheduler(why="node failure", said="srun: error: Node failure on x]", nodes="x]")
    assert [f.code for f in judge_ranks(killed(ranks(), said), {})] == ["preflight/step-ended"]


# ---- nodes that Slurm numbers in its own order -----------------------------------------------------------------------

ORDER = ("n3", "n0", "n2", "n1")
"""As switches are ranked where TopologyParam has SwitchAsNodeRank (slurm.conf(5))."""


def numbered_otherwise():
    facts = ranks()
    for line in facts.lines:
        line["node"] = ORDER[line["rank"] // 2]
    return facts


def test_ranks_that_never_spoke_are_on_the_node_that_nobody_claims():
    facts = numbered_otherwise()
    facts.lines[:] = [s for s in facts.lines if s["rank"] not in (4, 5, 6, 7)]
    assert nodes_by_rank(facts) == ["n3", "n3", "n0", "n0", "n2", "n2", "n1", "n1"]
    facts.ends[:] = []
    found = judge_ranks(facts, {})
    assert [(f.code, f.subject.nodes) for f in found] == [("preflight/rank-missing", (n,)) for n in ("n1", "n2")]


def test_who_is_late_is_named_by_what_it_said_of_itself():
    facts = over(store(numbered_otherwise()), "rendezvous", 6, 7)  # the launcher takes them to be on n3
    facts.lines[-3]["node"] = "n3"
    assert [f.subject.nodes for f in judge_start(facts)] == [("n1",)]

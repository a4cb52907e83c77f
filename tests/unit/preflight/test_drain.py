from __future__ import annotations

import datetime as dt

import pytest

from fairlead.base.nodeset import NodeSet
from fairlead.preflight.slurm.drain import DrainRules, plan_drain, plan_text
from fairlead.preflight.slurm.reason import is_ours, parse_reason
from fairlead.preflight.slurm.scheduler import SlurmNode
from fairlead.records.finding import Finding, Subject, node
from fairlead.records.verdict import Verdict

WHEN = dt.datetime(2026, 11, 21, 1, 30, tzinfo=dt.UTC)
RUN = "20261121-013000-preflight-7f3a"
ANY = DrainRules(max_share=1.0)
OLD = "fairlead node: 2026-11-01 {code}: what it was (run 20261101-000000-preflight-0001) [root@2026-11-01T00:00:00]"


def find(code="gpu/count", verdict=Verdict.FAIL, name="n1", kind="node", *, part="", message="7 of 8", **more):
    nodes = tuple(NodeSet(name)) if name else ()
    subject = Subject(kind=kind, nodes=nodes, name=part) if kind != "node" or part or len(nodes) != 1 else node(name)
    return Finding(code=code, verdict=verdict, subject=subject, message=message, **more)


def slurm(nodes="n[0-9]", **odd):
    """Idle nodes, but for those given as (states, reason)."""
    states = {n: SlurmNode(name=n, states=("IDLE",)) for n in NodeSet(nodes)}
    for name, (words, reason) in odd.items():
        states[name] = SlurmNode(name=name, states=tuple(words.split("+")), reason=reason)
    return states


def plan(findings, states=None, rules=ANY):
    return plan_drain(findings, states or slurm(), RUN, WHEN, rules)


def ours(code="gpu/count", states="IDLE+DRAIN"):
    return (states, OLD.format(code=code))


PASSES = [find("gpu/count", Verdict.PASS), find("host/memory", Verdict.PASS)]


# ---- draining --------------------------------------------------------------------------------------------------------


def test_a_failed_node_is_drained_with_its_first_fault():
    made = plan([find(), find("ib/count", message="none")])
    assert list(made.drain) == ["n1"]
    assert parse_reason(made.drain["n1"]).code == "gpu/count"
    assert made.was["n1"].states == ("IDLE",)


@pytest.mark.parametrize("kind", ["node", "device", "port", "rank"])
def test_a_part_of_a_node_drains_its_node(kind):
    assert list(plan([find(kind=kind, part="x")]).drain) == ["n1"]


@pytest.mark.parametrize("kind", ["cluster", "job", "plane"])
def test_what_is_nobodys_own_fault_drains_nobody(kind):
    assert plan([find(kind=kind, name="n[0-9]", part="plane 2")]).is_empty


@pytest.mark.parametrize("kind", ["pair", "link"])
def test_a_pair_is_evidence_against_neither_end(kind):
    made = plan([find("preflight/unreachable", kind=kind, name="n[1-2]")])
    assert made.is_empty
    assert set(made.kept) == {"n1", "n2"}
    assert "no evidence against one node" in made.kept["n1"]


def test_the_end_of_a_bad_pair_that_is_bad_by_itself_is_drained():
    made = plan([find("preflight/tcp", kind="pair", name="n[1-2]"), find(name="n2")])
    assert (list(made.drain), list(made.kept)) == (["n2"], ["n1"])


@pytest.mark.parametrize("verdict", [Verdict.WARN, Verdict.UNKNOWN, Verdict.PASS, Verdict.SKIP])
def test_nothing_less_than_a_fail_drains(verdict):
    assert plan([find(verdict=verdict)]).is_empty


def test_a_warning_drains_when_told():
    rules = DrainRules(max_share=1.0, verdicts=frozenset({Verdict.FAIL, Verdict.WARN}))
    assert list(plan([find(verdict=Verdict.WARN), find(verdict=Verdict.UNKNOWN, name="n2")], rules=rules).drain) == [
        "n1"
    ]


def test_what_slurm_says_of_a_node_does_not_drain_it():
    assert plan([find("preflight/node-state"), find("preflight/not-in-slurm", name="n2")]).is_empty


def test_a_finding_about_several_odd_nodes_drains_each():
    made = plan([find("skew/kernel", name="n[1-3]")])
    assert list(made.drain) == ["n1", "n2", "n3"]
    assert len(set(made.drain.values())) == 1


@pytest.mark.parametrize(
    ("states", "reason", "word"),
    [
        ("IDLE+DRAIN", "ticket 42 [ann@2026-11-20T10:00:00]", "by ann: ticket 42"),
        ("MIXED+DRAIN", "ticket 42", "ticket 42"),
        ("DRAINED", "", "already drained"),
        ("ALLOCATED+DRAINING", "x", "already drained"),
        ("DOWN+NOT_RESPONDING", "Not responding [slurm@2026-11-20T10:00:00]", "by slurm: Not responding"),
        ("IDLE+POWERED_DOWN", "", "powered_down"),
        ("IDLE+MAINT", "", "maintenance"),
    ],
)
def test_a_node_that_others_hold_is_not_touched(states, reason, word):
    made = plan([find()], slurm(n1=(states, reason)))
    assert made.is_empty
    assert word in made.kept["n1"]


def test_a_node_drained_by_us_keeps_its_first_reason():
    made = plan([find()], slurm(n1=ours()))
    assert made.is_empty
    assert "2026-11-01" in made.kept["n1"]


def test_a_node_slurm_does_not_know_is_left():
    assert plan([find(name="x1")]).kept == {"x1": "Slurm knows no such node"}


def test_a_busy_node_is_drained_its_jobs_go_on():
    assert list(plan([find()], slurm(n1=("ALLOCATED", ""))).drain) == ["n1"]


# ---- how many --------------------------------------------------------------------------------------------------------


def fails(nodes):
    return [find(name=n) for n in NodeSet(nodes)]


@pytest.mark.parametrize(
    ("cluster", "bad", "share", "is_allowed"),
    [
        ("n[1-4]", "n1", 0.1, True),
        ("n[1-4]", "n[1-2]", 0.1, False),
        ("n[1-100]", "n[1-10]", 0.1, True),
        ("n[1-100]", "n[1-11]", 0.1, False),
        ("n[1-100]", "n[1-11]", 0.11, True),
        ("n[1-100]", "n[1-100]", 1.0, True),
    ],
)
def test_no_more_than_a_share_goes_at_once_and_beyond_it_none(cluster, bad, share, is_allowed):
    made = plan(fails(bad), slurm(cluster), DrainRules(max_share=share))
    assert set(made.drain) == (set(NodeSet(bad)) if is_allowed else set())
    assert bool(made.refused) is not is_allowed
    assert set(made.wanted) == (set() if is_allowed else set(NodeSet(bad)))


def test_a_bad_rule_does_not_empty_the_cluster_bit_by_bit():
    drained = {f"n{i}": ours() for i in range(1, 9)}
    made = plan(fails("n[20-22]"), slurm("n[1-100]", **drained), DrainRules(max_share=0.1))
    assert made.is_empty
    assert "8 drained by fairlead before" in made.refused


def test_those_drained_by_others_do_not_count():
    drained = {f"n{i}": ("IDLE+DRAIN", "ticket") for i in range(1, 9)}
    assert len(plan(fails("n[20-22]"), slurm("n[1-100]", **drained), DrainRules(max_share=0.1)).drain) == 3


def test_a_refusal_still_gives_back():
    states = slurm("n[1-4]", n1=ours())
    made = plan([*PASSES, *fails("n[2-4]")], states, DrainRules(max_share=0.1))
    assert (made.undrain, made.drain) == (("n1",), {})
    assert made.refused


# ---- giving back -----------------------------------------------------------------------------------------------------


def test_a_node_of_ours_that_passed_goes_back():
    made = plan(PASSES, slurm(n1=ours()))
    assert (made.undrain, made.kept) == (("n1",), {})
    assert is_ours(made.was["n1"].reason)


def test_slurms_word_on_our_own_drain_does_not_keep_it():
    assert plan([*PASSES, find("preflight/node-state")], slurm(n1=ours())).undrain == ("n1",)


EDITED = OLD.format(code="gpu/count").replace(")", ") seen, Ann", 1)


@pytest.mark.parametrize(
    "reason", ["ticket 42 [root@2026-11-01T00:00:00]", "", "Prolog error [root@2026-11-01T00:00:00]", EDITED]
)
def test_a_node_of_others_stays(reason):
    made = plan(PASSES, slurm(n1=("IDLE+DRAIN", reason)))
    assert made.is_empty
    assert made.kept == {}


def test_a_node_that_is_not_drained_is_not_given_back():
    assert plan(PASSES, slurm(n1=("IDLE", OLD.format(code="gpu/count")))).is_empty


def test_a_node_of_ours_that_is_down_stays():
    made = plan(PASSES, slurm(n1=ours(states="DOWN+DRAIN+NOT_RESPONDING")))
    assert made.is_empty
    assert "down" in made.kept["n1"]


@pytest.mark.parametrize(
    ("findings", "word"),
    [
        ([], "did not test"),
        ([find("host/memory", Verdict.PASS)], "did not test"),
        ([find("gpu/count", Verdict.PASS, "n2")], "did not test"),
        ([find("gpu/count", Verdict.SKIP)], "did not test"),
        ([*PASSES, find("ib/count")], "ib/count is fail"),
        ([*PASSES, find("ib/count", Verdict.UNKNOWN)], "ib/count is unknown"),
        ([*PASSES, find("preflight/tcp", kind="pair", name="n[1-2]")], "preflight/tcp is fail"),
        ([*PASSES, find("gpu/count", Verdict.WARN)], "warning"),
    ],
)
def test_without_proof_a_node_stays(findings, word):
    made = plan(findings, slurm(n1=ours()))
    assert made.undrain == ()
    assert word in made.kept["n1"]


def test_a_warning_about_something_else_does_not_keep_it():
    assert plan([*PASSES, find("host/swap", Verdict.WARN)], slurm(n1=ours())).undrain == ("n1",)


PAIRS = find("preflight/pairs", Verdict.PASS, "", "cluster", data={"nodes": "n[0-9]"})
RANKS = find("preflight/collective", Verdict.PASS, "", "job", data={"nodes": "n[0-9]"})


@pytest.mark.parametrize(
    ("code", "proof", "is_back"),
    [
        ("preflight/slow-link", PASSES, False),
        ("preflight/slow-link", [PAIRS], True),
        ("preflight/slow-link", [RANKS], False),
        ("preflight/rank-died", [PAIRS], False),
        ("preflight/rank-died", [RANKS], True),
        ("preflight/gres", PASSES, True),
        ("probe/no-answer", PASSES, True),
        ("probe/no-answer", [PAIRS], False),
        ("skew/kernel", PASSES, False),
        ("skew/kernel", [*PASSES, find("skew/kernel", Verdict.PASS, "", "cluster")], True),
        ("skew/kernel", [*PASSES, find("skew/kernel", Verdict.FAIL, "n5")], True),
        ("skew/kernel", [*PASSES, find("skew/kernel", Verdict.WARN, "n[1-5]")], False),
        ("skew/kernel", [find("skew/kernel", Verdict.PASS, "", "cluster")], False),
        ("host/clock-skew", [*PASSES, find("host/clock-skew", Verdict.PASS, "", "cluster")], True),
    ],
)
def test_only_the_check_it_was_drained_for_gives_it_back(code, proof, is_back):
    assert plan(proof, slurm(n1=ours(code))).undrain == (("n1",) if is_back else ())


def test_a_node_that_took_no_part_in_the_pairs_stays():
    others = find("preflight/pairs", Verdict.PASS, "", "cluster", data={"nodes": "n[2-9]"})
    assert plan([others], slurm(n1=ours("preflight/slow-link"))).undrain == ()


def test_draining_and_giving_back_can_each_be_left_out():
    states, found = slurm(n1=ours()), [*PASSES, find(name="n2")]
    assert plan(found, states, DrainRules(max_share=1, undrains=False)).undrain == ()
    assert plan(found, states, DrainRules(max_share=1, drains=False)).drain == {}


def test_a_nodes_own_program_touches_no_other_node():
    states = slurm(n1=ours(), n5=ours())
    made = plan([*PASSES, find(name="n2")], states, DrainRules(max_share=1.0, only="n1"))
    assert (made.drain, made.undrain, made.kept) == ({}, ("n1",), {})


# ---- words -----------------------------------------------------------------------------------------------------------


def test_the_preview_names_every_node_once():
    states = slurm(n1=ours(), n3=("DOWN", "x"))
    made = plan([*PASSES, find(name="n2"), find(name="n3")], states)
    text = plan_text(made).splitlines()
    assert [" ".join(line.split()[:3]) for line in text[:3]] == ["would drain n2", "would undrain n1", "left n3 Slurm"]
    assert text[3:] == [
        f"type     scontrol update NodeName=n2 State=DRAIN 'Reason={made.drain['n2']}'",
        "type     scontrol update NodeName=n1 State=UNDRAIN",
    ]
    nothing = {"drain": {}, "undrain": [], "kept": {}, "refused": "", "wanted": {}, "commands": []}
    assert plan([]).body() == nothing
    assert plan_text(plan([])) == "Slurm: no node to drain or to give back"


def test_the_preview_of_a_refusal_shows_what_it_would_have_been():
    text = plan_text(plan(fails("n[1-5]"), rules=DrainRules()))
    assert text.count("not drained") == 5
    assert "refused: 5 of 10 nodes are more than 10% of the cluster, which allows 1" in text

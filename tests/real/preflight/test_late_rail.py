"""The rail test with real torch and gloo on this machine: a message that comes late, or never, is its pair's alone."""

from __future__ import annotations

import sys

import pytest

from fairlead.base.nodeset import NodeSet
from fairlead.launch import Patience, RankJob, launch
from fairlead.preflight.ranks.facts import RankFacts
from fairlead.preflight.ranks.judge_rails import judge_rails
from fairlead.preflight.ranks.run import keep
from fairlead.preflight.ranks.said import heard
from fairlead.preflight.ranks.wanted import Wanted
from fairlead.records.verdict import Verdict
from support.backends import LOCAL

pytestmark = [pytest.mark.real, pytest.mark.requires("torch")]
NODES = NodeSet("n[0-3]")


def ran(**late_s: float) -> RankFacts:
    """What four ranks, one a node, said of one rail: the loopback interface."""
    job = RankJob(
        nodes=NODES,
        per_node=1,
        parts=("fairlead.preflight.pairs.schedule", "fairlead.preflight.ranks.onnode.rails", "support.rails_body"),
        settings={"rails": [{"name": "lo"}], "late": {key.replace("to", ":"): s for key, s in late_s.items()}},
        host="127.0.0.1",
        patience=Patience(ranks=4),
        device="cpu",
        limit_s=60,
    )
    facts = RankFacts(nodes=tuple(NODES), per_node=1, wanted=4, limit_s=60, backend="")
    with LOCAL.cluster(python_of=lambda _: sys.executable) as cluster, launch(cluster, job) as ranks:
        keep(facts, ranks)
    assert not facts.broken, facts.broken
    return facts


def judged(facts: RankFacts) -> list[tuple[str, Verdict, str]]:
    return [(f.code, f.verdict, str(f.subject)) for f in judge_rails(heard(facts), Wanted())]


def test_a_message_that_does_not_come_is_its_own_pairs_alone():
    """Gloo's own limit would close all connections of both ends: healthy pairs would look dead, or reset."""
    facts = ran(**{"1to2": 3600})
    fails = [f for f in judged(facts) if f[1] in (Verdict.FAIL, Verdict.WARN, Verdict.UNKNOWN)]
    assert fails == [("preflight/dead-rail", Verdict.FAIL, "n1 <-> n2 rail 0 (lo)")]
    lost = {(line["src"], line["rank"]) for line in facts.lines if line["say"] == "rail" and line["s"] is None}
    assert lost == {(1, 2)}


@pytest.mark.slow
def test_a_message_that_comes_late_is_no_dead_rail():
    facts = ran(**{"1to2": 5.5})
    came = [line["s"] for line in facts.lines if line["say"] == "rail" and (line["src"], line["rank"]) == (1, 2)]
    assert came[0] is None
    assert came[1], came
    assert [f for f in judged(facts) if f[1] is not Verdict.PASS] == []

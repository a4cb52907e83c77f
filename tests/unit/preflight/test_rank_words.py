"""A rank's line with a field missing, of the wrong type or too large is that rank's finding, and never a crash."""

from __future__ import annotations

import pytest

from fairlead.base.nodeset import NodeSet
from fairlead.preflight import text_of
from fairlead.preflight.ranks.facts import RankFacts
from fairlead.preflight.ranks.judge import bandwidth, judge_ranks
from fairlead.preflight.ranks.judge_launch import judge_launch
from fairlead.preflight.ranks.said import heard
from fairlead.preflight.ranks.wanted import Wanted
from fairlead.preflight.report import PreflightReport
from fairlead.records.verdict import Verdict
from fairlead.spec.model import Access, Pool, Spec
from support.rank_facts import of, ranks

SPEC = Spec(schema=1, access=Access(via="ssh"), pools=(Pool(name="p", size="other", nodes=NodeSet("n[0-3]"), gpus=2),))
FIELDS = [(what, name) for what in ("start", "torch", "phase", "card", "ddp", "reduced", "rounds", "nccl")
          for name in of(ranks(), 0, what) if name not in ("say", "at_s")]  # fmt: skip


def judged(facts):
    found = [*judge_launch(facts, Wanted(rdma="ib")), *judge_ranks(facts, {}, Wanted(rdma="ib"))]
    bandwidth(facts)
    report = PreflightReport(spec=SPEC, nodes=SPEC.nodes, findings=tuple(found), ranks=facts)
    text_of(report, details=True)
    return found


@pytest.mark.parametrize(("what", "name"), FIELDS, ids=lambda v: v)
def test_any_field_may_be_missing(what, name):
    facts = ranks()
    del of(facts, 3, what)[name]
    judged(facts)


@pytest.mark.parametrize("value", [None, [], {"a": [1]}, "x" * 100_000, -1, 1e400])
@pytest.mark.parametrize(("what", "name"), FIELDS, ids=lambda v: v)
def test_any_field_may_be_nonsense(what, name, value):
    facts = ranks()
    of(facts, 3, what)[name] = value
    judged(facts)


@pytest.mark.parametrize(("what", "name"), [("reduced", "bytes"), ("rounds", "compute_s"), ("ddp", "gradient_is_mean")])
def test_it_is_unknown_and_names_the_rank(what, name):
    facts = ranks()
    del of(facts, 3, what)[name]
    found = next(f for f in judged(facts) if f.code == "preflight/rank-words")
    assert (found.verdict, str(found.subject)) == (Verdict.UNKNOWN, "n1 rank 3")
    assert name in found.evidence[0].value


def test_a_megabyte_of_environment_is_refused():
    facts = ranks()
    of(facts, 3, "start")["env"] = {"NCCL_X": "x" * 1_000_000}
    assert [g.rank for g in heard(facts).garbled] == [3]


def test_words_of_older_ranks_are_still_read_and_those_of_newer_ones_left_out():
    facts = ranks()
    of(facts, 3, "rounds")["say"] = "split"
    of(facts, 4, "card")["say"] = "something-new"
    said = heard(facts)
    assert set(said.rounds) == set(range(8))
    assert said.garbled == []


@pytest.mark.parametrize(
    "line",
    [{}, {"say": []}, {"say": "failed"}, {"say": "over"}, {"say": "over", "kind": []}, {"say": "phase"},
     {"say": "store"}, {"say": "failed", "why": 1, "kind": 2, "text": 3}, {"say": "start", "node": []}],
)  # fmt: skip
@pytest.mark.parametrize("more", [{}, {"rank": 0}, {"rank": 0, "node": "n0", "at_s": 1.0}])
def test_lines_that_lack_what_counts_end_no_judging(line, more):
    """In a run folder, or from a rank that lies: {"say":"phase"} of rank 0 ended the whole verb."""
    over = {"say": "over", "kind": "rendezvous", "rank": 1, "node": "n1", "at_s": 2.0}
    for lines in ([line | more], [line | more, over]):
        facts = RankFacts(nodes=("n0", "n1"), per_node=1, wanted=2, limit_s=9.0, backend="tasks", lines=lines)
        judge_ranks(facts, {})

"""A rank that is stopped is named, and nobody else: also when it was stopped before its first sign of life."""

from __future__ import annotations

import pytest

from fairlead.preflight.ranks.facts import RankEnd, RankFacts
from fairlead.preflight.ranks.judge import judge_ranks
from fairlead.preflight.ranks.judge_launch import judge_launch
from fairlead.records.verdict import Verdict
from support.rank_facts import of, ranks

NODES = ("n0", "n1", "n2", "n3")


def facts(stopped: int, *, after: str, last_s: float) -> RankFacts:
    """Eight ranks that wait for one, which said nothing any more once it had entered a phase."""
    found = RankFacts(nodes=NODES, per_node=2, wanted=8, limit_s=120, backend="tasks", took_s=9.5)
    phases = ("import", "rendezvous", "join", "ddp")
    for rank in range(8):
        own = {"rank": rank, "node": NODES[rank // 2]}
        found.lines.append(of(ranks(on="cpus"), rank, "start"))
        for i, phase in enumerate(phases):
            found.lines.append(own | {"say": "phase", "phase": phase, "at_s": 5.0 + i / 10})
            if rank == stopped and phase == after:
                break
        if rank != stopped or last_s:
            found.beats[rank] = own | {"say": "beat", "phase": after, "at_s": last_s if rank == stopped else 9.2}
        found.ends.append(RankEnd(node=own["node"], rank=rank, state="stopped", rc=75, at_s=9.5))
    found.broken = "a rank said nothing for 3 s"
    return found


@pytest.mark.parametrize(("after", "last_s"), [("rendezvous", 0.0), ("rendezvous", 5.6), ("ddp", 6.1)])
@pytest.mark.parametrize("stopped", [0, 5])
def test_only_the_stopped_rank_is_named(stopped, after, last_s):
    found = judge_ranks(facts(stopped, after=after, last_s=last_s), {})
    assert [(f.code, f.subject.name, f.subject.nodes) for f in found] == [
        ("preflight/rank-stopped", f"rank {stopped}", (NODES[stopped // 2],))
    ]


def test_a_rank_that_never_started_is_the_fault_and_not_the_numbers_of_its_neighbours():
    found = RankFacts(nodes=NODES, per_node=2, wanted=8, limit_s=120, backend="tasks")
    for rank in (0, 1, 3, 4, 5, 6, 7):
        found.lines.append(of(ranks(on="cpus"), rank, "start"))
    found.ends.append(RankEnd(node="n1", rank=2, state="failed", rc=-9, error="killed by SIGKILL", at_s=0.5))
    said = [*judge_launch(found), *judge_ranks(found, {})]
    assert [(f.code, f.subject.nodes) for f in said if f.verdict is Verdict.FAIL] == [
        ("preflight/rank-missing", ("n1",))
    ]

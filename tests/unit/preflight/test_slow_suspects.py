"""Which nodes are given their work again, alone: those that stand out, and the slowest where all had to wait."""

from __future__ import annotations

import pytest

from fairlead.preflight.pairs.answers import AgentReport
from fairlead.preflight.pairs.phase import ALONE_TIMES, MAX_ALONE, pair_phase
from fairlead.preflight.pairs.steps import Answers, Plan

MS = 1_000_000


def asked_alone(walls_ms: list[float], cpu_ms: float, alone_ms: float = 0.0) -> set[int]:
    """Drive the phase to its first burst; the nodes that were asked to work alone.

    Four times the work then takes `alone_ms`, or as long as it says for a node in `walls_ms` where that is 0.
    """
    num = len(walls_ms)
    phase = pair_phase(
        Plan(
            nodes=tuple(f"n{i}" for i in range(num)),
            paths=("fabric",),
            addresses=tuple((f"fd00::{i}",) for i in range(num)),
        )
    )
    step, alone = next(phase), set()
    while step.line["do"] != "burst":
        reports = {}
        for n in step.expect:
            wall_ns = int(walls_ms[n] * MS) if step.line["do"] == "work" else 0
            if wall_ns and "only" in step.line:
                wall_ns = int(alone_ms * MS) or wall_ns * ALONE_TIMES
            reports[n] = AgentReport(
                step=step.line.get("step", 0), ports=[1], tcp=1, wall_ns=wall_ns, cpu_ns=int(cpu_ms * MS)
            )
        if step.line["do"] == "work" and "only" in step.line:
            alone |= step.expect
        step = phase.send(Answers(reports, 0, dict.fromkeys(reports, 0)))
    phase.close()
    return alone


def test_on_a_calm_cluster_nobody_works_twice():
    assert asked_alone([22, 23, 22, 24], 22) == set()


def test_one_that_stands_out_and_the_quickest_work_again():
    assert asked_alone([22, 23, 21, 220], 22) == {2, 3}


def test_one_that_was_only_unlucky_works_again_once_and_the_quickest_not_at_all():
    assert asked_alone([22, 23, 21, 45], 22, alone_ms=88) == {3}


def test_hosts_that_share_a_machine_wait_for_each_other_and_that_is_no_suspicion():
    assert asked_alone([44, 48, 61, 50], 22) == set()


@pytest.mark.parametrize("walls_ms", [[184, 198, 242, 218], [240, 198, 242, 250, 230, 260, 239, 241]])
def test_where_all_wait_long_the_slowest_work_alone(walls_ms):
    """A node that has a tenth of a processor takes 220 ms for 22 ms of work; in a crowd so does everybody."""
    found = asked_alone(walls_ms, 22)
    slowest = sorted(range(len(walls_ms)), key=lambda n: -walls_ms[n])[:MAX_ALONE]
    assert found == {*slowest, walls_ms.index(min(walls_ms))}


def test_where_nobody_answers_there_is_nothing_to_compare():
    plan = Plan(nodes=("n0", "n1"), paths=("fabric",), addresses=(("fd00::1",), ("fd00::2",)))
    phase = pair_phase(plan)
    answers, facts = Answers({}, lost={0: "gone", 1: "gone"}), None
    next(phase)
    while facts is None:
        try:
            phase.send(answers)
        except StopIteration as end:
            facts = end.value
        answers = Answers({})
    assert set(facts.lost) == {0, 1}

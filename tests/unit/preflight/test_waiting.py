"""A step that Slurm does not begin: heard from srun, explained by squeue, and no fault of torch."""

from __future__ import annotations

import pytest

from fairlead.launch.pending import heard
from fairlead.preflight.ranks.facts import Waiting
from fairlead.preflight.slurm.waiting import judge_waiting
from support.rank_facts import ranks

QUEUED = "srun: job 12 queued and waiting for resources"
BUSY = "srun: Job 7 step creation temporarily disabled, retrying (Requested nodes are busy)"


def given_up(said=QUEUED, squeue="PENDING|Resources\n"):
    facts = ranks(took_s=61.0, broken="the scheduler did not begin the step within 1 min")
    facts.lines.clear()
    facts.waiting = Waiting(job=heard(said), said=said, squeue=squeue)
    return facts


@pytest.mark.parametrize(
    ("text", "job"),
    [
        (QUEUED, "12"),
        (BUSY, "7"),
        ("srun: Job 7 step creation still disabled, retrying (Requested nodes are busy)", "7"),
        ("srun: job 12 has been allocated resources", ""),
        ("srun: error: Unable to create step for job 7: Invalid gres", ""),
    ],
)
def test_what_srun_says_of_waiting(text, job):
    assert heard(text) == job


def test_a_pending_job_is_said_with_slurms_own_reason():
    found = judge_waiting(given_up())
    assert found.code == "preflight/step-pending"
    assert "did not begin the ranks within" in found.message
    assert "job 12 is pending: Resources" in found.message
    assert "squeue -j 12" in found.remedy
    assert "torch" not in found.remedy
    assert [e.value for e in found.evidence] == [QUEUED, "PENDING|Resources"]
    assert found.data == {"job": "12", "state": "PENDING", "reason": "Resources"}


def test_a_step_without_room_in_its_own_job_is_told_from_that():
    found = judge_waiting(given_up(BUSY, "RUNNING|None\n"))
    assert "job 7 has no room for a step: Requested nodes are busy" in found.message
    assert "squeue --steps -j 7" in found.remedy


def test_where_squeue_does_not_answer_srun_is_believed():
    assert "job 7 has no room" in judge_waiting(given_up(BUSY, "")).message


def test_ranks_that_began_were_not_waiting():
    facts = ranks()
    facts.waiting = Waiting(job="12", said=QUEUED)
    assert judge_waiting(facts) is None
    assert judge_waiting(ranks()) is None

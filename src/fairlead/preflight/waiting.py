"""A step of ranks that Slurm has not begun: heard from what srun says of it, explained by what squeue says. Pure."""

from __future__ import annotations

import re

from fairlead.base.units import duration
from fairlead.preflight.facts import RankFacts, Waiting
from fairlead.records.finding import Evidence, Finding, Subject
from fairlead.records.verdict import Verdict

PENDING_S = 60.0
"""How long a step may wait to begin; other jobs' epilogs take their time."""
_SAID = re.compile(
    r"srun: (?:error: )?[jJ]ob (\d+) "
    r"(?:queued and waiting for resources|step creation (?:temporarily|still) disabled.*)"
)


def heard(text: str) -> Waiting | None:
    """What a line of srun's own says about a job or a step that waits; None for any other line.

    >>> heard("srun: job 12 queued and waiting for resources").job
    '12'
    >>> heard("srun: Job 7 step creation temporarily disabled, retrying (Requested nodes are busy)").job
    '7'
    """
    found = _SAID.match(text)
    return Waiting(job=found[1], said=text) if found else None


def question(job: str) -> tuple[str, ...]:
    """The command that says why a job waits."""
    return ("squeue", "--noheader", f"--jobs={job}", "--states=all", "--format=%T|%r")


def judge_waiting(facts: RankFacts) -> Finding | None:
    """The finding, where Slurm never began the step; None otherwise."""
    waiting = facts.waiting
    if waiting is None or facts.lines:
        return None
    state, _, reason = waiting.squeue.strip().partition("|")
    if state == "PENDING":
        why, remedy = (
            f"job {waiting.job} is pending: {reason or 'no reason given'}",
            f"squeue -j {waiting.job}; sinfo -N",
        )
        remedy += "; free the nodes, or give preflight the right partition, account and time limit in [slurm]"
    else:
        busy = waiting.said.rpartition("(")[2].rstrip(")") if waiting.said.endswith(")") else "its nodes are busy"
        why = f"job {waiting.job} has no room for a step: {busy}"
        remedy = f"squeue --steps -j {waiting.job}; end the step that holds the nodes, or its GPUs: scancel JOB.STEP"
    said = [Evidence("srun", waiting.said)]
    said += [Evidence(" ".join(question(waiting.job)), waiting.squeue.strip())] if waiting.squeue else []
    return Finding(
        code="preflight/step-pending",
        verdict=Verdict.FAIL,
        subject=Subject(kind="job", nodes=facts.nodes),
        message=f"Slurm did not begin the ranks within {duration(facts.took_s)}: {why}",
        evidence=tuple(said),
        remedy=remedy,
        data={"job": waiting.job, "state": state, "reason": reason},
    )

"""A step of ranks that Slurm has not begun, as a finding. Pure."""

from __future__ import annotations

from fairlead.base.units import duration
from fairlead.launch.pending import question
from fairlead.preflight.ranks.facts import RankFacts
from fairlead.records.finding import Evidence, Finding, Subject
from fairlead.records.verdict import Verdict


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

"""Questions to Slurm: which nodes it can use, and when a job starts. Few, and ever further apart."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from fairlead.base.nodeset import NodeSet
from fairlead.base.units import duration
from fairlead.cluster.backend import last_line
from fairlead.cluster.child import Captured, capture
from fairlead.cluster.protocol import Refusal, State
from fairlead.cluster.slurmwords import JOB, MARKS, Job, Work, are, node_words
from fairlead.errors import SchedulerError

ASK_LIMIT_S = 30.0
_FIRST_DELAY_S, _GROWTH, _LONGEST_DELAY_S = 0.1, 1.5, 10.0
_WAKES = {"POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN"}
"""Slurm powers such a node up for a job."""
_HOPELESS = frozenset(
    {"AccountNotAllowed", "BadConstraints", "InvalidAccount", "InvalidQOS", "JobHeldAdmin", "JobHeldUser",
     "PartitionConfig", "PartitionDown", "PartitionInactive", "PartitionNodeLimit", "PartitionTimeLimit",
     "QOSNotAllowed"}
)  # fmt: skip
"""Reasons that waiting does not cure."""


async def ask(argv: list[str], env: Mapping[str, str], limit_s: float = ASK_LIMIT_S) -> Captured:
    """One Slurm command."""
    return await capture(argv, limit_s=limit_s, env=env)


async def refusals(nodes: NodeSet, env: Mapping[str, str], *, in_job: bool) -> dict[str, Refusal]:
    """The nodes Slurm cannot use, and why it says so. Raises SchedulerError where it does not answer."""
    done = await ask(["sinfo", "--all", "--noheader", "--Node", f"--nodes={nodes}", "--format=%N|%T|%E"], env)
    if done.rc != 0 and "denied" in done.err:
        return {}  # PrivateData=nodes hides every node from this user: a step will show whether it is well
    if done.rc != 0:
        raise SchedulerError(
            "cluster/slurm-silent", f"Slurm does not answer: {last_line(done.err)}", hint="scontrol ping"
        )
    return judge_nodes(nodes, done.out, in_job=in_job)


def judge_nodes(nodes: NodeSet, listing: str, *, in_job: bool) -> dict[str, Refusal]:
    """From `sinfo` lines `node|state|reason`. A node in a job may drain: its steps still run.

    A state that no table has refuses nobody: Slurm itself will say whether it gives the node work.
    """
    kinds = [Work.REFUSED] if in_job else [Work.REFUSED, Work.DRAINED]
    found: dict[str, Refusal] = {}
    asked = set(nodes)
    unknown = set(asked)
    for line in listing.splitlines():
        node, state, reason = [*line.split("|", 2), "", ""][:3]
        if node not in asked:
            continue
        unknown.discard(node)
        words = node_words(state)
        if set(are(words, *kinds)) - _WAKES or "UNKNOWN" in words:
            said = "" if reason in ("", "none") else f": {reason}"
            silent = " and its slurmd does not answer" if "NOT_RESPONDING" in words else ""
            plain = state.rstrip("+".join(MARKS))
            found[node] = Refusal(State.UNREACHABLE, f"Slurm has it {plain}{silent}{said}", "scontrol show node NODE")
    nowhere = Refusal(State.UNREACHABLE, "Slurm knows no node of that name", "sinfo -N")
    return found | dict.fromkeys(unknown, nowhere)


async def wait_until_running(
    job: str, limit_s: float, env: Mapping[str, str], note: Callable[[str], object]
) -> Refusal | None:
    """Wait for a job to start; why it did not, where it did not."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + limit_s
    delay, said = _FIRST_DELAY_S, ""
    while True:
        done = await ask(["squeue", "--noheader", f"--jobs={job}", "--states=all", "--format=%T|%r"], env)
        state, _, reason = done.out.partition("|")
        if JOB.get(state) is Job.RUNS:
            return None
        if done.rc == 0 and (JOB.get(state) is Job.ENDED or not state):
            return Refusal(State.UNREACHABLE, f"job {job} ended before it began: {state.lower()} {reason}", "sacct")
        why = reason if done.rc == 0 else last_line(done.err)
        if reason in _HOPELESS:
            return Refusal(State.UNREACHABLE, f"job {job} cannot start: {reason}", f"squeue -j {job}")
        if loop.time() >= deadline:
            return Refusal(
                State.UNREACHABLE, f"job {job} did not start within {duration(limit_s)}: {why}", "squeue; sinfo -N"
            )
        if why not in (said, "None", ""):
            note(f"job {job} waits: {why}")
            said = why
        await asyncio.sleep(min(delay, max(0.0, deadline - loop.time())))
        delay = min(delay * _GROWTH, _LONGEST_DELAY_S)

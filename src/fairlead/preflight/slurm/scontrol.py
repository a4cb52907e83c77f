"""Changing nodes in Slurm as a plan says, and proving it: the one place that drains and gives back.

Between the plan and now somebody may have acted: a node that is not as it was is left alone. What is done is read back,
for scontrol ends with 0 although one of several nodes was refused. Others may drain at the same time: share.py says who
yields.
"""

from __future__ import annotations

import os
import pwd
import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fairlead.cluster.child import Captured
from fairlead.errors import SchedulerError
from fairlead.preflight.slurm.drain import GIVE_BACK, DrainPlan, drained_by, lines_of, typed, update
from fairlead.preflight.slurm.reason import bare
from fairlead.preflight.slurm.scheduler import SHOW, SlurmNode, parse
from fairlead.preflight.slurm.share import held, is_drained_by_us, who_yields

Control = Callable[[Sequence[str]], Captured | None]
"""Runs a command of the scheduler; None where there is no scheduler."""

SETTLE_S = 3.0
"""How long those who drained first wait for later ones to yield: some rounds of scontrol."""
_POLL_S = 0.2
# ESLURM_USER_ID_MISSING and ESLURM_ACCESS_DENIED in src/common/slurm_errno.c
_NO_RIGHT = re.compile(r"Invalid user id|[Pp]ermission denied")


@dataclass(frozen=True, slots=True)
class NodeChange:
    """What became of one node of a plan."""

    node: str
    action: str
    """`drain` or `undrain`."""
    is_done: bool
    why: str = ""
    """Why not."""


def execute(
    plan: DrainPlan,
    control: Control,
    *,
    sleep: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> list[NodeChange]:
    """Do what the plan says, as far as the nodes are still as they were; what Slurm says afterwards is the proof.

    scontrol ends with 0 although one of several nodes was refused, so its status is not asked. Raises SchedulerError
    `preflight/no-scheduler` where Slurm does not answer.
    """
    if plan.is_empty:
        return []
    before = ask_states(control)
    why = {node: text for node, was in plan.was.items() if (text := _changed(was, before.get(node)))}
    said: dict[str, str] = {}
    for nodes, change in plan.changes():
        if left := [node for node in nodes if node not in why]:
            told = control(update(left, change))
            said |= dict.fromkeys(left, told.complaint if told else "")
    after, yielded = _settled({n for n in plan.drain if n not in why}, plan.allowed, control, sleep, clock)
    why |= dict.fromkeys(yielded, "given back at once: others were drained at the same time, and the share is full")
    asked = [(node, "drain") for node in plan.drain] + [(node, "undrain") for node in plan.undrain]
    return [_outcome(node, action, why.get(node, ""), said.get(node, ""), after) for node, action in asked]


def _settled(
    mine: set[str],
    allowed: int,
    control: Control,
    sleep: Callable[[float], object],
    clock: Callable[[], float],
) -> tuple[dict[str, SlurmNode], set[str]]:
    """(the nodes in the end, those of mine that yielded): see share.py. Nothing is known where Slurm falls silent."""
    left, yielded, deadline = set(mine), set[str](), clock() + SETTLE_S
    while True:
        is_last_word = clock() >= deadline
        try:
            after = ask_states(control)
        except SchedulerError:
            if is_last_word:
                return {}, yielded
            sleep(_POLL_S)
            continue
        if out := who_yields(after, left, allowed, is_last_word=is_last_word):
            control(update(out, GIVE_BACK))
            yielded.update(out)
            left.difference_update(out)
        elif len(held(after)) <= allowed or not left:
            return after, yielded
        else:
            sleep(_POLL_S)


def ask_states(control: Control, only: str = "") -> dict[str, SlurmNode]:
    """Every node as Slurm has it, or only one. Raises SchedulerError `preflight/no-scheduler`."""
    said = control((*SHOW, only) if only else SHOW)
    if said is None or said.rc != 0:
        why = (said.complaint if said else "") or "no answer"
        raise SchedulerError(
            "preflight/no-scheduler",
            "there is no Slurm to drain nodes in" if said is None else f"Slurm does not say how its nodes are: {why}",
            hint="scontrol ping",
        )
    return parse(said.out)


def control_here(limit_s: float) -> Control:
    """Slurm's commands on this machine, for a health program. Before slurmd has registered they may hang."""

    def control(argv: Sequence[str]) -> Captured | None:
        try:
            env = {**os.environ, "SLURM_TIME_FORMAT": "standard"}  # the stamp behind a reason is read
            done = subprocess.run(argv, capture_output=True, text=True, timeout=limit_s, check=False, env=env)
        except FileNotFoundError:
            return None
        except (OSError, subprocess.TimeoutExpired) as error:
            return Captured(None, "", str(error))
        return Captured(done.returncode, done.stdout, done.stderr)

    return control


def _changed(was: SlurmNode, now: SlurmNode | None) -> str:
    """What somebody else did to a node since the plan was made; empty if nothing that matters."""
    if now is None:
        return "Slurm does not know it any more"
    if now.bad_states != was.bad_states or bare(now.reason) != bare(was.reason):
        return f"changed meanwhile: {', '.join(now.states).lower()}{drained_by(now)}"
    return ""


def _outcome(node: str, action: str, why: str, said: str, after: Mapping[str, SlurmNode]) -> NodeChange:
    if why:
        return NodeChange(node, action, is_done=False, why=why)
    now = after.get(node)
    if now is not None and is_drained_by_us(now) == (action == "drain"):
        return NodeChange(node, action, is_done=True)
    silent = "Slurm took it and did nothing" if after else "Slurm fell silent: look with sinfo -R"
    return NodeChange(node, action, is_done=False, why=_no_right(said) or said or silent)


def _no_right(said: str) -> str:
    """The clear sentence for a user who is no operator; empty for any other complaint."""
    return f"{_user()} may not change nodes in Slurm; an operator may: see below" if _NO_RIGHT.search(said) else ""


def _user() -> str:
    """Who this is, by name where there is one."""
    try:
        return f"the user {pwd.getpwuid(os.getuid()).pw_name}"
    except KeyError:
        return f"the user {os.getuid()}"


def outcomes_text(plan: DrainPlan, outcomes: Sequence[NodeChange]) -> str:
    """What was done: one line a node; and what an operator would type where this user may not."""
    past = {"drain": "drained", "undrain": "undrained"}
    rows = [(past[o.action], o.node, plan.drain.get(o.node, "")) for o in outcomes if o.is_done]
    rows += [(f"NOT {past[o.action]}", o.node, o.why) for o in outcomes if not o.is_done]
    rows += [("not drained", node, reason) for node, reason in plan.wanted.items()]
    text = lines_of(rows, plan) or "Slurm: nothing was done"
    barred = {o.node for o in outcomes if o.why == _no_right("Invalid user id")}
    left = [([n for n in nodes if n in barred], change) for nodes, change in plan.changes()]
    return "\n".join([text, *(f"type     {line}" for line in typed(c for c in left if c[0]))])

"""Changing nodes in Slurm as a plan says, and proving it: the one place that drains and gives back.

Between the plan and now somebody may have acted: a node that is not as it was is left alone. What is done is read back,
for scontrol ends with 0 although one of several nodes was refused.
"""

from __future__ import annotations

import subprocess
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fairlead.base.nodeset import NodeSet
from fairlead.cluster.child import Captured
from fairlead.errors import SchedulerError
from fairlead.preflight.drain import DrainPlan, drained_by, is_drained_by_us, lines_of
from fairlead.preflight.reason import bare
from fairlead.preflight.scheduler import SHOW, SlurmNode, parse

Control = Callable[[Sequence[str]], Captured | None]
"""Runs a command of the scheduler; None where there is no scheduler."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one node of a plan."""

    node: str
    action: str
    """`drain` or `undrain`."""
    is_done: bool
    why: str = ""
    """Why not."""


def execute(plan: DrainPlan, control: Control) -> list[Outcome]:
    """Do what the plan says, as far as the nodes are still as they were; what Slurm says afterwards is the proof.

    scontrol ends with 0 although one of several nodes was refused, so its status is not asked. Raises SchedulerError
    `preflight/no-scheduler` where Slurm does not answer.
    """
    if plan.is_empty:
        return []
    before = ask_states(control)
    changed = {node: _changed(was, before.get(node)) for node, was in plan.was.items()}
    by_change: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    for node, reason in plan.drain.items():
        by_change["State=DRAIN", f"Reason={reason}"].append(node)
    # UNDRAIN, unlike RESUME, leaves a node down that went down meanwhile
    by_change["State=UNDRAIN",].extend(plan.undrain)
    said: dict[str, str] = {}
    for change, all_nodes in by_change.items():
        if nodes := [node for node in all_nodes if not changed[node]]:
            done = control(("scontrol", "update", f"NodeName={NodeSet(nodes)}", *change))
            said |= dict.fromkeys(nodes, _error(done))
    after = ask_states(control)
    asked = [(node, "drain") for node in plan.drain] + [(node, "undrain") for node in plan.undrain]
    return [_outcome(node, action, changed[node], said.get(node, ""), after) for node, action in asked]


def ask_states(control: Control) -> dict[str, SlurmNode]:
    """Every node as Slurm has it. Raises SchedulerError `preflight/no-scheduler`."""
    said = control(SHOW)
    if said is None or said.rc != 0:
        why = _error(said) or "no answer"
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
            done = subprocess.run(argv, capture_output=True, text=True, timeout=limit_s, check=False)
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


def _error(said: Captured | None) -> str:
    """The last thing a command complained of."""
    lines = [line.strip() for line in (said.err if said else "").splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _outcome(node: str, action: str, changed: str, said: str, after: Mapping[str, SlurmNode]) -> Outcome:
    if changed:
        return Outcome(node, action, is_done=False, why=changed)
    now = after.get(node)
    is_done = now is not None and is_drained_by_us(now) == (action == "drain")
    return Outcome(node, action, is_done=is_done, why="" if is_done else said or "Slurm took it and did nothing")


def outcomes_text(plan: DrainPlan, outcomes: Sequence[Outcome]) -> str:
    """What was done: one line a node."""
    past = {"drain": "drained", "undrain": "undrained"}
    rows = [(past[o.action], o.node, plan.drain.get(o.node, "")) for o in outcomes if o.is_done]
    rows += [(f"NOT {past[o.action]}", o.node, o.why) for o in outcomes if not o.is_done]
    rows += [("not drained", node, reason) for node, reason in plan.wanted.items()]
    return lines_of(rows, plan) or "Slurm: nothing was done"

"""Draining and giving back, from question to proof: ask Slurm, plan, write down who the nodes are, act, read back.

The gate does it for a whole cluster, a node's own program for itself. A Slurm that does not answer changes no verdict.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fairlead.errors import SchedulerError
from fairlead.preflight.slurm.drain import DrainPlan, DrainRules, plan_drain, plan_text
from fairlead.preflight.slurm.scontrol import Control, ask_states, execute, outcomes_text
from fairlead.records.codec import builtins
from fairlead.records.finding import Finding
from fairlead.records.log import tell

log = logging.getLogger("fairlead.preflight.slurm")


@dataclass(frozen=True, kw_only=True)
class Acted:
    """What was done, or would be, in words and for the document."""

    text: str = ""
    body: dict[str, Any] | None = None
    note: str = ""
    """For people, beside the answer."""


def act(
    findings: Sequence[Finding],
    run_id: str,
    control: Control,
    rules: DrainRules,
    *,
    yes: bool,
    save: Callable[[list[str]], object] = lambda _: None,
) -> Acted:
    """Show what follows from the findings; with `yes`, do it. `save` is told the nodes before they are changed."""
    now = dt.datetime.now(dt.UTC)
    try:
        states = ask_states(control, rules.only)
        plan = plan_drain(findings, states, run_id, now, rules)
        if rules.only and (plan.drain or plan.wanted):
            # the share is one of all nodes; a fleet whose nodes are well is asked of each node alone
            plan = plan_drain(findings, ask_states(control), run_id, now, rules)
        if yes and not plan.is_empty:
            save([*plan.drain, *plan.undrain])
        _tell_plan(plan)
        outcomes = execute(plan, control) if yes else []
    except SchedulerError as error:
        tell(log, f"nothing done: {error}", level=logging.WARNING, code=error.code)
        return Acted(body={"error": error.code}, note=f"{error}: no node was drained or given back")
    for done in outcomes:
        word = done.action if done.is_done else f"no {done.action}: {done.why}"
        tell(log, word, node=done.node, level=logging.INFO if done.is_done else logging.WARNING)
    text = outcomes_text(plan, outcomes) if yes else plan_text(plan)
    shown_only = not yes and not plan.is_empty
    note = "nothing was changed in Slurm; --yes does what is shown" if shown_only else ""
    return Acted(text=text, body={**plan.body(), "done": builtins(outcomes)}, note=note)


def _tell_plan(plan: DrainPlan) -> None:
    for node, reason in plan.drain.items():
        tell(log, "to drain", node=node, reason=reason, allowed=plan.allowed)
    for node in plan.undrain:
        tell(log, "to give back", node=node, reason=plan.was[node].reason)
    for node, why in plan.kept.items():
        tell(log, f"left as it is: {why}", node=node)
    if plan.refused:
        tell(log, f"nobody is drained: {plan.refused}", level=logging.WARNING, wanted=dict(plan.wanted))

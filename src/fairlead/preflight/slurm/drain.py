"""Which nodes to take out of Slurm, and which of those taken out earlier to give back. Pure; scontrol.py does it.

A node is drained for a fault of its own alone: of a bad pair nobody knows which end it is. Never for a warning, nor for
what could not be judged, unless told. Never more than a share of the cluster, those drained earlier counted (share.py):
a bad rule must not empty it. A node that somebody else has drained, taken down or reserved is not touched. A node is
given back only if its reason is ours to the letter and the very check it was drained for has passed on it.
"""

from __future__ import annotations

import datetime as dt
import shlex
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fairlead.base.nodeset import NodeSet
from fairlead.base.table import table
from fairlead.preflight.slurm.passed import why_not_passed
from fairlead.preflight.slurm.reason import bare, is_ours, parse_reason, reason_of, set_by
from fairlead.preflight.slurm.scheduler import SlurmNode
from fairlead.preflight.slurm.share import MAX_SHARE, allowed_of, is_drained_by_us
from fairlead.records.finding import Finding
from fairlead.records.verdict import Verdict

_OWN = ("node", "device", "port", "rank")
"""Subjects whose fault is that of the node they are on."""
GIVE_BACK = ("State=UNDRAIN",)
"""Unlike RESUME, it leaves a node down that went down meanwhile."""
_ABOUT_SLURM = ("preflight/node-state", "preflight/not-in-slurm")
"""What Slurm itself says of a node is no reason to drain it, and its own drain none to keep it drained."""


@dataclass(frozen=True, kw_only=True)
class DrainRules:
    """What may be done."""

    drains: bool = True
    undrains: bool = True
    verdicts: frozenset[Verdict] = frozenset({Verdict.FAIL})
    """Findings with one of these drain their node."""
    max_share: float = MAX_SHARE
    """Of all nodes Slurm knows; one node is always allowed."""
    only: str = ""
    """The one node that may be changed, for a node's own program; empty for all."""


@dataclass(frozen=True, kw_only=True)
class DrainPlan:
    """What is to be done, and what is not, and why."""

    drain: Mapping[str, str] = field(default_factory=dict)
    """Node -> reason."""
    undrain: tuple[str, ...] = ()
    kept: Mapping[str, str] = field(default_factory=dict)
    """Node -> why it is left as it is, of those that are bad or drained by fairlead."""
    refused: str = ""
    """Why none of `wanted` is drained: too many."""
    wanted: Mapping[str, str] = field(default_factory=dict)
    """Node -> reason, of those refused."""
    was: Mapping[str, SlurmNode] = field(default_factory=dict)
    """Nodes of the plan as they were when it was made."""
    allowed: int = 1
    """How many nodes fairlead may hold drained at all."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not self.drain and not self.undrain

    def body(self) -> dict[str, Any]:
        """For the JSON document."""
        return {
            "drain": dict(self.drain),
            "undrain": list(self.undrain),
            "kept": dict(self.kept),
            "refused": self.refused,
            "wanted": dict(self.wanted),
            "commands": typed(self.changes()),
        }

    def changes(self) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
        """(nodes, what to set on them), one for each reason."""
        by_change: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
        for node, reason in self.drain.items():
            by_change["State=DRAIN", f"Reason={reason}"].append(node)
        by_change[GIVE_BACK].extend(self.undrain)
        return [(tuple(nodes), change) for change, nodes in by_change.items() if nodes]


def update(nodes: Iterable[str], change: Sequence[str]) -> tuple[str, ...]:
    """The command that changes nodes."""
    return ("scontrol", "update", f"NodeName={NodeSet(nodes)}", *change)


def plan_drain(
    findings: Iterable[Finding],
    states: Mapping[str, SlurmNode],
    run_id: str,
    when: dt.datetime,
    rules: DrainRules = DrainRules(),
) -> DrainPlan:
    """What follows from a run's findings, culprits first, for the nodes as Slurm has them now."""
    found = [f for f in findings if f.code not in _ABOUT_SLURM]
    wanted: dict[str, str] = {}
    kept: dict[str, str] = {}
    undrain: list[str] = []
    if rules.drains:
        for node, mine in _own_faults(found, rules.verdicts).items():
            if rules.only not in ("", node):
                continue
            if why := _hands_off(states.get(node)):
                kept[node] = why
            else:
                wanted[node] = str(reason_of(mine, run_id, when))
        kept |= _bad_pairs(found, rules.verdicts, {*wanted, *kept})
    if rules.undrains:
        for node, was in states.items():
            if not is_drained_by_us(was) or rules.only not in ("", node):
                continue
            if why := _why_not_back(node, was, found):
                kept[node] = why
            else:
                undrain.append(node)
    refused = _too_many(wanted, undrain, states, rules.max_share)
    drain = {} if refused else wanted
    return DrainPlan(
        drain=drain,
        undrain=tuple(NodeSet(undrain)),
        kept=kept,
        refused=refused,
        wanted=wanted if refused else {},
        was={node: states[node] for node in (*drain, *undrain)},
        allowed=allowed_of(len(states), rules.max_share),
    )


def _own_faults(findings: Sequence[Finding], verdicts: frozenset[Verdict]) -> dict[str, list[Finding]]:
    """Node -> findings about a fault of its own, in the order given."""
    faults: defaultdict[str, list[Finding]] = defaultdict(list)
    for finding in findings:
        if finding.verdict in verdicts and finding.subject.kind in _OWN:
            for node in finding.subject.nodes:
                faults[node].append(finding)
    return faults


def _hands_off(was: SlurmNode | None) -> str:
    """Why a bad node is not drained; empty where it may be."""
    if was is None:
        return "Slurm knows no such node"
    if was.is_drained:
        return f"already drained{drained_by(was)}"
    if was.bad_states:
        return f"Slurm gives it no work already: {', '.join(was.bad_states).lower()}{drained_by(was)}"
    if was.set_aside:
        return f"in maintenance: {', '.join(was.set_aside).lower()}"
    if was.unsure_states:
        return f"in a state that is neither good nor bad: {', '.join(was.unsure_states).lower()}"
    return ""


def drained_by(was: SlurmNode) -> str:
    """Who drained a node and why, in words."""
    if is_ours(was.reason):
        return f" by fairlead: {bare(was.reason)}"
    who = f" by {set_by(was.reason)}" if set_by(was.reason) else ""
    return f"{who}: {bare(was.reason)}" if was.reason else who


def _bad_pairs(findings: Sequence[Finding], verdicts: frozenset[Verdict], known: set[str]) -> dict[str, str]:
    """Nodes that are only part of something bad: a pair is evidence against neither of its ends."""
    return {
        node: f"{f.code} is about a {f.subject.kind}, which is no evidence against one node"
        for f in findings
        if f.verdict in verdicts and f.subject.kind in ("pair", "link")
        for node in f.subject.nodes
        if node not in known
    }


def _why_not_back(node: str, was: SlurmNode, findings: Sequence[Finding]) -> str:
    """Why a node of ours stays drained; empty where it may go back."""
    reason = parse_reason(was.reason)
    assert reason is not None, "only nodes with a reason of ours are asked about"
    if others := [s for s in was.bad_states if not s.startswith("DRAIN")]:
        return f"drained by fairlead, and Slurm has it {', '.join(others).lower()} besides"
    why = why_not_passed(node, reason.code, findings)
    return f"drained by fairlead on {reason.day} for {reason.code}: {why}" if why else ""


def _too_many(
    wanted: Mapping[str, str], undrain: Sequence[str], states: Mapping[str, SlurmNode], max_share: float
) -> str:
    """Why all of `wanted` are refused; empty where they are few enough. Those drained in earlier runs count too."""
    allowed = allowed_of(len(states), max_share)
    earlier = sum(is_drained_by_us(was) for was in states.values()) - len(undrain)
    if not wanted or len(wanted) + earlier <= allowed:
        return ""
    before = f", with {earlier} drained by fairlead before," if earlier else ""
    return (
        f"{len(wanted)} of {len(states)} nodes{before} are more than {max_share:.0%} of the cluster, which allows "
        f"{allowed}: look at the findings first, then allow a larger share"
    )


# ---- in words --------------------------------------------------------------------------------------------------------


def plan_text(plan: DrainPlan) -> str:
    """The preview: one line a node."""
    rows = [("would drain", node, reason) for node, reason in plan.drain.items()]
    rows += [("not drained", node, reason) for node, reason in plan.wanted.items()]
    rows += [("would undrain", node, f"passed now; was {bare(plan.was[node].reason)}") for node in plan.undrain]
    text = lines_of(rows, plan) or "Slurm: no node to drain or to give back"
    return "\n".join([text, *(f"type     {line}" for line in typed(plan.changes()))])


def typed(changes: Iterable[tuple[Sequence[str], Sequence[str]]]) -> list[str]:
    """What an operator types for them, ready to paste."""
    return [shlex.join(update(nodes, change)) for nodes, change in changes]


def lines_of(rows: Sequence[tuple[str, str, str]], plan: DrainPlan) -> str:
    """Rows of (what, node, why), what is left alone, and the refusal."""
    rows = [*rows, *(("left", node, why) for node, why in plan.kept.items())]
    lines = [table(("", "", ""), rows)] if rows else []
    return "\n".join([*lines, f"refused: {plan.refused}"] if plan.refused else lines)

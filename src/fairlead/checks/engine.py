"""Judges facts: runs the catalogue over nodes, compares the fleet, lays waivers over the result. Pure.

Missing evidence is unknown: a rule that asks for a hole raises Unread, and only this file catches it. A rule with a bug
is unknown too, and named; it never stops the others.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import gc
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from fairlead.checks.absent import name_absent
from fairlead.checks.catalog import CATALOG, Check
from fairlead.checks.expect import Expect, expect_of
from fairlead.checks.fleet import judge_fleet
from fairlead.checks.holes import broken, not_allowed, unread
from fairlead.checks.node import Node, Outcome, skip
from fairlead.checks.scopes import CONDITIONS, SCOPES
from fairlead.checks.skews import SKEWS, Skew
from fairlead.checks.spare import judge_spare
from fairlead.checks.waive import apply_waivers
from fairlead.records.facts import Facts, NodeFacts, Unread
from fairlead.records.finding import Evidence, Finding, Subject
from fairlead.records.verdict import Verdict
from fairlead.spec.model import Spec

MAX_EVIDENCE = 12
MAX_TIME_NS = 1 << 62
"""The year 2116; a clock that says more is not believed."""


def judge(
    facts: Sequence[NodeFacts],
    spec: Spec,
    *,
    today: dt.date | None = None,
    checks: Iterable[Check] = CATALOG,
    skews: Sequence[Skew] = SKEWS,
) -> list[Finding]:
    """Everything that can be said of these nodes, each by itself and all together, by the catalogue or by other checks.

    `today` decides which waivers still apply; left out, it is the day by the median of the nodes' own clocks, so that
    old facts are judged as of their day.
    """
    expects = {pool.name: expect_of(spec, pool) for pool in spec.pools}
    stranger = Expect(link=spec.fabric.link, rdma=spec.fabric.rdma)
    pool_of = {node: pool.name for pool in spec.pools for node in pool.nodes}
    nodes = [Node(Facts(record), expects.get(pool_of.get(record.node, ""), stranger)) for record in facts]
    findings: list[Finding] = []
    with _uncollected():
        for node in nodes:
            findings += judge_node(node, checks)
        findings = name_absent([*judge_spare(findings, nodes), *judge_fleet(nodes, skews)], nodes)
        return apply_waivers(findings, spec.waivers, today or day_of(facts))


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Without Python's search for cycles: it would go over the facts of all nodes again and again, a fifth of the time,
    for records that make none. What is no longer referred to is freed all the same.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def day_of(facts: Sequence[NodeFacts]) -> dt.date:
    """The day on which most of these facts were read; one clock that jumped does not move it."""
    times = sorted(record.taken_at_ns for record in facts)
    middle = min(max(times[len(times) // 2] if times else 0, 0), MAX_TIME_NS)
    return dt.datetime.fromtimestamp(middle // 1_000_000_000, dt.UTC).date()


def judge_node(node: Node, checks: Iterable[Check] = CATALOG) -> list[Finding]:
    """One node against the catalogue."""
    return [finding for check in checks for finding in _judge(check, node)]


def _judge(check: Check, node: Node) -> list[Finding]:
    """One check on one node: a finding for each part that is not well, and one that folds those that are."""
    node.begin()
    try:
        reason = _why_not(check, node)
        if reason:
            return [_finding(check, node, "", skip(reason))]
        parts = SCOPES[check.scope].parts(node)
    except Unread as hole:
        return [_open(check, node, "", hole)]
    except Exception as bug:  # noqa: BLE001 - a rule's bug must not hide what the other rules find
        return [broken(check.code, _subject(check, node, ""), check.rule, bug)]
    if not parts:
        return [_finding(check, node, "", skip(f"there is no {check.scope} to judge"))]
    findings, well, not_asked = [], [], []
    chosen_by, taken = node.assumed, dict[str, list[Unread]]()
    for part, unclear in parts.items():
        node.begin()
        if unclear is not None:
            findings.append(unread(check.code, _subject(check, node, part), unclear))
            continue
        try:
            outcome = check.rule(node, part)
        except Unread as missing:
            findings.append(_open(check, node, part, missing))
            continue
        except Exception as bug:  # noqa: BLE001
            findings.append(broken(check.code, _subject(check, node, part), check.rule, bug))
            continue
        node.assumed = {**chosen_by, **node.assumed}
        if outcome.verdict is Verdict.PASS:
            well.append((part, outcome))
            taken |= node.assumed
        elif outcome.verdict is Verdict.SKIP:
            not_asked.append(outcome)
        else:
            findings.append(_finding(check, node, part, outcome))
    if well:
        node.assumed = taken
        findings.append(_finding(check, node, "", _fold(well)))
    elif not_asked and not findings:
        findings.append(_finding(check, node, "", not_asked[0]))
    return findings


def _open(check: Check, node: Node, part: str, hole: Unread) -> Finding:
    """A check that asked for a hole: unknown, or not looked at where that is no more than a right nobody has."""
    if check.optional and hole.needs:
        return not_allowed(check.code, _subject(check, node, part), hole, check.optional)
    return unread(check.code, _subject(check, node, part), hole)


def _why_not(check: Check, node: Node) -> str:
    """Why a check does not apply to a node; empty if it does."""
    reason = CONDITIONS[check.when](node)
    if reason:
        return reason
    missing = [fact for fact in check.needs if node.expect.get(fact) is None]
    return f"no number to compare with: nothing says {missing[0]} of {node.expect.size}" if missing else ""


def _fold(well: list[tuple[str, Outcome]]) -> Outcome:
    """Parts that are well, as one: `8 x 400 Gb/s`."""
    if len(well) == 1:
        return well[0][1]
    counts: dict[str, int] = {}
    for _, outcome in well:
        counts[outcome.message] = counts.get(outcome.message, 0) + 1
    texts = [f"{num} x {text}" for text, num in sorted(counts.items(), key=lambda item: -item[1])[:4]]
    more = ["..."] if len(counts) > 4 else []
    return Outcome(Verdict.PASS, "; ".join(texts + more), {"parts": [part for part, _ in well]})


def _subject(check: Check, node: Node, part: str) -> Subject:
    name = node.facts.node
    return (
        Subject(kind=SCOPES[check.scope].kind, nodes=(name,), name=part)
        if part
        else Subject(kind="node", nodes=(name,))
    )


def _finding(check: Check, node: Node, part: str, outcome: Outcome) -> Finding:
    verdict = outcome.verdict or check.severity
    is_calm = verdict in (Verdict.PASS, Verdict.SKIP)
    assumed = node.assumptions() if verdict is not Verdict.SKIP else []
    return Finding(
        code=check.code,
        verdict=verdict,
        subject=_subject(check, node, part),
        message="; assuming that ".join((outcome.message, *assumed)),
        evidence=() if is_calm else evidence(node.facts),
        remedy="" if is_calm else _remedy(check.remedy, node, part),
        data={**outcome.data, "assumes": assumed} if assumed else outcome.data,
    )


def _remedy(text: str, node: Node, part: str) -> str:
    return text.replace("{node}", node.facts.node or "the node").replace("{part}", part)


def evidence(facts: Facts) -> tuple[Evidence, ...]:
    """What was read, as read. Of a table, its names, unless something below it was read too."""
    last_first = sorted(facts.read.items(), reverse=True, key=lambda item: item[0])
    shown: dict[tuple[str, ...], str] = {}
    below: tuple[str, ...] = ()
    for keys, value in last_first:
        if below[: len(keys)] != keys:
            shown[keys] = _text(value)
        below = keys
    found = tuple(Evidence(facts.source(keys), shown[keys]) for keys in facts.read if keys in shown)
    return found[-MAX_EVIDENCE:]


def _text(value: Any) -> str:
    if isinstance(value, dict | list):
        return ", ".join(str(v) for v in value)[:300] or "none"
    return str(value)[:300]


def read_by(check: Check, node: Node) -> set[tuple[str, ...]]:
    """Every fact a check reads on a node, by its keys: what its verdict rests on."""
    node.begin()
    seen: set[tuple[str, ...]] = set()
    try:
        if not _why_not(check, node):
            parts = SCOPES[check.scope].parts(node)
            seen |= set(node.facts.read)
            for part, hole in parts.items():
                node.begin()
                if hole is None:
                    check.rule(node, part)
                seen |= set(node.facts.read)
    except Unread:
        pass
    return seen | set(node.facts.read)

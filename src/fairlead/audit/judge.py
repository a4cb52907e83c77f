"""Judging an audit: the rules of `checks` over facts of nodes, and each NIC's path as a table. Pure.

No rule about a node stands here. A log alone is judged by the checks that a log can answer; the others are left out, as
nothing was asked that they could answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fairlead.checks import judge
from fairlead.checks.audits import AUDIT_BY_CODE, EVERY, OF_A_LOG
from fairlead.checks.datapath import Path
from fairlead.checks.expect import Expect, expect_of
from fairlead.checks.node import Node
from fairlead.checks.rates import judge_rates
from fairlead.checks.rules.accel import log_paths
from fairlead.checks.skews import AUDIT_SKEWS, SKEWS
from fairlead.records.facts import Facts, NodeFacts, Unread
from fairlead.records.finding import Finding
from fairlead.records.runs import Run
from fairlead.records.verdict import Verdict
from fairlead.spec.loader import load
from fairlead.spec.model import Spec


def judge_audit(facts: Sequence[NodeFacts], spec: Spec) -> list[Finding]:
    """Today's findings about nodes."""
    return judge(facts, spec, checks=EVERY, skews=(*SKEWS, *AUDIT_SKEWS))


def judge_log(record: NodeFacts, spec: Spec) -> list[Finding]:
    """What a log alone tells. A check for which the log holds no line of the right kind is left out."""
    found = judge([record], spec, checks=[AUDIT_BY_CODE[code] for code in AUDIT_BY_CODE if code in OF_A_LOG])
    readers = tuple(record.facts)
    return [f for f in found if f.verdict is not Verdict.UNKNOWN or str(f.data.get("path", "x")).startswith(readers)]


def judge_pairs(before: Sequence[NodeFacts], after: Sequence[NodeFacts], spec: Spec) -> list[Finding]:
    """What counters did between two readings of the same nodes; nothing without a first."""
    earlier = {record.node: record for record in before}
    findings: list[Finding] = []
    for record in after if earlier else ():
        pool = next((p for p in spec.pools if record.node in p.nodes), None)
        expect = expect_of(spec, pool) if pool else Expect()
        if record.node in earlier:
            findings += judge_rates(earlier[record.node], record, expect)
    return findings


def rejudge(run: Run) -> list[Finding] | None:
    """Today's findings of an earlier audit, from its run folder alone."""
    facts = run.facts()
    if not facts:
        return None
    spec = load(run.path / "spec.toml")
    earlier = run.read("earlier.json", list[NodeFacts]) if (run.path / "earlier.json").exists() else []
    return judge_audit(facts, spec) + judge_pairs(earlier, facts, spec)


def tell(facts: Sequence[NodeFacts], spec: Spec | None = None) -> dict[str, dict[str, Any]]:
    """Node -> NIC -> `path` (vf, synthetic), `windows` of revocations, `changes` of the path without one."""
    expects = {pool.name: expect_of(spec, pool) for pool in spec.pools} if spec else {}
    told: dict[str, dict[str, Any]] = {}
    for record in facts:
        node = Node(Facts(record), next(iter(expects.values()), Expect()))
        try:
            found = log_paths(node)
        except Unread:
            continue
        if found:
            told[record.node] = {nic: _row(path) for nic, path in sorted(found.items())}
    return told


def _row(path: Path) -> dict[str, Any]:
    return {
        "path": None if path.on_vf is None else "vf" if path.on_vf else "synthetic",
        "since_s": path.since_s,
        "boot_changes": path.num_boot,
        "windows": [w.as_data() for w in path.windows if w.is_revoked],
        "changes": [w.as_data() for w in path.windows if not w.is_revoked],
    }


def revocation_rows(told: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str, str, str, str]]:
    """A line for each time without a virtual function: node, NIC, from, to, for how long."""
    rows = []
    for node, nics in told.items():
        for nic, row in nics.items():
            for window in row["windows"]:
                end, took = window["end_s"], window["duration_s"]
                rows.append(
                    (
                        node,
                        nic,
                        f"{window['start_s']:.3f} s",
                        "not back" if end is None else f"{end:.3f} s",
                        "" if took is None else f"{took:.3f} s",
                    )
                )
    return rows

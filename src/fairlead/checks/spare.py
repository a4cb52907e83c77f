"""RDMA ports that are down and may be in nobody's use: what other nodes do with the same port decides. Pure.

A node by itself cannot know: as many ports as it should have are active, or nobody said how many those are. A port that
another node of the pool has up is one that this node lacks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from msgspec.structs import replace

from fairlead.base.nodeset import fold
from fairlead.checks.hcas import choose, is_active
from fairlead.checks.node import Node
from fairlead.records.facts import Unread
from fairlead.records.finding import Finding
from fairlead.records.verdict import Verdict

MAYBE_UNUSED = "maybe_unused"


def judge_spare(findings: Sequence[Finding], nodes: Sequence[Node]) -> list[Finding]:
    """The same findings, where a port that may be spare is a fault if the pool uses it elsewhere."""
    if not any(f.data.get(MAYBE_UNUSED) for f in findings):
        return list(findings)
    pool = {node.facts.node: node.expect.pool for node in nodes}
    used: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for node in nodes:
        for port in _active(node):
            used[node.expect.pool, port].append(node.facts.node)
    return [
        _beside(f, used[pool[f.subject.nodes[0]], f.subject.name]) if f.data.get(MAYBE_UNUSED) else f for f in findings
    ]


def _beside(finding: Finding, users: Sequence[str]) -> Finding:
    if not users:
        return finding
    return replace(finding, verdict=Verdict.FAIL, message=f"{finding.message}; on {fold(users)} it is active")


def _active(node: Node) -> list[str]:
    node.begin()
    try:
        return [port for port in choose(node).chosen if is_active(node, port)]
    except Unread:
        return []

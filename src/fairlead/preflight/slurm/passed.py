"""Whether a node that was drained for a code has passed since: on positive evidence alone. Pure.

No finding against a node is not enough, for the check may not have run: a health program that looks at one node says
nothing of its links. So a check of the same kind must have been made on the node, and must have found nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.base.nodeset import NodeSet
from fairlead.records.finding import Finding
from fairlead.records.verdict import Verdict

PAIR_CODES = frozenset(
    {
        "preflight/clock-skew",
        "preflight/dead-path",
        "preflight/late-link",
        "preflight/mtu",
        "preflight/no-address",
        "preflight/node-lost",
        "preflight/packet-loss",
        "preflight/slow-link",
        "preflight/slow-node",
        "preflight/tcp",
        "preflight/unreachable",
    }
)
"""What the pair phase finds."""
_COMPARED = ("host/clock-skew", "gpu/shared")
"""With the whole room `skew`: checks that hold nodes side by side, and speak of those alone that differ."""
_OF_SLURM = ("preflight/gres",)
_AGAINST = (Verdict.FAIL, Verdict.UNKNOWN)
_JUDGED = (Verdict.PASS, Verdict.WARN, Verdict.FAIL)


def why_not_passed(node: str, code: str, findings: Sequence[Finding]) -> str:
    """Why a node cannot be said to have passed what it was drained for; empty where it has."""
    against = [f for f in findings if f.verdict in _AGAINST and node in f.subject.nodes]
    if against:
        worst = next((f for f in against if f.verdict is Verdict.FAIL), against[0])
        return f"{worst.code} is {worst.verdict} now"
    if any(f.code == code and f.verdict is Verdict.WARN and node in f.subject.nodes for f in findings):
        return "it is a warning now"
    return "" if _was_tested(node, code, findings) else "this run did not test that on it"


def _was_tested(node: str, code: str, findings: Sequence[Finding]) -> bool:
    room = code.partition("/")[0]
    if code in PAIR_CODES:
        return any(
            f.code == "preflight/pairs" and f.verdict is not Verdict.UNKNOWN and _names(f, node) for f in findings
        )
    if room == "preflight" and code not in _OF_SLURM:
        return any(f.code == "preflight/collective" and f.verdict is Verdict.PASS and _names(f, node) for f in findings)
    own = {f.code for f in findings if f.verdict is Verdict.PASS and f.subject.nodes == (node,)}
    if room in ("probe", "cluster") or code in _OF_SLURM:
        return bool(own)
    if room == "skew" or code in _COMPARED:
        return bool(own) and any(f.code == code and f.verdict in _JUDGED for f in findings)
    return code in own


def _names(finding: Finding, node: str) -> bool:
    """Whether a summary says that a node took part."""
    return node in NodeSet(str(finding.data.get("nodes", "")))

"""What the gate tells of itself, into `log.jsonl` and with `-v` on stderr: by which numbers it judges, who takes no
further part and why, what was found.

It decides nothing: everything told here was decided elsewhere.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from fairlead.base.nodeset import NodeSet
from fairlead.base.rooms import brought, load
from fairlead.records.finding import Finding, Subject
from fairlead.records.log import tell
from fairlead.records.report import is_own
from fairlead.records.verdict import Verdict

if TYPE_CHECKING:
    from fairlead.records.limit import Limit
    from fairlead.spec.model import Spec

log = logging.getLogger("fairlead.preflight")
_JUDGE_HERE = ("fairlead.checks.", "fairlead.preflight.")


def tell_limits(spec: Spec) -> None:
    """Every number that the gate judges by, with its source; nothing is worked out where nobody listens."""
    if not log.isEnabledFor(logging.DEBUG):
        return
    for target in brought("limits"):
        if target.startswith(_JUDGE_HERE):
            for limit in load(target)(spec):
                _tell_limit(limit)


def _tell_limit(limit: Limit) -> None:
    tell(
        log,
        f"limit {limit.name}",
        level=logging.DEBUG,
        judges=limit.judges,
        value=limit.value,
        unit=limit.unit,
        source=limit.source,
        holds_for=limit.holds_for,
        key=limit.key,
    )


def tell_usable(stage: str, asked: NodeSet, usable: NodeSet, findings: Sequence[Finding]) -> None:
    """Who goes on to a stage, and for each who does not, what it is left out for."""
    for name in asked - usable:
        against = next((f for f in findings if _is_against(f, name)), None)
        why = f"{against.code}: {against.message}" if against else "it gave no answer, or Slurm gives it no work"
        tell(log, f"left out of {stage}: {why}", node=name, code=against.code if against else "")
    tell(log, f"{stage} on {len(usable)} of {len(asked)} nodes", nodes=str(usable))


def tell_findings(findings: Iterable[Finding]) -> None:
    """What is not well, as it is judged in the end."""
    for f in findings:
        if f.verdict in (Verdict.FAIL, Verdict.UNKNOWN, Verdict.WARN):
            level = logging.INFO if f.verdict is Verdict.WARN else logging.WARNING
            where = f.subject.nodes[0] if len(f.subject.nodes) == 1 else ""
            tell(log, f"{f.verdict}: {f.message}", level=level, node=where, code=f.code, subject=str(f.subject))


def _is_against(finding: Finding, name: str) -> bool:
    is_about: Subject = finding.subject
    return finding.verdict is Verdict.FAIL and name in is_about.nodes and (is_own(is_about) or is_about.kind == "pair")

"""What the ranks show because of something larger, which is no accusation of any of them. Pure.

Ranks that hang where a plane of the fabric swallows their packets come late, or give up, by the chance of which flow
took which plane; a job of a wrong shape has no place for all ranks. Only the cause is to be said.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fairlead.records.finding import Finding, Subject
from fairlead.records.verdict import Verdict

_OF_A_SLOW_FABRIC = frozenset(
    {"preflight/rank-late", "preflight/collective-failed", "preflight/straggler", "preflight/slow-rail"}
)
_OF_A_DEAD_FABRIC = _OF_A_SLOW_FABRIC | {"preflight/rank-error", "preflight/dead-rail"}
"""Not those that died or were stopped: no packet lost on the fabric does that."""
_OF_A_FABRIC = {
    "preflight/unreachable": _OF_A_DEAD_FABRIC,
    "preflight/mtu": _OF_A_DEAD_FABRIC,
    "preflight/dead-path": _OF_A_DEAD_FABRIC,
    "preflight/packet-loss": _OF_A_DEAD_FABRIC,
    "preflight/slow-link": _OF_A_SLOW_FABRIC,
}
"""What ails a part that many nodes share -> what then follows from it. Nothing follows from clocks that differ."""
_OF_A_WRONG_JOB = frozenset({"preflight/no-ranks", "preflight/rank-missing", "preflight/rank-count"})


def without_consequences(ranks: Sequence[Finding], larger: Iterable[Finding]) -> list[Finding]:
    """Findings of the ranks, those left out that follow from one of `larger`; one line says that they were."""
    fails = [f for f in larger if f.verdict is Verdict.FAIL]
    shared = [f for f in fails if f.subject.kind in ("plane", "cluster", "link") and f.code in _OF_A_FABRIC]
    sick = max(shared, key=lambda f: len(_OF_A_FABRIC[f.code]), default=None)
    misshapen = next((f for f in fails if f.code == "preflight/rank-count"), None)
    left, why = list(ranks), ""
    for cause, codes in ((sick, _OF_A_FABRIC[sick.code] if sick else frozenset()), (misshapen, _OF_A_WRONG_JOB)):
        if cause is not None and any(f.code in codes for f in left):
            left = [f for f in left if f.code not in codes]
            why = f"not judged: the ranks failed because of {cause.code}, {cause.subject}"
    if why:
        job = Subject(kind="job")
        left.append(Finding(code="preflight/collective", verdict=Verdict.SKIP, subject=job, message=why))
    return left

"""Preflight: the gate before an expensive job. A go or no-go in seconds, with the guilty part named.

run(cluster, spec, folder)        nodes, pairs, ranks; returns a PreflightReport
judge_all(evidence)               today's rules over what an earlier run has read
text_of(report), page_of(report)  its faces

Names are loaded when they are first used: who reads `[preflight]` in a cluster file needs none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.base.lazy import lazy

if TYPE_CHECKING:
    from fairlead.preflight.evidence import Evidence, judge_all, read_evidence
    from fairlead.preflight.faces import UNFINISHED, lists, text_of
    from fairlead.preflight.gate import run
    from fairlead.preflight.nodes.probing import Progress
    from fairlead.preflight.page import page_of
    from fairlead.preflight.report import PreflightReport

__getattr__ = lazy(
    __name__,
    {
        "evidence": ("Evidence", "judge_all", "read_evidence"),
        "faces": ("UNFINISHED", "lists", "text_of"),
        "gate": ("run",),
        "nodes.probing": ("Progress",),
        "page": ("page_of",),
        "report": ("PreflightReport",),
    },
)

__all__ = [
    "UNFINISHED",
    "Evidence",
    "PreflightReport",
    "Progress",
    "judge_all",
    "lists",
    "page_of",
    "read_evidence",
    "run",
    "text_of",
]

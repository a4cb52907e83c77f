"""Preflight: the gate before an expensive job. A go or no-go in seconds, with the guilty part named.

run(cluster, spec, folder)     nodes, pairs, ranks; returns a Report
judge_all(evidence)            today's rules over what an earlier run has read
text_of(report), page(report)  its faces
"""

from __future__ import annotations

from fairlead.preflight.faces import lists, text_of
from fairlead.preflight.gate import Evidence, judge_all, read_evidence, run
from fairlead.preflight.nodes import Progress
from fairlead.preflight.page import page
from fairlead.preflight.report import Report, headline

__all__ = [
    "Evidence",
    "Progress",
    "Report",
    "headline",
    "judge_all",
    "lists",
    "page",
    "read_evidence",
    "run",
    "text_of",
]

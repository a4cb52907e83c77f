"""A step of ranks that Slurm itself ended: heard from what srun and slurmstepd say of it. Pure.

What then becomes of its ranks says nothing of them: all are killed, or, where a node failed, all but that node's.

Sources: _handle_signal_container() in src/slurmd/slurmstepd/req.c, _node_fail_handler() in src/api/step_launch.c.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_CANCELLED = re.compile(r"\*\*\* (?:STEP|JOB) \S+ ON \S+ CANCELLED AT \S+?(?: DUE TO ([^*,]+?))?(?:,[^*]*)? \*\*\*")
_FAILED = re.compile(r"srun: error: Node failure on (\S+)")
_MEMORY = re.compile(r"\*\*\* (?:STEP|JOB) \S+ ON (\S+) UNCORRECTABLE MEMORY ERROR")


class Cut(NamedTuple):
    """Why Slurm ended a step."""

    why: str
    nodes: str = ""
    """Folded, of those it lays the fault to; empty: to none."""


def cut(text: str) -> Cut | None:
    """What a line says of it; None for any other line.

    >>> cut("slurmstepd: error: *** STEP 17.5 ON n1 CANCELLED AT 2026-11-22T15:00:00 DUE TO TIME LIMIT ***")
    Cut(why='time limit', nodes='')
    >>> cut("srun: error: Node failure on n3")
    Cut(why='node failure', nodes='n3')
    >>> cut("srun: error: n1: task 3: Killed")
    """
    if found := _FAILED.search(text):
        return Cut("node failure", found[1])
    if found := _MEMORY.search(text):
        return Cut("uncorrectable memory error", found[1])
    if found := _CANCELLED.search(text):
        return Cut((found[1] or "cancelled").strip().lower())
    return None

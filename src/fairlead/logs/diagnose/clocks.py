"""How far apart clocks may be: what the controller and a node both tell of bounds it from both sides. Pure.

slurmctld starts a job before a node launches it, and a node is done with it before slurmctld calls it done. So the
offset of the node's clock is at most `launched(node) - started(controller)`, and at least `done(node) -
done(controller)`. Where nothing is told, clocks are within `clock_s` of each other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from fairlead.logs.diagnose.model import Job, Line
from fairlead.logs.diagnose.places import Places

_STARTED = re.compile(r"(?:sched: Allocate|_start_job: Started|Allocate) JobId=(\d+)\b")
_DONE = re.compile(r"_job_complete: JobId=(\d+) done")
_LAUNCHED = re.compile(r"(?:[Ll]aunch(?:ing)? (?:task|batch job|StepId=)\D{0,12}|[Ll]aunched task StepId=)(\d+)")
_LEFT = re.compile(r"\[(\d+)\.\w+\] done with (?:job|step)|\[(\d+)\.\w+\] sending REQUEST_COMPLETE")
WORDS = (
    "sched: Allocate",
    "_start_job: Started",
    "_job_complete: JobId",
    "aunch task",
    "aunching batch job",
    "aunched task",
    "done with",
    "REQUEST_COMPLETE",
)
"""What lines that bound a clock hold, for whoever reads a store."""


class Offset(NamedTuple):
    """A clock minus the controller's, in nanoseconds, at least and at most."""

    least: int
    most: int
    known: bool = False

    @property
    def middle(self) -> int:
        """What is taken off a time of that clock."""
        return (self.least + self.most) // 2 if self.known else 0

    @property
    def half(self) -> int:
        """How wrong the corrected time may be."""
        return (self.most - self.least) // 2 + 1 if self.known else max(-self.least, self.most)


def offsets(job: Job, lines: Iterable[Line], places: Places, clock_ns: int) -> dict[str, Offset]:
    """Of each node of the job."""
    started = done = None
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for line in lines:
        if line.time_from != "line":
            continue
        if line.table == "slurmctld_raw_CL":
            if _is(_STARTED, line, job):
                started = max(started or line.time_ns, line.time_ns)  # the newest start of a requeued job
            elif _is(_DONE, line, job):
                done = line.time_ns
        elif line.table == "slurmd_raw_CL" and (node := places.node(line.node)):
            if _is(_LAUNCHED, line, job):
                first[node] = min(first.get(node, line.time_ns), line.time_ns)
            elif _is(_LEFT, line, job):
                last[node] = max(last.get(node, line.time_ns), line.time_ns)
    return {node: _of(first.get(node), last.get(node), started, done, clock_ns) for node in job.nodes}


def _of(launched: int | None, left: int | None, started: int | None, done: int | None, clock_ns: int) -> Offset:
    most = launched - started if launched is not None and started is not None else None
    least = left - done if left is not None and done is not None else None
    if most is not None and least is not None and least <= most:
        return Offset(max(least, most - 60 * 10**9), most, known=True)
    if most is not None and most < 0:
        return Offset(most - clock_ns, most, known=True)
    if least is not None and least > 0:
        return Offset(least, least + clock_ns, known=True)
    return Offset(-clock_ns, clock_ns)


def _is(pattern: re.Pattern[str], line: Line, job: Job) -> bool:
    found = pattern.search(line.text[:1000])
    return found is not None and str(job.id) in found.groups()

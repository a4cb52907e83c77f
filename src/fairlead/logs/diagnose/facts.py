"""What accounting says of a job, from records of sacct, else from slurmctld's own words. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from fairlead.base.nodeset import expand
from fairlead.base.units import whole
from fairlead.errors import UsageError
from fairlead.logs.diagnose.model import Job
from fairlead.logs.eventtime import Clock, event_ns

_TIMES = ("End", "Start", "Submit")
_MOST_TASKS = 10_000_000


def job_of(said: Mapping[str, str], shift_ns: int = 0) -> Job | None:
    """A job from the columns of sacct --parsable2 (sacct(1)); `shift_ns` is added to times, as they carry no zone."""
    start = _time(said.get("Start", ""), shift_ns)
    number = whole(said.get("JobID", "").partition(".")[0].partition("_")[0])
    try:
        nodes = tuple(expand(said.get("NodeList", "")))
    except UsageError:
        return None
    if start is None or not nodes or number is None:
        return None
    return Job(
        id=number,
        nodes=nodes,
        start_ns=start,
        end_ns=_time(said.get("End", ""), shift_ns),
        state=said.get("State", ""),
        exit_code=said.get("ExitCode", ""),
        num_tasks=_tasks(said),
        name=said.get("JobName", ""),
    )


def shift_of(said: Mapping[str, str], time_ns: int) -> int:
    """What the zone of its import added to times: the time of a record is the first of its columns that is one."""
    for name in _TIMES:
        if (found := _time(said.get(name, ""), 0)) is not None:
            return time_ns - found
    return 0


def _time(text: str, shift_ns: int) -> int | None:
    found = event_ns("iso", text, Clock())
    has_zone = text.endswith("Z") or "+" in text
    return None if found is None else found + (0 if has_zone else shift_ns)


def _tasks(said: Mapping[str, str]) -> int:
    num = whole(said.get("NTasks"))
    return num if num is not None and num < _MOST_TASKS else 0


_BEGAN = re.compile(r"(?:sched: )?Allocate JobId=(\d+) NodeList=(\S+)|Started JobId=(\d+) in \S+ on (\S+)")
_ENDED = (
    ("TIMEOUT", re.compile(r"Time limit exhausted for JobId=(\d+)\b")),
    ("PREEMPTED", re.compile(r"preempted JobId=(\d+)\b")),
    ("OUT_OF_MEMORY", re.compile(r"JobId=(\d+) OOM failure")),
    ("NODE_FAIL", re.compile(r"requeue job JobId=(\d+) due to|Killing JobId=(\d+) on failed|requeue JobId=(\d+) due")),
    ("CANCELLED", re.compile(r"REQUEST_KILL_JOB JobId=(\d+)\b")),
    ("FAILED", re.compile(r"_job_complete: JobId=(\d+) W(?:EXITSTATUS [1-9]|TERMSIG)")),
    ("COMPLETED", re.compile(r"_job_complete: JobId=(\d+) WEXITSTATUS 0\b")),
)
_DONE = re.compile(r"_job_complete: JobId=(\d+) done")


def job_from_controller(number: int, lines: Iterable[tuple[int, str]]) -> Job | None:
    """A job from lines of slurmctld, (time, text), in their order. A requeued job: its last run that began."""
    job: Job | None = None
    for time_ns, text in lines:
        if (found := _BEGAN.search(text)) and str(number) in found.groups():
            try:
                nodes = tuple(expand((found[2] or found[4]).rstrip(",")))
            except UsageError:
                continue
            job = Job(number, nodes, time_ns, None)
        elif job is not None:
            state = next((name for name, p in _ENDED if (m := p.search(text)) and str(number) in m.groups()), "")
            done = _DONE.search(text)
            if state and not job.state:
                job = Job(job.id, job.nodes, job.start_ns, time_ns, state)
            elif done and done[1] == str(number):
                job = Job(job.id, job.nodes, job.start_ns, time_ns, job.state)
    return job

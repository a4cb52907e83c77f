"""What a store of logs knows of a job: its facts, the lines that may mean something, how far its output went on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Protocol

from fairlead.errors import FairleadError
from fairlead.logs.diagnose.clocks import WORDS
from fairlead.logs.diagnose.events import NS
from fairlead.logs.diagnose.facts import job_from_controller, job_of, shift_of
from fairlead.logs.diagnose.model import Evidence, Job, Line, Progress, Rank, Told
from fairlead.logs.diagnose.places import short
from fairlead.logs.diagnose.signatures import signatures
from fairlead.logs.diagnose.table import table
from fairlead.logs.diagnose.unusual import Template
from fairlead.logs.kql.sql.text import quoted

MOST_LINES = 200_000
_OF_A_KIND = 2000
"""Lines of one file with the same literal that are looked at: the first ones."""
_OUTPUT, _CONTROLLER = "'slurmjobs_raw_CL'", "'slurmctld_raw_CL'"
_STEP = r"\b([Ss]tep|[Ii]ter(ation)?s?|[Ee]poch|[Bb]atch|global_step)\b[^A-Za-z0-9]{0,8}[0-9]+|\b(it/s|s/it|tokens/s)"
_COUNT = r"\b(?:[Ss]tep|[Ii]ter(?:ation)?s?|[Ee]poch|[Bb]atch|global_step)\b[^A-Za-z0-9]{0,8}[0-9.]+|[0-9]+/[0-9]+"
_NO_STEP = r"(?i)error|exception|traceback|slurmstepd|srun:|watchdog|nccl|cancelled|warn"
_FEW = 4
"""So many steps behind an error are what other ranks still wrote. A step counts once, where it was first told: ranks
whose output is not told apart each print it, and a slow one does so after another has ended."""


class Engine(Protocol):
    """Whatever answers SQL of ClickHouse."""

    def rows(self, sql: str) -> Iterator[list[Any]]:
        """The rows of a SELECT."""


def find_job(engine: Engine, number: int, at_ns: int | None = None) -> Job:
    """The facts of a job. Of several runs (requeued): the one that was there at a time, else the last that did not end
    well, else the last. Raises FairleadError (`logs/no-job`).
    """
    records = "SELECT toUnixTimestamp64Nano(TimeGenerated), Fields FROM Logs WHERE SourceTable = 'sacct_CL'"
    found: dict[int, Job] = {}
    for time_ns, fields in engine.rows(f"{records} AND JobId = {int(number)} ORDER BY TimeGenerated, Offset"):
        said = fields if isinstance(fields, dict) else json.loads(fields)
        job = job_of(said, shift_of(said, time_ns))
        if job is None or job.id != number:
            continue
        known = found.get(job.start_ns)
        whole = "." not in said.get("JobID", "")
        if known is None or whole:
            job = job if job.num_tasks or known is None else replace(job, num_tasks=known.num_tasks)
            found[job.start_ns] = job
        elif job.num_tasks > known.num_tasks and job.nodes == known.nodes:
            found[job.start_ns] = replace(known, num_tasks=job.num_tasks)
    if not found:
        lines = (
            "SELECT toUnixTimestamp64Nano(TimeGenerated), substring(RawData, 1, 1000) FROM Logs "  # noqa: S608
            f"WHERE SourceTable = {_CONTROLLER} AND JobId = {int(number)} ORDER BY TimeGenerated, Offset"
        )
        told = job_from_controller(number, ((row[0], row[1]) for row in engine.rows(lines)))
        if told is None:
            raise FairleadError(
                "logs/no-job", f"the store knows no job {number}: no record of sacct, no word of slurmctld",
                hint="fairlead logs import sacct.txt slurmctld.log",
            )  # fmt: skip
        found[told.start_ns] = told
    runs = sorted(found.values(), key=lambda job: job.start_ns)
    if at_ns is not None:
        there = [job for job in runs if job.start_ns <= at_ns <= (job.end_ns or at_ns) + 60 * NS]
        return (there or runs)[-1]
    return next((job for job in reversed(runs) if not job.ended_well), runs[-1])


def gather(
    engine: Engine, job: Job, now_ns: int, *, findings: Iterable[Told] = (), dumps: tuple[Rank, ...] = ()
) -> Evidence:
    """The evidence about a job."""
    return Evidence(job, tuple(_lines(engine, job, now_ns)), _progress(engine, job), tuple(findings), dumps)


def _time(time_ns: int) -> str:
    return f"fromUnixTimestamp64Nano(toInt64({time_ns}), 'UTC')"


def _between(job: Job, now_ns: int, lead_s: float, tail_s: float) -> str:
    first, last = job.start_ns - int(lead_s * NS), (job.end_ns or now_ns) + int(tail_s * NS)
    return f"TimeGenerated BETWEEN {_time(first)} AND {_time(last)}"


def _of_nodes(job: Job) -> str:
    names = ", ".join(quoted(name) for name in job.nodes)
    shorts = ", ".join(quoted(short(name)) for name in job.nodes)
    return f"(Computer IN ({names}) OR splitByChar('.', Computer)[1] IN ({shorts}))"


def _of_job(job: Job) -> str:
    """Its output: the files whose names have its number, and what says the number itself."""
    name = "arrayElement(splitByChar('/', FilePath), -1)"
    inside = quoted(rf"(^|[^0-9]){job.id}([^0-9]|$)")
    ours = f"(match({name}, {inside}) OR JobId = {job.id})"
    return f"SourceTable = {_OUTPUT} AND {ours} AND NOT endsWith({name}, '.env')"


def _needles(words: Iterable[str]) -> str:
    return "[" + ", ".join(quoted(word) for word in dict.fromkeys(words)) + "]"


_COLUMNS = (
    "toUnixTimestamp64Nano(TimeGenerated), TimeFrom, Computer, SourceTable, Component, Fields['Rank'], JobId, "
    "FilePath, FileId, Offset, RawData"
)


def _lines(engine: Engine, job: Job, now_ns: int) -> Iterator[Line]:
    """Lines that hold a literal of a signature, of those who may say it."""
    limits = table().limits
    window = _between(job, now_ns, limits.lead_s, limits.tail_s)
    ours = _needles(word for each in signatures() if "job" in each.by for word in each.has)
    theirs = _needles([word for each in signatures() if set(each.by) - {"job"} for word in each.has] + list(WORDS))
    of_nodes = f"SourceTable NOT IN ({_CONTROLLER}, {_OUTPUT}, 'sacct_CL') AND {_of_nodes(job)}"
    parts = (
        (ours, _of_job(job)),
        (theirs, f"{window} AND SourceTable = {_CONTROLLER}"),
        (theirs, f"{window} AND {of_nodes}"),
    )
    for needles, which in parts:
        sql = (
            f"SELECT {_COLUMNS} FROM Logs WHERE {which} AND multiSearchAny(RawData, {needles}) "  # noqa: S608 - quoted
            f"ORDER BY TimeGenerated, FileId, Offset "
            f"LIMIT {_OF_A_KIND} BY FileId, multiSearchFirstIndex(RawData, {needles}), Fields['Xid'] LIMIT {MOST_LINES}"
        )
        for row in engine.rows(sql):
            yield Line(
                node=row[2], time_ns=row[0], text=row[10], table=row[3], time_from=row[1], component=row[4],
                rank=row[5], path=row[7], file_id=row[8], offset=row[9], job=row[6],
            )  # fmt: skip


def _progress(engine: Engine, job: Job) -> dict[tuple[int, str], Progress]:
    """Where the last lines that count steps stand, but for a few."""
    dated = "if(TimeFrom = 'line', toUnixTimestamp64Nano(TimeGenerated), 0)"
    step = f"arrayStringConcat(extractAll(RawData, {quoted(_COUNT)}), ' ')"
    steps = (
        f"SELECT FileId, Fields['Rank'] AS r, min(Offset) AS o, min({dated}) AS d "  # noqa: S608 - quoted
        f"FROM Logs WHERE {_of_job(job)} AND match(RawData, {quoted(_STEP)}) "
        f"AND NOT match(RawData, {quoted(_NO_STEP)}) GROUP BY FileId, r, if({step} = '', RawData, {step})"
    )
    sql = (
        f"SELECT FileId, r, arrayElement(arrayReverseSort(groupArray(o)), {_FEW}) AS p, "  # noqa: S608 - quoted
        f"arrayElement(arrayReverseSort(groupArray(d)), {_FEW}) FROM ({steps}) GROUP BY FileId, r HAVING p > 0"
    )
    return {(row[0], row[1]): Progress(row[2], row[3]) for row in engine.rows(sql)}


_MASKED = (
    r"\b(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec|Mon|Tue|Wed|Thu|Fri|Sat|Sun)\b|0x[0-9a-fA-F]+"
    r"|\b[0-9a-fA-F]*[0-9][0-9a-fA-F]*\b|[0-9]+"
)


def templates(engine: Engine, job: Job, now_ns: int, around_s: float = 900, before_s: float = 86_400) -> list[Template]:
    """Kinds of lines (numbers masked) of its nodes and of slurmctld that were not there in the day before: with how
    often, and the first of each.
    """
    since = max(job.start_ns, (job.end_ns or now_ns) - int(around_s * NS))
    masked = f"replaceRegexpAll(substring(RawData, 1, 400), {quoted(_MASKED)}, '#')"
    ours = f"({_of_nodes(job)} OR SourceTable = {_CONTROLLER}) AND SourceTable != 'sacct_CL'"
    inner = (
        f"SELECT {masked} AS t, toUnixTimestamp64Nano(TimeGenerated) AS p, Computer, Level, RawData FROM Logs "  # noqa: S608
        f"WHERE {_between(job, now_ns, before_s, 60)} AND {ours}"
    )
    sql = (
        f"SELECT t, count(), min(p), uniqExact(Computer), any(Computer), any(Level), argMin(RawData, p) FROM ({inner}) "  # noqa: S608
        f"GROUP BY t HAVING min(p) >= {since} ORDER BY 3, 1 LIMIT 200"
    )
    return [Template(*row) for row in engine.rows(sql)]

"""Findings of other runs of fairlead: read from run folders, with the time at which they were made."""

from __future__ import annotations

from pathlib import Path

from fairlead.errors import RunError
from fairlead.logs.diagnose.model import Told
from fairlead.logs.eventtime import Clock, event_ns
from fairlead.records.runs import Run, list_runs

_MOST_RUNS = 500


def told_by(place: Path) -> tuple[tuple[Told, ...], list[str]]:
    """All findings of the runs below a place that say something is not well, and which folders cannot be read."""
    found: list[Told] = []
    problems: list[str] = []
    for path in list_runs(place)[-_MOST_RUNS:]:
        try:
            run = Run(path)
            time_ns = event_ns("iso", run.info.end or run.info.start, Clock())
            if time_ns is None or not (path / "result.json").is_file():
                continue
            found += [Told(time_ns, path.name, each) for each in run.findings() if each.verdict in {"fail", "warn"}]
        except RunError as error:
            problems.append(str(error))
    return tuple(found), problems

"""Which runs there were: one line a run, which outlives the run's folder.

    runs/history.jsonl      beside the run folders; bounded, the oldest go first

Written by the command line when a run with a folder ends. For a stage that compares with how it went before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from fairlead.base.nodeset import fold
from fairlead.records.finding import Finding
from fairlead.records.journal import Journal
from fairlead.records.runs import RunInfo
from fairlead.records.verdict import Verdict

FILE = "history.jsonl"
_BAD = (Verdict.FAIL, Verdict.WARN, Verdict.UNKNOWN)
_LOCK_LIMIT_S = 0.5
"""A run's answer is there by now, and does not wait long for its line."""


class PastRun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One run that ended."""

    run: RunInfo
    """Its head, as its folder had it at the end."""
    nodes: str = ""
    """Everybody it was about, folded."""
    said: Mapping[str, Mapping[str, str]] = {}
    """Verdict -> code -> nodes, folded, of everything that was not well: `{"fail": {"ib/count": "n[1,3]"}}`."""


def past_run(info: RunInfo, *, nodes: str = "", findings: Iterable[Finding] = ()) -> PastRun:
    """A run as the history keeps it."""
    said: dict[str, dict[str, set[str]]] = {}
    for finding in findings:
        if finding.verdict in _BAD:
            said.setdefault(str(finding.verdict), {}).setdefault(finding.code, set()).update(finding.subject.nodes)
    folded = {verdict: {code: fold(names) for code, names in codes.items()} for verdict, codes in said.items()}
    return PastRun(run=info, nodes=nodes, said=folded)


def remember(place: Path, run: PastRun) -> bool:
    """Add a run to the history of a place; False where another run holds it. Raises DiskFull or NotPermitted."""
    return Journal(place / FILE, PastRun).add(run, limit_s=_LOCK_LIMIT_S)


def past_runs(place: Path, *, verb: str = "") -> list[PastRun]:
    """The runs that ended in a place, oldest first; only those of one verb if one is named."""
    return [past for past in Journal(place / FILE, PastRun).entries() if verb in ("", past.run.verb)]

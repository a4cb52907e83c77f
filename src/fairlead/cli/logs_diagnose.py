"""`fairlead logs diagnose`: why a job died, from the lines of its nodes."""

from __future__ import annotations

import contextlib
import datetime as dt
from pathlib import Path

import msgspec

from fairlead.base.files import write_atomic
from fairlead.cli.common import Common, SpecFile
from fairlead.cli.logs_import import keep_of
from fairlead.cli.output import Answer, session
from fairlead.errors import UsageError
from fairlead.logs.diagnose.choose import NOTHING
from fairlead.logs.diagnose.explain import Why, explained
from fairlead.logs.diagnose.faces import text, timeline
from fairlead.logs.diagnose.findings import told_by
from fairlead.logs.diagnose.flight import read_dumps
from fairlead.logs.diagnose.model import Diagnosis, Rank
from fairlead.logs.remote import remote_of
from fairlead.logs.store import LazyTables, default_place, is_store, place_of
from fairlead.records.verdict import Verdict
from fairlead.report.html import Code, Page, Section, page_html


def diagnose_(
    job: int,
    /,
    *,
    at: dt.datetime | None = None,
    dumps: Path | None = None,
    out: Path | None = None,
    store: Path | None = None,
    server: str = "",
    token_file: Path | None = None,
    authority: Path | None = None,
    spec: SpecFile = None,
    common: Common = Common(),
) -> Answer:
    """Why a job died: the cause with its line and node, what only followed, who only suffered, and what to do.

    Exit 3: a cause was found. 4: it is not in the logs. 0: the job ended well.

    Parameters
    ----------
    job
        Its number in Slurm.
    at
        When: for one of several runs of a requeued job, or a job that still runs. UTC unless it says a zone.
    dumps
        A folder with dumps of PyTorch's flight recorder, one file a rank (TORCH_NCCL_DEBUG_INFO_TEMP_FILE).
    out
        Write the timeline there: .svg, or .html with everything else.
    store
        The folder of the store; else the one in [logs] of the cluster file, or `logs` in the user's state directory.
        While `fairlead logs serve` has it, that is asked.
    server
        The URL of a `fairlead logs serve`, instead.
    token_file
        With --server: the file with its token.
    authority
        With an https:// server: certificates to trust, in PEM, instead of the system's.
    spec
        The cluster file, whose [logs] says where the store is; else FAIRLEAD_SPEC, or ./cluster.toml.
    """
    if out is not None and out.suffix not in {".svg", ".html"}:
        raise UsageError("cli/usage", f"{out.name} is neither .svg nor .html", hint="--out why.html")
    place = default_place() if server else place_of(store, keep_of(spec))
    remote = remote_of(store if server else place, server, token_file, authority)
    if remote is None and not is_store(place):
        raise UsageError("cli/usage", f"{place} holds no store of logs", hint="fairlead logs import /var/log")
    at_ns = int((at if at.tzinfo else at.replace(tzinfo=dt.UTC)).timestamp() * 1e6) * 1000 if at else None
    ranks = _dumps(dumps, job)
    findings, problems = told_by(session().runs_place(common.runs))
    for problem in problems:
        session().note(problem)
    why = Why(job=job, at_ns=at_ns, findings=findings, dumps=ranks)
    if remote is not None:
        found = remote.why(why)
    else:
        with contextlib.closing(LazyTables(place)) as opened:
            found = explained(opened.engine, why)
    if out is not None:
        _write(found, out)
    return Answer(
        schema="fairlead.logs-diagnose/1",
        text=lambda: text(found),
        verdict=Verdict.PASS if not found.what else Verdict.UNKNOWN if found.what == NOTHING else Verdict.FAIL,
        body={"diagnosis": msgspec.to_builtins(found)},
        hints=[f"fairlead explain diagnose/{found.what}"] if found.what else [],
    )


def _dumps(folder: Path | None, job: int) -> tuple[Rank, ...]:
    if folder is None:
        return ()
    found, problems = read_dumps(folder, job)
    for problem in problems:
        session().note(f"no dump of a flight recorder: {problem}")
    return found


def _write(found: Diagnosis, out: Path) -> None:
    command = " ".join(["fairlead", *session().argv])
    figure = timeline(found, command)
    if out.suffix == ".svg":
        write_atomic(out, figure.svg())
        return
    page = Page(
        title=f"Job {found.job}",
        verdict=Verdict.FAIL
        if found.what and found.what != NOTHING
        else Verdict.UNKNOWN
        if found.what
        else Verdict.PASS,
        headline=found.says,
        findings=found.cited,
        facts=[("state", found.state), ("nodes", ", ".join(found.nodes) or found.at), ("victims", found.victims)],
        next=[found.command] if found.command else [],
        sections=[Section("What happened", [figure, figure.table]), Section("In words", [Code(text(found))])],
        command=command,
    )
    write_atomic(out, page_html(page))

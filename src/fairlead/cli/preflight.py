"""`fairlead preflight`: the gate before an expensive job."""

from __future__ import annotations

import datetime as dt
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Group, Parameter

from fairlead import __version__
from fairlead.base.files import check_place, write_atomic
from fairlead.cli.common import Common, Exclude, Nodes, SpecFile, chosen
from fairlead.cli.output import Answer, session
from fairlead.errors import UsageError
from fairlead.records.finding import worst_first

if TYPE_CHECKING:
    from fairlead.preflight import PreflightReport
    from fairlead.preflight.slurm.act import Acted
    from fairlead.preflight.slurm.drain import DrainRules
    from fairlead.preflight.slurm.scontrol import Control
    from fairlead.records.runs import RunFolder
    from fairlead.records.verdict import Verdict
    from fairlead.spec.model import Spec

_SLURM = Group("Slurm", sort_key=20)
_HEALTH = Group("As a health program", sort_key=30)
_FILES = Group("More files", sort_key=40)
_Flag = Parameter(negative=())


def preflight(
    *,
    nodes: Nodes = None,
    exclude: Exclude = "",
    details: Annotated[bool, _Flag] = False,
    without_bad: Annotated[bool, _Flag] = False,
    inside: Annotated[bool, Parameter(group=_SLURM, negative=())] = False,
    drain: Annotated[bool, Parameter(group=_SLURM, negative=())] = False,
    undrain: Annotated[bool, Parameter(group=_SLURM, negative=())] = False,
    yes: Annotated[bool, Parameter(group=_SLURM, negative=())] = False,
    drain_on: Annotated[
        tuple[Literal["warn", "unknown"], ...], Parameter(group=_SLURM, negative=(), show_default=False)
    ] = (),
    drain_share: Annotated[float, Parameter(group=_SLURM)] = 0.1,
    here: Annotated[bool, Parameter(group=_HEALTH, negative=())] = False,
    prolog: Annotated[bool, Parameter(group=_HEALTH, negative=())] = False,
    every: Annotated[float, Parameter(group=_HEALTH)] = 0.0,
    jitter: Annotated[float, Parameter(group=_HEALTH)] = 0.0,
    limit: Annotated[float, Parameter(group=_HEALTH)] = 20.0,
    html: Annotated[Path | None, Parameter(group=_FILES)] = None,
    prom: Annotated[Path | None, Parameter(group=_FILES)] = None,
    spec: SpecFile = None,
    common: Common = Common(),
) -> Answer:
    """Test nodes, then the network between them, then a collective over all their GPUs; name what is guilty.

    The run folder holds good.nodes, bad.nodes and everything that was read. Exit codes: 0 go; 3 no-go; 4 something
    could not be judged.

    Parameters
    ----------
    details
        Show ranks, nodes, ports and message sizes in tables, too.
    without_bad
        Let the exit status speak of the nodes that are left once the bad ones are: 0 where a job with the run's
        `exclude` may start.
    inside
        Run inside the Slurm job this command is in, on its nodes: `srun fairlead preflight --inside`.
    drain
        Show which bad nodes would be drained in Slurm, and with what reason; with `--yes`, drain them.
    undrain
        Show which nodes that fairlead drained earlier have passed now; with `--yes`, give them back.
    yes
        Do what `--drain` and `--undrain` show.
    drain_on
        Drain for a warning too, or for what could not be judged.
    drain_share
        Drain nobody if more than this share of the cluster would then be drained by fairlead. One node always may be.
    here
        Judge only the node this runs on, alone: for Slurm's prolog, epilog or HealthCheckProgram.
    prolog
        With `--here`: end with 3 only where this node is bad and out of Slurm, with 0 otherwise, since Slurm drains a
        node whose prolog fails. A bad verdict that is only remembered is looked at again.
    every
        With `--here`: look at most once in this many seconds, and say what the last look found in between. Each node
        has its own place in the interval.
    jitter
        With `--here`: wait up to this many seconds before a look, each node another time.
    limit
        With `--here`: the longest a look may take, in seconds.
    html
        Also write the report as one HTML file.
    prom
        Also write metrics for Prometheus's node exporter to this file.
    spec
        The cluster file; else FAIRLEAD_SPEC, ./cluster.toml, or the lab.
    """
    rules = _rules(drain_on, drain_share, drain=drain, undrain=undrain)
    if yes and rules is None:
        raise UsageError("cli/usage", "--yes goes with --drain or --undrain", hint="fairlead preflight --drain --yes")
    for file in filter(None, (html, prom)):
        check_place(file)
    if here:
        from fairlead.cli.preflight_here import Wish
        from fairlead.cli.preflight_here import here as look
        from fairlead.preflight.nodes.here import Pace

        pace = Pace(every_s=every, jitter_s=jitter, limit_s=limit)
        return look(Wish(spec=spec, pace=pace, rules=rules, yes=yes, is_prolog=prolog, prom=prom, runs=common.runs))
    if every or jitter or prolog:
        hint = "fairlead preflight --help"
        raise UsageError("cli/usage", "--every, --jitter and --prolog go with --here", hint=hint)
    if inside and os.environ.get("SLURM_PROCID", "0") != "0":
        raise SystemExit(0)  # the first task does the work, and its exit status is the step's
    from fairlead.cluster import connect
    from fairlead.preflight import UNFINISHED, lists, run
    from fairlead.records.codec import builtins

    session_ = session()
    text, spec_ = _spec(spec, common, inside=inside)
    if inside:
        from fairlead.preflight.slurm.inside import within_job

        spec_ = within_job(spec_, os.environ, time.time())
    wanted = chosen(nodes, exclude, spec_.nodes)
    folder = session_.open_folder(common.runs, from_file=spec_.runs.dir, keep=spec_.runs.keep)
    folder.write("spec.toml", text)
    folder.write("exclude", UNFINISHED)
    with connect(
        spec_, folder=folder.path, recorder=lambda r: folder.append("commands.jsonl", builtins(r)), note=session_.note
    ) as cluster:
        report = run(
            cluster, spec_, folder, nodes=wanted, inside=inside, note=session_.note, progress=session_.progress
        )
        acted = _acted(report, folder, lambda argv: cluster.control(argv, limit_s=20.0), rules, yes=yes)
    for name, content in lists(report).items():
        folder.write(name, content)
    report = _with_history(report, spec_, folder)
    _more_files(report, folder, html, prom)
    status = _status(report.rest, common) if without_bad else None
    return _answer(report, acted, details=details, status=status)


def _status(verdict: Verdict, common: Common) -> int:
    """A verdict as the exit status the flags ask for."""
    from fairlead.records.verdict import exit_of, nagios_of

    as_number = nagios_of if common.exit == "nagios" else exit_of
    return int(as_number(verdict, warn_as_fail=common.warn_as_fail))


def _answer(report: PreflightReport, acted: Acted, *, details: bool, status: int | None) -> Answer:
    from fairlead.preflight import text_of
    from fairlead.report.text import paint_for

    hints = []
    if report.culprit is not None:
        hints.append(f"fairlead explain {report.culprit.code}")
    if report.exclude and report.good:
        hints.append(f"sbatch {report.exclude} JOB.sbatch")
    paint = paint_for(session().stdout)
    return Answer(
        schema="fairlead.preflight/1",
        verdict=report.verdict,
        text=lambda: "\n".join(filter(None, (text_of(report, paint, details=details), acted.text))),
        body={**report.body(), "slurm": acted.body},
        hints=hints,
        exit=status,
    )


def _spec(path: Path | None, common: Common, *, inside: bool) -> tuple[str, Spec]:
    """The cluster file as text and as read; inside a job without a file, what the job's environment says."""
    from fairlead.spec.loader import read

    if inside and not os.environ.get("SLURM_JOB_ID"):
        raise UsageError(
            "preflight/not-inside", "--inside is for use in a Slurm job", hint="srun fairlead preflight --inside"
        )
    if inside and path is None and not os.environ.get("FAIRLEAD_SPEC") and not Path("cluster.toml").exists():
        from fairlead.preflight.slurm.inside import spec_of_job

        return spec_of_job(os.environ)
    flags: dict[str, Any] = {"runs.dir": common.runs}
    if inside:
        flags["access.via"] = "slurm"
    loaded = read(path, flags=flags, or_lab=not inside)
    return loaded.text, loaded.spec


def _rules(on: tuple[str, ...], share: float, *, drain: bool, undrain: bool) -> DrainRules | None:
    """What may be done in Slurm; None for nothing."""
    if not 0 < share <= 1:
        raise UsageError("cli/usage", f"--drain-share {share:g} is not a share", hint="write 0.1 for a tenth")
    if not drain and not undrain:
        return None
    from fairlead.preflight.slurm.drain import DrainRules
    from fairlead.records.verdict import Verdict

    verdicts = frozenset({Verdict.FAIL, *(Verdict(word) for word in on)})
    return DrainRules(drains=drain, undrains=undrain, verdicts=verdicts, max_share=share)


def _acted(
    report: PreflightReport, folder: RunFolder, control: Control, rules: DrainRules | None, *, yes: bool
) -> Acted:
    """What `--drain` and `--undrain` did or would do; who the nodes are is written down first."""
    from fairlead.preflight.slurm.act import Acted, act
    from fairlead.preflight.slurm.identity import save_identity

    if rules is None:
        return Acted()

    def save(nodes: list[str]) -> None:
        save_identity(folder, nodes, report.facts)

    acted = act(report.findings, folder.info.id, control, rules, yes=yes, save=save)
    if acted.note:
        session().note(acted.note)
    return acted


def _with_history(report: PreflightReport, spec: Spec, folder: RunFolder) -> PreflightReport:
    """Add what earlier runs say of nodes; remember this one."""
    from dataclasses import replace

    from fairlead.errors import DiskFull, NotPermitted
    from fairlead.preflight.nodes import history as hist
    from fairlead.records.journal import state_place

    history, machines = hist.History(state_place(), spec.cluster.name), hist.machine_ids(report.facts)
    past = hist.of_these(history.entries(), machines)
    now, name = dt.datetime.now(dt.UTC), spec.cluster.name
    entry = hist.entry_of(folder.info.id, now, report.nodes, report.findings, cluster=name, machines=machines)
    try:
        if not history.add(entry):
            session().note("the history was not written: another fairlead holds it")
    except (DiskFull, NotPermitted) as error:
        session().note(f"the history was not written: {error}")
    findings = worst_first([*report.findings, *hist.judge_history(past, entry)])
    return replace(report, findings=tuple(findings), history=hist.failed_before(past, entry))


def _more_files(report: PreflightReport, folder: RunFolder, html: Path | None, prom: Path | None) -> None:
    if html is not None:
        from fairlead.preflight import page_of
        from fairlead.report.html import page_html

        command = " ".join(["fairlead", *session().argv])
        write_atomic(html, page_html(page_of(report, command=command, run_id=folder.info.id, version=__version__)))
    if prom is not None:
        from fairlead.report.prom import prom_text

        text = prom_text(
            report.findings,
            verb="preflight",
            cluster=report.spec.cluster.name,
            verdict=report.verdict,
            finished_s=time.time(),
            took_s=report.took_s,
            nodes={"good": len(report.good), "bad": len(report.bad)},
        )
        write_atomic(prom, text)

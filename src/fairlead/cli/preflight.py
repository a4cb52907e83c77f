"""`fairlead preflight`: the gate before an expensive job."""

from __future__ import annotations

import datetime as dt
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from cyclopts import Group, Parameter

from fairlead import __version__
from fairlead.base.files import check_place, write_atomic
from fairlead.cli.common import Common, Exclude, Nodes, SpecFile, chosen
from fairlead.cli.output import Answer, session
from fairlead.errors import UsageError
from fairlead.records.finding import Finding, worst_first

if TYPE_CHECKING:
    from fairlead.preflight import Report
    from fairlead.preflight.drain import DrainRules
    from fairlead.preflight.scontrol import Control
    from fairlead.records.runs import RunFolder
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
    inside: Annotated[bool, Parameter(group=_SLURM, negative=())] = False,
    drain: Annotated[bool, Parameter(group=_SLURM, negative=())] = False,
    undrain: Annotated[bool, Parameter(group=_SLURM, negative=())] = False,
    yes: Annotated[bool, Parameter(group=_SLURM, negative=())] = False,
    drain_on: Annotated[
        tuple[Literal["warn", "unknown"], ...], Parameter(group=_SLURM, negative=(), show_default=False)
    ] = (),
    drain_share: Annotated[float, Parameter(group=_SLURM)] = 0.1,
    here: Annotated[bool, Parameter(group=_HEALTH, negative=())] = False,
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
        return _here(spec, (every, jitter, limit), prom, rules, yes=yes)
    if every or jitter:
        raise UsageError("cli/usage", "--every and --jitter go with --here", hint="fairlead preflight --help")
    if inside and os.environ.get("SLURM_PROCID", "0") != "0":
        raise SystemExit(0)  # the first task does the work, and its exit status is the step's
    from fairlead.cluster import connect
    from fairlead.preflight import lists, run
    from fairlead.records.codec import builtins

    session_ = session()
    text, spec_ = _spec(spec, common, inside=inside)
    wanted = chosen(nodes, exclude, spec_.nodes)
    folder = session_.open_folder(common.runs, from_file=spec_.runs.dir, keep=spec_.runs.keep)
    folder.write("spec.toml", text)
    with connect(
        spec_, folder=folder.path, recorder=lambda r: folder.append("commands.jsonl", builtins(r)), note=session_.note
    ) as cluster:
        report = run(
            cluster, spec_, folder, nodes=wanted, inside=inside, note=session_.note, progress=session_.progress
        )
        drained = _drained(report, folder, lambda argv: cluster.control(argv, limit_s=20.0), rules, yes=yes)
    for name, content in lists(report).items():
        folder.write(name, content)
    report = _with_history(report, spec_, folder)
    _more_files(report, folder, html, prom)
    return _answer(report, drained, details=details)


def _answer(report: Report, drained: _Drained, *, details: bool) -> Answer:
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
        text=lambda: "\n".join([text_of(report, paint, details=details), *drained.text]),
        body={**report.body(), "slurm": drained.body},
        hints=hints,
    )


def _spec(path: Path | None, common: Common, *, inside: bool) -> tuple[str, Spec]:
    """The cluster file as text and as read; inside a job without a file, what the job's environment says."""
    from fairlead.spec.loader import read

    if inside and not os.environ.get("SLURM_JOB_ID"):
        raise UsageError(
            "preflight/not-inside", "--inside is for use in a Slurm job", hint="srun fairlead preflight --inside"
        )
    if inside and path is None and not os.environ.get("FAIRLEAD_SPEC") and not Path("cluster.toml").exists():
        from fairlead.preflight.inside import spec_of_job

        return spec_of_job(os.environ)
    flags: dict[str, Any] = {"runs.dir": common.runs}
    if inside:
        flags["access.via"] = "slurm"
    loaded = read(path, flags=flags, or_lab=not inside)
    found = loaded.spec
    return loaded.text, found


class _Drained(NamedTuple):
    """What `--drain` and `--undrain` did or would do, in words and for the document."""

    text: tuple[str, ...] = ()
    body: dict[str, Any] | None = None


def _rules(on: tuple[str, ...], share: float, *, drain: bool, undrain: bool) -> DrainRules | None:
    """What may be done in Slurm; None for nothing."""
    if not 0 < share <= 1:
        raise UsageError("cli/usage", f"--drain-share {share:g} is not a share", hint="write 0.1 for a tenth")
    if not drain and not undrain:
        return None
    from fairlead.preflight.drain import DrainRules
    from fairlead.records.verdict import Verdict

    verdicts = frozenset({Verdict.FAIL, *(Verdict(word) for word in on)})
    return DrainRules(drains=drain, undrains=undrain, verdicts=verdicts, max_share=share)


def _drained(report: Report, folder: RunFolder, control: Control, rules: DrainRules | None, *, yes: bool) -> _Drained:
    """Plan, write down who the nodes are, and act if told to. A Slurm that does not answer changes no verdict."""
    if rules is None:
        return _Drained()
    from fairlead.preflight.identity import save_identity

    def save(nodes: list[str]) -> None:
        save_identity(folder, nodes, report.facts)

    return _act(report.findings, folder.info.id, control, rules, save, yes=yes)


def _act(
    findings: Sequence[Finding],
    run_id: str,
    control: Control,
    rules: DrainRules,
    save: Callable[[list[str]], None],
    *,
    yes: bool,
) -> _Drained:
    from fairlead.errors import SchedulerError
    from fairlead.preflight.drain import plan_drain, plan_text
    from fairlead.preflight.scontrol import ask_states, execute, outcomes_text
    from fairlead.records.codec import builtins

    try:
        plan = plan_drain(findings, ask_states(control), run_id, dt.datetime.now(dt.UTC), rules)
        if plan.drain:
            save(list(plan.drain))
        outcomes = execute(plan, control) if yes else []
    except SchedulerError as error:
        session().note(f"{error}: no node was drained or given back")
        return _Drained(body={"error": error.code})
    if not yes and not plan.is_empty:
        session().note("nothing was changed in Slurm; --yes does what is shown")
    text = outcomes_text(plan, outcomes) if yes else plan_text(plan)
    return _Drained((text,), {**plan.body(), "done": builtins(outcomes)})


def _with_history(report: Report, spec: Spec, folder: RunFolder) -> Report:
    """Add what earlier runs say of nodes; remember this one. A lab's hosts are new each time: nothing to remember."""
    if spec.is_lab:
        return report
    from dataclasses import replace

    from fairlead.errors import DiskFull, NotPermitted
    from fairlead.preflight.history import History, entry_of, failed_before, judge_history, state_place

    history = History(state_place(), spec.cluster.name)
    past = history.entries()
    now = dt.datetime.now(dt.UTC)
    entry = entry_of(folder.info.id, now, report.nodes, report.findings, cluster=spec.cluster.name)
    try:
        if not history.add(entry):
            session().note("the history was not written: another fairlead holds it")
    except (DiskFull, NotPermitted) as error:
        session().note(f"the history was not written: {error}")
    findings = worst_first([*report.findings, *judge_history(past, entry)])
    return replace(report, findings=tuple(findings), history=failed_before(past, entry))


def _more_files(report: Report, folder: RunFolder, html: Path | None, prom: Path | None) -> None:
    if html is not None:
        from fairlead.preflight import page
        from fairlead.report.html import page_html

        command = " ".join(["fairlead", *session().argv])
        write_atomic(html, page_html(page(report, command=command, run_id=folder.info.id, version=__version__)))
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


def _here(
    path: Path | None,
    pace: tuple[float, float, float],
    prom: Path | None,
    rules: DrainRules | None,
    *,
    yes: bool,
) -> Answer:
    """Only this node, without a run folder: it may be asked every few minutes for years."""
    from fairlead.preflight.here import Pace, look_here
    from fairlead.preflight.inside import here_spec
    from fairlead.preflight.pace import pace_place
    from fairlead.preflight.scontrol import control_here
    from fairlead.report.prom import prom_text
    from fairlead.report.text import counts_line, findings_text, paint_for

    node, spec = here_spec(os.environ, path)
    every_s, jitter_s, limit_s = pace
    found = look_here(node, spec, pace_place(), Pace(every_s=every_s, jitter_s=jitter_s, limit_s=limit_s))
    drained = _Drained()
    if found.is_fresh and rules is not None:
        drained = _act(found.findings, session().run_id, control_here(5.0), rules, lambda _: None, yes=yes)
    if prom is not None and found.is_fresh:
        text = prom_text(
            found.findings,
            verb="preflight-here",
            cluster=spec.cluster.name,
            verdict=found.verdict,
            finished_s=time.time(),
            took_s={},
        )
        write_atomic(prom, text)
    said = [findings_text(found.findings, paint_for(session().stdout))]
    said += [counts_line(found.findings)] if found.is_fresh else []
    age = "" if found.is_fresh else f"   as of {found.age_s:.0f} s ago"
    return Answer(
        schema="fairlead.preflight-here/1",
        verdict=found.verdict,
        text="\n".join([*(s for s in said if s), *drained.text, f"verdict  {found.verdict}{age}"]),
        body={
            "node": node,
            "findings": found.findings,
            "is_fresh": found.is_fresh,
            "age_s": round(found.age_s, 3),
            "slurm": drained.body,
        },
    )

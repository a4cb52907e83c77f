"""`fairlead preflight`: the gate before an expensive job."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

from fairlead import __version__
from fairlead.base.files import write_atomic
from fairlead.base.nodeset import NodeSet
from fairlead.cli.common import Common, SpecFile
from fairlead.cli.output import Answer, session
from fairlead.errors import UsageError
from fairlead.records.runs import now_utc

if TYPE_CHECKING:
    from fairlead.cluster import Cluster
    from fairlead.preflight import Report
    from fairlead.records.runs import RunFolder
    from fairlead.spec.model import Spec

_SLURM = Group("Slurm", sort_key=20)
_HEALTH = Group("As a health program", sort_key=30)
_FILES = Group("More files", sort_key=40)
_Flag = Parameter(negative=())


def preflight(
    *,
    nodes: Annotated[str, Parameter(name=("--nodes", "-w"))] = "",
    exclude: Annotated[str, Parameter(name=("--exclude", "-x"))] = "",
    details: Annotated[bool, _Flag] = False,
    inside: Annotated[bool, Parameter(group=_SLURM, negative=())] = False,
    drain: Annotated[bool, Parameter(group=_SLURM, negative=())] = False,
    undrain: Annotated[bool, Parameter(group=_SLURM, negative=())] = False,
    yes: Annotated[bool, Parameter(group=_SLURM, negative=())] = False,
    here: Annotated[bool, Parameter(group=_HEALTH, negative=())] = False,
    every: Annotated[float, Parameter(group=_HEALTH)] = 0.0,
    jitter: Annotated[float, Parameter(group=_HEALTH)] = 0.0,
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
    nodes
        The nodes, such as `h200-[000-015]`; else every node of the cluster file.
    exclude
        Nodes to leave out.
    details
        Show ranks, nodes, ports and message sizes in tables, too.
    inside
        Run inside the Slurm job this command is in, on its nodes: `srun fairlead preflight --inside`.
    drain
        Show which bad nodes would be drained in Slurm, and with what reason; with `--yes`, drain them.
    undrain
        Show which nodes that fairlead drained earlier are well again; with `--yes`, resume them.
    yes
        Do what `--drain` and `--undrain` show.
    here
        Judge only the node this runs on, alone: for Slurm's prolog or HealthCheckProgram.
    every
        With `--here`: if the last verdict is younger than this many seconds, repeat it.
    jitter
        With `--here`: wait up to this many seconds first, each node another time.
    html
        Also write the report as one HTML file.
    prom
        Also write metrics for Prometheus's node exporter to this file.
    spec
        The cluster file; else FAIRLEAD_SPEC, ./cluster.toml, or the lab.
    """
    if here:
        return _here(spec, every, jitter, prom)
    if (every or jitter) and not here:
        raise UsageError("cli/usage", "--every and --jitter go with --here", hint="fairlead preflight --help")
    if inside and os.environ.get("SLURM_PROCID", "0") != "0":
        raise SystemExit(0)  # the first task does the work, and its exit status is the step's
    from fairlead.cluster import check_nodes, connect
    from fairlead.preflight import lists, run
    from fairlead.records.codec import builtins

    session_ = session()
    text, spec_ = _spec(spec, common, inside=inside)
    named = check_nodes(nodes, spec_.nodes) if nodes else spec_.nodes
    chosen = check_nodes(named - NodeSet(exclude), None)
    folder = session_.open_folder(common.runs, from_file=spec_.runs.dir, keep=spec_.runs.keep)
    folder.write("spec.toml", text)
    with connect(
        spec_, folder=folder.path, recorder=lambda r: folder.append("commands.jsonl", builtins(r)), note=session_.note
    ) as cluster:
        report = run(
            cluster, spec_, folder, nodes=chosen, inside=inside, note=session_.note, progress=session_.progress
        )
        actions = _slurm_actions(cluster, report, folder, drain=drain, undrain=undrain, yes=yes)
    for name, content in lists(report).items():
        folder.write(name, content)
    report = _with_history(report, spec_, folder)
    _more_files(report, folder, html, prom)
    return _answer(report, actions, details=details)


def _answer(report: Report, actions: list[dict[str, str]], *, details: bool) -> Answer:
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
        text=lambda: "\n".join([text_of(report, paint, details=details), *(a["said"] for a in actions)]),
        body={**report.body(), "actions": actions},
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


def _slurm_actions(
    cluster: Cluster, report: Report, folder: RunFolder, *, drain: bool, undrain: bool, yes: bool
) -> list[dict[str, str]]:
    """What `--drain` and `--undrain` did, or would do."""
    if not drain and not undrain:
        return []
    from fairlead.preflight.drain import carry_out, left_alone, to_drain, to_resume
    from fairlead.preflight.scheduler import SHOW, parse

    said = cluster.control(SHOW, limit_s=20.0)
    slurm = parse(said.out) if said is not None and said.rc == 0 else {}
    if not slurm:
        session().note("there is no Slurm to drain nodes in")
    actions = to_drain(report, slurm, day=now_utc()[:10], run_id=folder.info.id) if drain else []
    actions += to_resume(report, slurm) if undrain else []
    if yes:
        carry_out(cluster, actions)
    elif actions:
        session().note("nothing was changed in Slurm; --yes does what is shown")
    out = []
    for action in actions:
        words = f"{action.state:8} {action.node}" + (f'   reason "{action.reason}"' if action.reason else "")
        out.append({"node": action.node, "state": action.state, "reason": action.reason, "done": str(yes).lower(),
                    "said": words if yes else f"would {words}"})  # fmt: skip
    for line in left_alone(report.findings) if drain else ():
        session().note(f"not drained: {line}")
    return out


def _with_history(report: Report, spec: Spec, folder: RunFolder) -> Report:
    """Add what is known of the bad nodes from earlier runs, then remember this one."""
    from dataclasses import replace

    from fairlead.errors import DiskFull, NotPermitted
    from fairlead.preflight.history import default_place, recall, remember

    place = default_place()
    before = recall(place, spec.cluster.name, report.bad)
    try:
        remember(place, spec.cluster.name, folder.info.id, now_utc(), report.findings)
    except (DiskFull, NotPermitted, OSError) as error:
        session().note(f"the history was not written: {error}")
    return replace(report, history=before)


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
        )
        write_atomic(prom, text)


def _here(path: Path | None, every: float, jitter: float, prom: Path | None) -> Answer:
    """Only this node, without a run folder: it may be asked every few minutes for years."""
    from fairlead.preflight.here import look
    from fairlead.preflight.history import default_place
    from fairlead.preflight.inside import here_spec
    from fairlead.report.prom import prom_text
    from fairlead.report.text import counts_line, findings_text, paint_for

    node, spec = here_spec(os.environ, path)
    found = look(node, spec, default_place(), every_s=every, jitter_s=jitter)
    if prom is not None and found.facts is not None:
        finished = time.time()
        write_atomic(
            prom,
            prom_text(found.findings, verb="preflight", cluster=spec.cluster.name, verdict=found.verdict,
                      finished_s=finished, took_s={}),
        )  # fmt: skip
    if found.facts is None:
        text = f"verdict  {found.verdict}   as of {found.age_s:.0f} s ago"
    else:
        said = [findings_text(found.findings, paint_for(session().stdout)), counts_line(found.findings)]
        text = "\n".join([*(s for s in said if s), f"verdict  {found.verdict}"])
    return Answer(
        schema="fairlead.preflight-here/1",
        verdict=found.verdict,
        text=text,
        body={"node": node, "findings": found.findings, "age_s": round(found.age_s, 3)},
    )

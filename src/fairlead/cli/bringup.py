"""`fairlead bringup`: the stages in order, one report."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import Group, Parameter

from fairlead import __version__
from fairlead.base.table import table
from fairlead.base.units import duration
from fairlead.cli.common import Common, SpecFile
from fairlead.cli.output import Answer, session
from fairlead.records.report import headline
from fairlead.records.verdict import Verdict

_STAGES = Group("Stages", sort_key=10)

if TYPE_CHECKING:
    from fairlead.bringup import BringupReport
    from fairlead.records.finding import Finding
    from fairlead.report.html import Page
    from fairlead.spec.model import Spec


def bringup(
    *,
    from_: Annotated[str, Parameter(name="--from", group=_STAGES)] = "",
    only: Annotated[tuple[str, ...], Parameter(group=_STAGES, negative=())] = (),
    resume: Annotated[bool, Parameter(group=_STAGES, negative=())] = False,
    fault: str = "",
    keep: Annotated[bool, Parameter(negative=())] = False,
    details: Annotated[bool, Parameter(negative=())] = False,
    html: Path | None = None,
    spec: SpecFile = None,
    common: Common = Common(),
) -> Answer:
    """Run the stages in order and report: audit, preflight, weights, train, serve, logs. Without a cluster file: on a
    lab inside this machine, built and taken down.

    What weights, train and serve work with stands in [bringup] of the cluster file; they are left out where nothing is
    named, and after a preflight that failed. In a lab a tiny model is made. The run folder holds report.html,
    good.nodes, bad.nodes and everything that was read. Exit codes: 0 go; 3 no-go; 4 something could not be judged.

    Parameters
    ----------
    from_
        Begin with this stage.
    only
        This stage alone; again for each.
    resume
        Go on behind the stages that the last bringup of this cluster file came through.
    fault
        Break the lab first: a kind such as `silent-drop`, or `"KIND TARGET NAME=VALUE"`; `fairlead lab fault --kinds`
        lists them.
    keep
        Leave the lab standing, without the fault.
    details
        Show ranks, nodes, ports and message sizes in tables, too.
    html
        Write the report here as well, as one HTML file.
    """
    from fairlead.base.files import check_place, write_atomic
    from fairlead.bringup import bringup as run_stages
    from fairlead.bringup import chosen_fault
    from fairlead.bringup.stages import chosen
    from fairlead.lab.shape import LabShape
    from fairlead.preflight import lists, text_of
    from fairlead.report.html import page_html
    from fairlead.report.text import paint_for

    if html is not None:
        check_place(html)
    here = session()
    spec_, text = _spec(spec, common)
    chosen(start=from_, only=only)
    if fault and spec_.is_lab:
        chosen_fault(fault, LabShape.from_spec(spec_))  # a misspelt one begins no run
    folder = here.open_folder(common.runs, from_file=spec_.runs.dir, keep=spec_.runs.keep)
    folder.write("spec.toml", text)
    whole = run_stages(
        spec_, folder, text=text, start=from_, only=only, resume=resume, fault=fault, keep=keep, note=here.note,
        progress=here.progress,
    )  # fmt: skip
    report = whole.preflight
    picture = page_html(_page(whole, " ".join(["fairlead", *here.argv]), folder.info.id))
    for name, content in {**(lists(report) if report else {}), "report.html": picture}.items():
        folder.write(name, content)
    if html is not None:
        write_atomic(html, picture)
    paint = paint_for(here.stdout)
    first = report.culprit if report and report.culprit else _culprit(whole)
    return Answer(
        schema="fairlead.bringup/1",
        verdict=whole.verdict,
        text=lambda: "\n".join(
            [_stages(whole), *([text_of(report, paint, details=details)] if report else []), *_end(whole)]
        ),
        body={
            **(report or whole).body(),
            "stages": [
                {
                    "name": p.stage,
                    "verdict": p.verdict,
                    "took_s": whole.took_s[p.stage],
                    "said": headline(p),
                    "called": whole.called.get(p.stage, ()),
                    "findings": () if p is report else p.findings,
                }
                for p in whole.parts
            ],
            "fault": whole.fault,
            "headline": _headline(whole),
            "report": str(folder.path / "report.html"),
        },
        hints=[f"fairlead explain {first.code}"] if first else [],
    )


def _end(whole: BringupReport) -> list[str]:
    """The verdict of the whole, where preflight's own is not all there is."""
    if {part.stage for part in whole.parts} <= {"lab up", "preflight", "lab down"}:
        return []
    return [f"bringup  {whole.verdict:<6} {_headline(whole)}"]


def _culprit(whole: BringupReport) -> Finding | None:
    return next((part.culprit for part in whole.parts if part.culprit is not None), None)


def _headline(whole: BringupReport) -> str:
    """What ended badly first; else what preflight said."""
    bad = next((part for part in whole.parts if part.verdict in (Verdict.FAIL, Verdict.UNKNOWN)), None)
    if bad is None:
        return headline(whole.preflight) if whole.preflight else f"{len(whole.parts)} stages went well"
    return headline(bad) if bad.stage == "preflight" else f"{bad.stage}: {headline(bad)}"


def _page(whole: BringupReport, command: str, run_id: str) -> Page:
    """Preflight's page with a section for each stage in front; without it, the sections alone."""
    from fairlead.preflight import page_of
    from fairlead.records.runs import now_utc
    from fairlead.report.html import Code, Page, Section, Table, Text

    sections = list[Section]()
    for part in whole.parts:
        took = duration(whole.took_s[part.stage])
        blocks: list[Text | Code | Table] = [Text(f"{part.verdict}, {took}: {headline(part)}")]
        blocks += [Code("\n".join(lines))] if (lines := whole.called.get(part.stage)) else []
        loud = [f for f in part.findings if f.verdict not in (Verdict.PASS, Verdict.SKIP)]
        if loud and part is not whole.preflight:
            rows = [(f.verdict, str(f.subject), f.code, f.message) for f in loud]
            blocks.append(Table(header=["", "", "CODE", "WHAT"], rows=rows))
        sections.append(Section(part.stage, blocks))
    if whole.preflight is not None:
        page = page_of(whole.preflight, command=command, run_id=run_id, version=__version__)
        return replace(page, verdict=whole.verdict, headline=_headline(whole), sections=[*sections, *page.sections])
    return Page(
        title=f"bringup of {len(whole.nodes)} nodes", verdict=whole.verdict, headline=_headline(whole),
        facts=[("run", run_id)], sections=sections, command=command, version=__version__, written=now_utc(),
    )  # fmt: skip


def _spec(path: Path | None, common: Common) -> tuple[Spec, str]:
    """The cluster file and its text; without one, the lab preset, with real Slurm where this user may start it."""
    from fairlead.cluster.table import Slurm
    from fairlead.spec.loader import read

    loaded = read(path, flags={"runs.dir": common.runs}, or_lab=True)
    spec, text = loaded.spec, loaded.text
    if loaded.file.startswith("preset:") and os.geteuid() == 0:
        spec = spec.with_table(msgspec.structs.replace(spec.table(Slurm), lab=True))
        text += "\n[slurm]\nlab = true\n"
    return spec, text


def _stages(whole: BringupReport) -> str:
    rows = [[p.stage, str(p.verdict), headline(p), duration(whole.took_s[p.stage])] for p in whole.parts]
    if whole.fault:
        rows.append(["fault", "", f"{whole.fault.kind} on {whole.fault.target}", ""])
    return table(["", "", "", ""], rows) + "\n" if rows else ""

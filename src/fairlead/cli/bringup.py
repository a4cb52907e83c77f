"""`fairlead bringup`: the stages in order, one report."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import Parameter

from fairlead import __version__
from fairlead.base.table import table
from fairlead.base.units import duration
from fairlead.cli.common import Common, SpecFile
from fairlead.cli.output import Answer, session

if TYPE_CHECKING:
    from fairlead.bringup import BringupReport
    from fairlead.spec.model import Spec


def bringup(
    *,
    fault: str = "",
    keep: Annotated[bool, Parameter(negative=())] = False,
    details: Annotated[bool, Parameter(negative=())] = False,
    html: Path | None = None,
    spec: SpecFile = None,
    common: Common = Common(),
) -> Answer:
    """Run the stages in order and report. Without a cluster file: on a lab inside this machine, built and taken down.

    The run folder holds report.html, good.nodes, bad.nodes and everything that was read. Exit codes: 0 go; 3 no-go;
    4 something could not be judged.

    Parameters
    ----------
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
    from fairlead.lab.shape import LabShape
    from fairlead.preflight import lists, page_of, text_of
    from fairlead.records.report import headline
    from fairlead.report.html import page_html
    from fairlead.report.text import paint_for

    if html is not None:
        check_place(html)
    here = session()
    spec_, text = _spec(spec, common)
    if fault and spec_.is_lab:
        chosen_fault(fault, LabShape.from_spec(spec_))  # a misspelt one begins no run
    folder = here.open_folder(common.runs, from_file=spec_.runs.dir, keep=spec_.runs.keep)
    folder.write("spec.toml", text)
    whole = run_stages(spec_, folder, fault=fault, keep=keep, note=here.note, progress=here.progress)
    report = whole.preflight
    command = " ".join(["fairlead", *here.argv])
    picture = page_html(page_of(report, command=command, run_id=folder.info.id, version=__version__))
    for name, content in {**lists(report), "report.html": picture}.items():
        folder.write(name, content)
    if html is not None:
        write_atomic(html, picture)
    paint = paint_for(here.stdout)
    return Answer(
        schema="fairlead.bringup/1",
        verdict=whole.verdict,
        text=lambda: "\n".join([_stages(whole), text_of(report, paint, details=details)]),
        body={
            **report.body(),
            "stages": [
                {"name": p.stage, "verdict": p.verdict, "took_s": whole.took_s[p.stage], "said": headline(p)}
                for p in whole.parts
            ],
            "fault": whole.fault,
            "headline": headline(report),
            "report": str(folder.path / "report.html"),
        },
        hints=[f"fairlead explain {report.culprit.code}"] if report.culprit else [],
    )


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
    rows = [(p.stage, p.said, duration(whole.took_s[p.stage])) for p in whole.parts if p is not whole.preflight]
    if whole.fault:
        rows.append(("fault", f"{whole.fault.kind} on {whole.fault.target}", ""))
    return table(["", "", ""], rows) + "\n" if rows else ""

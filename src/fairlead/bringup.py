"""The stages in order, one report. Without real hosts: on a lab that is built for it and taken down again.

Knows: which stages there are, and that whatever it built goes away, however it ends. Must not know: what a stage does.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from fairlead import preflight
from fairlead.cluster import connect, enter
from fairlead.errors import FairleadError, UsageError
from fairlead.lab import store
from fairlead.lab.faults import apply, catalog
from fairlead.lab.faults.kinds import View
from fairlead.lab.faults.script import pairs
from fairlead.lab.shape import LabShape
from fairlead.lab.up import down, up
from fairlead.records.labstate import Fault
from fairlead.records.log import doing
from fairlead.records.report import Report
from fairlead.records.runs import RunFolder
from fairlead.records.verdict import Verdict
from fairlead.spec.model import Spec

log = logging.getLogger("fairlead.bringup")

Note = Callable[[str], None]
_GOES = "the lab goes when the bringup ends"


@dataclass(frozen=True, kw_only=True)
class BringupReport(Report):
    """What came of it: a part for each stage; `took_s` has their times."""

    stage: str = "bringup"
    preflight: preflight.PreflightReport
    fault: Fault | None = None


class _Work:
    """The stages that were taken so far, and the fault that is in the lab."""

    def __init__(self) -> None:
        self.parts: list[Report] = []
        self.took_s: dict[str, float] = {}
        self.fault: Fault | None = None

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """A stage is at work; whoever is adds its report to `parts`."""
        began = time.monotonic()
        with doing(log, name):
            yield
        self.took_s[name] = time.monotonic() - began


def bringup(
    spec: Spec,
    folder: RunFolder,
    *,
    fault: str = "",
    keep: bool = False,
    note: Note = lambda _: None,
    progress: Callable[..., None] = lambda *_: None,
) -> BringupReport:
    """Run the stages. `fault` is `KIND [TARGET [NAME=VALUE ...]]`, injected once the lab stands; it needs a lab.

    A lab that stands already is used and left standing, with the fault healed; a lab built here is taken down again
    unless `keep`. Raises what the stages raise.
    """
    if fault and not spec.is_lab:
        raise UsageError(
            "bringup/fault-needs-lab",
            "--fault needs a lab, and this cluster file names real nodes",
            hint="fairlead bringup --fault silent-drop, where there is no cluster.toml",
        )
    if fault:
        chosen_fault(fault, LabShape.from_spec(spec))  # a misspelt one is refused before anything is built
    work = _Work()
    with _standing(spec, work, keep=keep, note=note) as lab, _faulty(lab, fault, work, note), work.stage("preflight"):
        with connect(spec, recorder=_recorder(folder), folder=folder.path, note=note) as cluster:
            report = preflight.run(cluster, spec, folder, note=note, progress=progress)
        work.parts.append(report)
    return BringupReport(
        nodes=report.nodes, parts=tuple(work.parts), took_s=work.took_s, preflight=report, fault=work.fault
    )


def _recorder(folder: RunFolder) -> Callable[[Any], None]:
    return lambda record: folder.append("commands.jsonl", msgspec.to_builtins(record))


@contextlib.contextmanager
def _standing(spec: Spec, work: _Work, *, keep: bool, note: Note) -> Iterator[str]:
    """The lab the spec asks for, by name; an empty name for real nodes."""
    if not spec.is_lab:
        yield ""
        return
    shape = LabShape.from_spec(spec)
    waits = f"another bringup has the lab `{shape.name}`; this one waits"
    with store.turn(shape.name, waits=lambda: note(waits)) as mark:
        if mark.read_text() == _GOES:
            down(shape.name)  # a bringup was killed, and whatever it injected is in there still
        was_up = enter.is_up(enter.read(shape.name))
        goes = not (was_up or keep)
        mark.write_text(_GOES if goes else "")
        yield from _up(shape, work, was_up=was_up, goes=goes, note=note)


def _up(shape: LabShape, work: _Work, *, was_up: bool, goes: bool, note: Note) -> Iterator[str]:
    with work.stage("lab up"):
        state = up(shape)
    topo = shape.topology
    said = f"{topo.num_hosts} hosts, {topo.planes} planes, {topo.num_switches} switches"
    said += ", real Slurm" if state.slurm else ""
    found = ", found standing" if was_up else ""
    work.parts.append(Report(stage="lab up", ended=Verdict.PASS, said=said + found))
    note(f"lab {state.name}: {said}")
    try:
        yield shape.name
    finally:
        if goes:
            with work.stage("lab down"):
                down(shape.name)
            work.parts.append(Report(stage="lab down", ended=Verdict.PASS, said="nothing left"))


@contextlib.contextmanager
def _faulty(lab: str, words: str, work: _Work, note: Note) -> Iterator[None]:
    """The lab with a fault in it, if one was asked for: `KIND [TARGET [NAME=VALUE ...]]`.

    A kind alone hits the middle of the lab, hard enough to matter.
    """
    if not words:
        yield
        return
    fault = apply.inject(lab, *chosen_fault(words, msgspec.convert(enter.running(lab).shape, LabShape)))
    work.fault = fault
    note(f"fault {fault.kind} on {fault.target}")
    try:
        yield
    finally:
        with contextlib.suppress(FairleadError):  # the lab may be gone; then so is the fault
            apply.heal(lab, str(fault.id))


def chosen_fault(words: str, shape: LabShape) -> tuple[str, str, dict[str, str]]:
    """Kind, target and settings of `KIND [TARGET] [NAME=VALUE ...]`, with what was left out.

    Raises UsageError for a kind, setting or target that does not exist.
    """
    name, *rest = words.split()
    kind = catalog.kind_of(name)
    target = rest.pop(0) if rest and "=" not in rest[0] else _middle(shape, kind.on)
    settings = catalog.settings_of(kind, {**_telling(shape, name), **pairs(rest)})
    catalog.targets_of(kind, target, View(shape, lambda _: {}))
    return name, target, settings


def _middle(shape: LabShape, on: str) -> str:
    """A part in the middle of the lab, for a fault that names none."""
    host = shape.nodes[len(shape.nodes) // 2]
    plane = shape.topology.planes // 2
    return {"link": f"p{plane}/{host}", "switch": f"p{plane}/t0-0", "pair": f"{shape.nodes[0]}:{host}"}.get(on, host)


def _telling(shape: LabShape, kind: str) -> dict[str, str]:
    """Settings for a kind of fault whose own would be too mild to notice, or that has none."""
    return {
        "rate": {"mbps": f"{shape.rate_mbps / 20:g}"},
        "loss": {"percent": "5"},
        "driver-version": {"version": "535.54.03"},
        "library-version": {"version": "2407.0"},
        "firmware-version": {"version": "28.36.1010"},
        "file": {"path": "/sys/class/infiniband/mlx5_0/ports/1/state"},
    }.get(kind, {})

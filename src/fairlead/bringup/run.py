"""The stages in order, one report. Without real hosts: on a lab that is built for it and taken down again.

Knows: how stages follow each other, and that whatever it built goes away, however it ends. Must not know: what a stage
does.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from fairlead import preflight
from fairlead.base.files import own_place
from fairlead.bringup.calls import run_stage
from fairlead.bringup.stages import GOOD, STAGES, Stage, Wanted, chosen, why_not
from fairlead.bringup.table import Bringup
from fairlead.cluster import connect, enter
from fairlead.errors import FairleadError, UsageError
from fairlead.lab import store
from fairlead.lab.faults import apply, catalog
from fairlead.lab.faults.kinds import View
from fairlead.lab.faults.script import pairs
from fairlead.lab.shape import LabShape
from fairlead.lab.up import down, up
from fairlead.records.finding import verdict_of
from fairlead.records.journal import bringup_place
from fairlead.records.labstate import Fault
from fairlead.records.log import doing
from fairlead.records.report import Report
from fairlead.records.runs import RunFolder
from fairlead.records.stagestate import StageState
from fairlead.records.verdict import Verdict
from fairlead.report.text import counts_line
from fairlead.spec.model import Spec

log = logging.getLogger("fairlead.bringup")

Note = Callable[[str], None]
_GOES = "the lab goes when the bringup ends"


@dataclass(frozen=True, kw_only=True)
class BringupReport(Report):
    """What came of it: a part for each stage; `took_s` has their times."""

    stage: str = "bringup"
    preflight: preflight.PreflightReport | None = None
    """Where it was among the stages."""
    fault: Fault | None = None
    called: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Stage -> the lines that were called for it."""


class _Work:
    """The stages that were taken so far, and the fault that is in the lab."""

    def __init__(self) -> None:
        self.parts: list[Report] = []
        self.took_s: dict[str, float] = {}
        self.fault: Fault | None = None
        self.preflight: preflight.PreflightReport | None = None
        self.called: dict[str, tuple[str, ...]] = {}

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """A stage is at work; whoever is adds its report to `parts`."""
        began = time.monotonic()
        with doing(log, name):
            yield
        self.took_s[name] = time.monotonic() - began


class Passed(msgspec.Struct, frozen=True, kw_only=True):
    """What an earlier bringup came through."""

    spec: str
    """SHA-256 of its cluster file: with another one it begins anew."""
    stages: tuple[str, ...] = ()


def bringup(
    spec: Spec,
    folder: RunFolder,
    *,
    text: str = "",
    start: str = "",
    only: Collection[str] = (),
    resume: bool = False,
    fault: str = "",
    keep: bool = False,
    note: Note = lambda _: None,
    progress: Callable[..., None] = lambda *_: None,
) -> BringupReport:
    """Run the stages. `fault` is `KIND [TARGET [NAME=VALUE ...]]`, injected once the lab stands; it needs a lab.

    `text` is the cluster file's, which `folder` has as spec.toml. `start` names the first stage, `only` all of them;
    `resume` goes on behind those that an earlier bringup with the same file came through. A lab that stands already is
    used and left standing, with the fault healed; a lab built here is taken down again unless `keep`. Raises what
    preflight and the lab raise; a verb that fails is a stage that failed.
    """
    if fault and not spec.is_lab:
        raise UsageError(
            "bringup/fault-needs-lab",
            "--fault needs a lab, and this cluster file names real nodes",
            hint="fairlead bringup --fault silent-drop, where there is no cluster.toml",
        )
    if fault:
        chosen_fault(fault, LabShape.from_spec(spec))  # a misspelt one is refused before anything is built
    chosen(start=start, only=only)  # so is a misspelt stage
    place = bringup_place() / spec.cluster.name
    own_place(place)  # before a lab is built: its hosts are shown it
    state = StageState(place / "passed.json", Passed, schema="fairlead.bringup-state/1")
    digest = hashlib.sha256(text.encode()).hexdigest()
    work = _Work()
    with _standing(spec, work, keep=keep, note=note) as lab, state.turn():
        earlier = state.read()
        is_new = not (resume or start or only) or earlier is None or earlier.spec != digest
        passed = set[str]() if is_new or earlier is None else set(earlier.stages)
        stages = chosen(start=start, only=only, passed=passed if resume else ())
        if not passed and not start and not only:
            shutil.rmtree(place / "work", ignore_errors=True)
        passed -= {stage.name for stage in stages}
        with _faulty(lab, fault, work, note):
            for stage in stages:
                _one(stage, spec, folder, work, place / "work", note=note, progress=progress)
                passed |= {part.stage for part in work.parts if part.stage == stage.name and part.verdict in GOOD}
                if not fault:
                    state.write(Passed(spec=digest, stages=tuple(s.name for s in STAGES if s.name in passed)))
    nodes = work.preflight.nodes if work.preflight is not None else spec.nodes
    return BringupReport(
        nodes=nodes, parts=tuple(work.parts), took_s=work.took_s, preflight=work.preflight, fault=work.fault,
        called=work.called,
    )  # fmt: skip


def _one(
    stage: Stage,
    spec: Spec,
    folder: RunFolder,
    work: _Work,
    place: Path,
    *,
    note: Note,
    progress: Callable[..., None],
) -> None:
    said = _with_tiny(spec, stage, place, note)
    if reason := why_not(stage, {part.stage: part.verdict for part in work.parts}, said):
        work.took_s[stage.name] = 0.0
        work.parts.append(Report(stage=stage.name, ended=Verdict.SKIP, said=reason))
        return
    with work.stage(stage.name):
        if stage.name == "preflight":
            with connect(spec, recorder=_recorder(folder), folder=folder.path, note=note) as cluster:
                work.preflight = preflight.run(cluster, spec, folder, note=note, progress=progress)
            work.parts.append(work.preflight)
            return
        wanted = Wanted(
            spec=str(folder.path / "spec.toml"), folder=str(folder.path), said=said, goes_on=_has_begun(said.train),
        )  # fmt: skip
        report, lines = run_stage(stage, wanted, folder.path / "stages" / stage.name)
        if spec.is_lab:
            report = _of_a_lab(report)
    work.called[stage.name] = lines
    work.parts.append(report)
    note(f"{stage.name}: {report.verdict}: {report.said}")


_NOT_IN_A_LAB = ("net/rename-race", "ib/flaps", "host/identity")
"""Judged from a journal and from DMI, which a namespace has none of its own of."""


def _of_a_lab(report: Report) -> Report:
    """What cannot be known of a namespace was not judged; what was read and found bad stays bad."""
    found = tuple(
        msgspec.structs.replace(f, verdict=Verdict.SKIP, message=f"a lab's host has none: {f.message}")
        if f.code in _NOT_IN_A_LAB and f.verdict is Verdict.UNKNOWN
        else f
        for f in report.findings
    )
    if found == report.findings:
        return report
    return replace(report, findings=found, ended=verdict_of(found), said=counts_line(found))


_SMALL_ENGINE = ("--cb-num-blocks", "64", "--cb-max-batch-tokens", "512")
"""Memory for batches of `transformers serve`, which else takes most of what is free."""


def _with_tiny(spec: Spec, stage: Stage, place: Path, note: Note) -> Bringup:
    """`[bringup]`; in a lab, a tiny model where a stage has nothing to work with, if this machine can make one."""
    said = spec.table(Bringup)
    if not spec.is_lab or not stage.key or getattr(said, stage.key):
        return said
    if missing := [name for name in ("torch", "transformers") if not find_spec(name)]:
        note(f"{stage.name}: no tiny model is made, as {' and '.join(missing)} is not installed: fairlead[train]")
        return said
    model, config = place / "tiny", place / "train.toml"
    if not config.exists():
        from fairlead.bringup.tiny import make_tiny, make_training

        model.mkdir(parents=True, exist_ok=True)
        make_training(place, make_tiny(model), len(spec.nodes))
        note("model: a tiny one with random weights is made; what it says has no sense")
    made: dict[str, dict[str, object]] = {
        "weights": {"weights": str(model)},
        "train": {"train": str(config)},
        "model": {"model": str(model), "engine": _SMALL_ENGINE},
    }
    return msgspec.structs.replace(said, **made[stage.key])


def _has_begun(config: str) -> bool:
    """Whether the training run of this configuration has a store already."""
    if not config:
        return False
    from fairlead.train.config import load

    path = Path(config)
    with contextlib.suppress(FairleadError):  # the verb says what is wrong with it
        return (path.parent / load(path).run.store).exists()
    return False


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

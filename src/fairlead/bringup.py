"""The stages in order, one report. Without real hosts: on a lab that is built for it and taken down again.

Knows: which stages there are, and that whatever it built goes away, however it ends. Must not know: what a stage does.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from fairlead import preflight
from fairlead.cluster import connect, enter
from fairlead.errors import FairleadError, UsageError
from fairlead.lab.faults import apply, catalog
from fairlead.lab.faults.script import pairs
from fairlead.lab.shape import LabShape
from fairlead.lab.up import down, up
from fairlead.records.labstate import Fault, LabState
from fairlead.records.runs import RunFolder
from fairlead.records.verdict import Verdict
from fairlead.spec.model import Spec

Note = Callable[[str], None]


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """One step that was taken."""

    name: str
    verdict: Verdict
    took_s: float
    said: str


@dataclass(kw_only=True)
class Outcome:
    """What came of it."""

    stages: list[Stage] = field(default_factory=list)
    fault: Fault | None = None
    report: preflight.Report | None = None

    @property
    def verdict(self) -> Verdict:
        """The preflight's: building the lab either works or ends the run with an error."""
        return self.report.verdict if self.report else Verdict.UNKNOWN


def bringup(
    spec: Spec,
    folder: RunFolder,
    *,
    fault: str = "",
    keep: bool = False,
    note: Note = lambda _: None,
    progress: Callable[..., None] = lambda *_: None,
) -> Outcome:
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
        catalog.kind_of(fault.split(maxsplit=1)[0])  # a misspelt kind is refused before anything is built
    outcome = Outcome()
    with _standing(spec, outcome, keep=keep, note=note) as lab, _faulty(lab, fault, outcome, note):
        began = time.monotonic()
        with connect(spec, recorder=_recorder(folder), folder=folder.path, note=note) as cluster:
            report = preflight.run(cluster, spec, folder, note=note, progress=progress)
        outcome.report = report
        took_s = time.monotonic() - began
        outcome.stages.append(
            Stage(name="preflight", verdict=report.verdict, took_s=took_s, said=preflight.headline(report))
        )
    return outcome


def _recorder(folder: RunFolder) -> Callable[[Any], None]:
    return lambda record: folder.append("commands.jsonl", msgspec.to_builtins(record))


@contextlib.contextmanager
def _standing(spec: Spec, outcome: Outcome, *, keep: bool, note: Note) -> Iterator[str]:
    """The lab the spec asks for, by name; an empty name for real nodes."""
    if not spec.is_lab:
        yield ""
        return
    shape = LabShape.from_spec(spec)
    was_up = enter.is_up(enter.read(shape.name))
    began = time.monotonic()
    state = up(shape)
    took_s = time.monotonic() - began
    topo = shape.topology
    said = f"{topo.num_hosts} hosts, {topo.planes} planes, {topo.num_switches} switches"
    said += ", real Slurm" if state.slurm else ""
    outcome.stages.append(
        Stage(name="lab up", verdict=Verdict.PASS, took_s=took_s, said=said + (", found standing" if was_up else ""))
    )
    note(f"lab {state.name}: {said}")
    try:
        yield shape.name
    finally:
        if not was_up and not keep:
            began = time.monotonic()
            down(shape.name)
            took_s = time.monotonic() - began
            outcome.stages.append(Stage(name="lab down", verdict=Verdict.PASS, took_s=took_s, said="nothing left"))


@contextlib.contextmanager
def _faulty(lab: str, words: str, outcome: Outcome, note: Note) -> Iterator[None]:
    """The lab with a fault in it, if one was asked for: `KIND [TARGET [NAME=VALUE ...]]`.

    A kind alone hits the middle of the lab, hard enough to matter.
    """
    if not words:
        yield
        return
    name, *rest = words.split()
    state = enter.running(lab)
    target = rest.pop(0) if rest and "=" not in rest[0] else default_target(state, catalog.kind_of(name).on)
    fault = apply.inject(lab, name, target, {**telling(state, name), **pairs(rest)})
    outcome.fault = fault
    note(f"fault {fault.kind} on {fault.target}")
    try:
        yield
    finally:
        with contextlib.suppress(FairleadError):  # the lab may be gone; then so is the fault
            apply.heal(lab, str(fault.id))


def default_target(state: LabState, on: str) -> str:
    """A part in the middle of the lab, for a fault that names none."""
    hosts = [host.name for host in state.hosts]
    host = hosts[len(hosts) // 2]
    planes = sorted({port.plane for port in state.hosts[0].ports})
    plane = planes[len(planes) // 2]
    return {"link": f"p{plane}/{host}", "switch": f"p{plane}/t0-0", "pair": f"{hosts[0]}:{host}"}.get(on, host)


def telling(state: LabState, kind: str) -> dict[str, str]:
    """Settings for a kind of fault whose own would be too mild to notice, or that has none."""
    return {
        "rate": {"mbps": f"{state.shape['rate_mbps'] / 20:g}"},
        "loss": {"percent": "5"},
        "driver-version": {"version": "535.54.03"},
        "library-version": {"version": "2407.0"},
        "firmware-version": {"version": "28.36.1010"},
    }.get(kind, {})

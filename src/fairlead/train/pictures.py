"""Pictures of a run: the schedule of a step as planned, what happened in one, loss and memory over time. Pure.

Must not know: torch, files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeGuard

from fairlead.records.verdict import Verdict
from fairlead.report.charts import Axis, Series, lines
from fairlead.report.gantt import Span, gantt
from fairlead.report.html import Page, Section
from fairlead.report.svg import Figure
from fairlead.train.schedule import Do, Schedule

_COLOURS = {Do.UPDATE: 1, Do.COPY: 2, Do.FORWARD: 0, Do.BACKWARD: 3}


def planned(schedule: Schedule, command: str = "") -> Figure:
    """One step as the schedule has it: which slot holds which block, and when it is computed with.

    The axis counts visits; a block lies in its slot from the visit before which it is copied to its last one.
    """
    spans = []
    held: dict[int, tuple[int, int]] = {}
    for place, visit in enumerate(schedule.visits):
        do = Do.FORWARD if visit.forward else Do.BACKWARD
        spans.append(
            Span("computing", f"{do} of block {visit.block}", place, place + 1, _COLOURS[do], str(visit.block))
        )
        if visit.load:
            held[visit.slot] = visit.block, place
        if visit.last:
            block, since = held.pop(visit.slot)
            what = f"block {block} lies in slot {visit.slot}"
            spans.append(Span(f"slot {visit.slot}", what, since, place + 1, _COLOURS[Do.COPY], str(block)))
    spans.sort(key=lambda span: (span.row != "computing", span.row, span.begin))
    desc = f"{schedule.num_blocks} layers through {schedule.num_slots} slots: {schedule.copies} copies a step"
    return gantt("A step as planned", desc, spans, x=Axis("visits", lo=0), command=command)


def happened(spans: Iterable[tuple[str, str, float, float]], command: str = "") -> Figure:
    """What a trace holds: row, name, begin and end in seconds."""
    found = [
        Span(row, name, begin, end, _colour(row, name), name.rpartition(" ")[2]) for row, name, begin, end in spans
    ]
    busy = {row: sum(s.end - s.begin for s in found if s.row == row) for row in dict.fromkeys(s.row for s in found)}
    whole = max((s.end for s in found), default=0.0) - min((s.begin for s in found), default=0.0)
    desc = ", ".join(f"{row} {taken / whole:.0%} of the time" for row, taken in busy.items()) if whole else "nothing"
    return gantt("What happened", desc, found, x=Axis("time", "s"), command=command)


def _colour(row: str, name: str) -> int:
    if row == "computing":
        return _COLOURS[Do.BACKWARD if name.startswith("backward") else Do.FORWARD]
    return _COLOURS[Do.UPDATE if row == "updates" else Do.COPY]


_MEMORY = {
    "host_gib": "host",
    "peak_host_gib": "host, peak so far",
    "device_gib": "device",
    "peak_device_gib": "device, peak so far",
}


def curves(told: Sequence[Mapping[str, Any]], command: str = "") -> list[Figure]:
    """Loss over steps; tokens a second and memory over the seconds of steps, from the lines of a metrics file."""
    losses = [(float(line["step"]), float(line["loss"])) for line in told if _is_number(line.get("loss"))]
    norms = [(float(line["step"]), float(line["grad_norm"])) for line in told if _is_number(line.get("grad_norm"))]
    clock, at = [], 0.0
    for line in told:
        seconds = line.get("seconds")
        taken = seconds.get("step") if isinstance(seconds, Mapping) else None
        at += taken if _is_number(taken) else 0.0
        clock.append(at)
    pairs = list(zip(clock, told, strict=True))
    memory = [
        Series(name, [(when, line[key] * 2.0**30) for when, line in pairs if _is_number(line.get(key))], number)
        for number, (key, name) in enumerate(_MEMORY.items())
        if any(_is_number(line.get(key)) for line in told)
    ]
    speed = [(when, float(line["tokens_per_s"])) for when, line in pairs if _is_number(line.get("tokens_per_s"))]
    step, time = Axis("step", lo=0), Axis("time in steps", "s", lo=0)
    found = [
        lines("Loss", _fell(losses), [Series("loss", losses)], x=step, y=Axis("loss"), command=command),
        lines(
            "Norm of gradients",
            "Before clipping.",
            [Series("norm", norms)],
            x=step,
            y=Axis("norm", lo=0),
            command=command,
        ),
        lines(
            "Tokens",
            "Real ones, a second.",
            [Series("tokens/s", speed)],
            x=time,
            y=Axis("tokens/s", lo=0),
            command=command,
        ),
        lines("Memory", "Of this process, by tier.", memory, x=time, y=Axis("memory", "B", lo=0), command=command),
    ]
    filled = (losses, norms, speed, [point for one in memory for point in one.points])
    return [figure for figure, points in zip(found, filled, strict=True) if points]


def page(name: str, told: Sequence[Mapping[str, Any]], command: str = "") -> Page:
    """All curves of a run."""
    figures = curves(told, command)
    losses = [(float(line["step"]), float(line["loss"])) for line in told if _is_number(line.get("loss"))]
    tokens = sum(line["tokens"] for line in told if _is_number(line.get("tokens")))
    return Page(
        title=f"Training {name}",
        verdict=Verdict.PASS,
        headline=_fell(losses),
        facts=[("steps", f"{len(told):,}"), ("tokens", f"{tokens:,}")],
        sections=[Section(figure.title, [figure]) for figure in figures],
        command=command,
    )


def _fell(losses: Sequence[tuple[float, float]]) -> str:
    if not losses:
        return "No step is done."
    (first, began), (last, ends) = losses[0], losses[-1]
    return f"The loss goes from {began:.4f} in step {first:.0f} to {ends:.4f} in step {last:.0f}."


def _is_number(said: object) -> TypeGuard[float]:
    """The file may hold anything."""
    return isinstance(said, (int, float)) and not isinstance(said, bool) and abs(said) < 1e300  # not nan

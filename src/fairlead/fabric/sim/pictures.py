"""Pictures of a run: the fabric with its faults, goodput around them, completion times, training steps.

Knows: which figure shows what. Must not know: how a chart is drawn (report), or how a run goes.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fairlead.base.units import rate
from fairlead.fabric.sim.faults import each, links
from fairlead.fabric.sim.model import Fault
from fairlead.fabric.sim.results import Results
from fairlead.fabric.sim.runner import Ended
from fairlead.fabric.sim.setup import NO_LIMIT
from fairlead.fabric.sim.summary import ENDED, flow_row
from fairlead.records.fabricview import FabricView, Host, Port, Switch, Trunk
from fairlead.records.verdict import Verdict
from fairlead.report import charts
from fairlead.report.charts import Axis, Bar, Level, Mark, Series
from fairlead.report.fabric_picture import fabric_figure
from fairlead.report.html import Code, Page, Section, Text, page_html
from fairlead.report.svg import Figure, Table

_DRAWN_T0 = 64  # a picture of more switches than this shows nothing
_MAX_LINES = 8
_MANY = 16  # messages whose arrivals make a curve

Floats = NDArray[np.float64]


def goodput(r: Results, command: str = "") -> Figure:
    """Payload placed over time, all planes together, with the faults."""
    times, means, width_us = _rates(r)
    ends = {"send": len(np.unique(r.setup.workload.src)), "receive": len(np.unique(r.setup.workload.dst))}
    fewer = min(ends, key=lambda side: ends[side])
    most = r.setup.nic_bits_per_s * ends[fewer] * r.setup.payload_share
    return charts.lines(
        "Goodput over time",
        f"Payload placed at the receivers, all planes together, in bins of {width_us:g} us.",
        [Series("goodput", _points(times, means.sum(axis=0)), colour="accent")],
        x=Axis("time", "s"),
        y=Axis("goodput", "b/s", lo=0),
        marks=_marks(r),
        levels=[Level(most, f"line rate of the NICs that {fewer}")],
        names="above",
        command=command,
    )


def planes(r: Results, command: str = "") -> Figure:
    """The same plane by plane."""
    times, means, width_us = _rates(r)
    return charts.lines(
        "Goodput by plane",
        f"Payload placed at the receivers, in bins of {width_us:g} us. Planes that carry the same lie on each other.",
        [Series(f"plane {p}", _points(times, mean), colour=p) for p, mean in enumerate(means)],
        x=Axis("time", "s"),
        y=Axis("goodput", "b/s", lo=0),
        marks=_marks(r),
        command=command,
        names="above",
    )


def traffic(r: Results, command: str = "") -> Figure:
    """Each part of the traffic by the messages that arrived."""
    parts = [p for p in r.parts if p.done >= _MANY]
    end = max(float(p.arrivals_us[-1]) for p in parts)
    edges = np.linspace(0, end, min(101, max(p.done for p in parts) // 4 + 2))
    series = []
    for number, part in enumerate(parts):
        placed, _ = np.histogram(part.arrivals_us, edges, weights=part.arrivals_bytes)
        rates = placed * 8e6 / np.diff(edges)
        steps = np.append(rates, rates[-1])  # the last value holds to the end
        series.append(Series(part.name, _points(edges / 1e6, steps), colour=number, kind="step"))
    return charts.lines(
        "Goodput by traffic",
        f"Messages complete at their receivers, in bins of {edges[1]:.3g} us.",
        series,
        x=Axis("time", "s"),
        y=Axis("goodput", "b/s", lo=0),
        marks=_marks(r),
        command=command,
        names="above",
    )


def _bins_a_point(r: Results) -> int:
    """How many bins of the run make one point of a picture: no more points than can be seen."""
    return max(1, len(r.goodput_bits_per_s[0]) // 400)


def _times(r: Results, num: int) -> Floats:
    """The middle of each of so many points, in seconds."""
    return (np.arange(num, dtype=np.float64) + 0.5) * r.bin_us * _bins_a_point(r) / 1e6


def _rates(r: Results) -> tuple[Floats, Floats, float]:
    """Middle of each bin in seconds, goodput [plane, bin], width of a bin."""
    width = _bins_a_point(r)
    whole = r.goodput_bits_per_s.shape[1] // width * width
    means = r.goodput_bits_per_s[:, :whole].reshape(len(r.goodput_bits_per_s), -1, width).mean(axis=2)
    return _times(r, len(means[0])), means, r.bin_us * width


def _points(x: Floats, y: Floats) -> list[tuple[float, float]]:
    return list(zip(x.tolist(), y.tolist(), strict=True))


def _marks(r: Results) -> list[Mark]:
    end = r.end.time_ps / 1e12
    found: list[Mark] = []
    for fault in r.setup.scenario.fault[:6]:
        found.append(Mark(fault.at_us / 1e6, f"{fault_words(fault)}", "fail"))
        if fault.until_us:
            found.append(Mark(fault.until_us / 1e6, "repaired", "pass"))
    return [m for m in found if m.at <= end]


def fault_words(fault: Fault) -> str:
    """A fault in a few words."""
    where = []
    for key, several in (("plane", fault.planes), ("nic", fault.nics), ("t0", None), ("t1", fault.t1s)):
        if several and not several.is_all:
            where.append(f"{key}s {several.text}")
        elif getattr(fault, key) >= 0:
            where.append(f"{key} {getattr(fault, key)}")
    how = {
        "loss": f"loses {fault.loss:.3g}",
        "slow": f"at {fault.rate:g} of its rate",
        "paths": f"paths lose {fault.loss:g}",
    }
    verb = how.get(fault.kind, "flaps" if fault.flap_us else "down")
    each_later = f", {fault.apart_us:g} us apart" if fault.apart_us else ""
    what = fault.kind if fault.kind in {"link", "port", "t0", "t1"} else ""
    return " ".join(filter(None, [what, *where, verb])) + each_later


def completion(r: Results, command: str = "") -> Figure:
    """How many messages were complete after how long, one curve for each part of the traffic."""
    curves = {
        p.name if len(r.parts) == 1 else f"{i}: {p.name}": (p.fct_us / 1e6).tolist()
        for i, p in enumerate(r.parts)
        if p.done
    }
    return charts.cdf(
        "Completion times",
        "Share of messages complete within a time, from when each might go to when its sender knew.",
        curves,
        x=Axis("completion time", "s"),
        command=command,
    )


def queues(r: Results, command: str = "") -> Figure:
    """The deepest queue of each tier."""
    limit = r.setup.queues.data_limit
    levels = (
        [Level(limit, "full: trimmed beyond" if r.setup.queues.trim else "full: dropped beyond")]
        if limit < NO_LIMIT
        else []
    )
    return charts.bars(
        "Deepest queues",
        "The most bytes that waited at once at any port of a tier.",
        [Bar(name, float(num), colour=i) for i, (name, num) in enumerate(r.max_queue.items())],
        x=Axis("bytes", "B"),
        levels=[*levels, Level(r.setup.queues.ecn_low, "ECN low")] if r.setup.scenario.queues.ecn else levels,
        command=command,
    )


def depths(r: Results, command: str = "") -> Figure:
    """The deepest queue of each tier over time."""
    width = _bins_a_point(r)
    series = []
    for number, (name, values) in enumerate(r.queue_bytes.items()):
        deepest = values[: len(values) // width * width].reshape(-1, width).max(axis=1)
        series.append(Series(name, _points(_times(r, len(deepest)), deepest.astype(np.float64)), colour=number))
    return charts.lines(
        "Queues over time",
        f"The deepest data queue at any port of a tier, in bins of {r.bin_us * width:g} us.",
        series,
        x=Axis("time", "s"),
        y=Axis("bytes", "B", lo=0),
        marks=_marks(r),
        command=command,
        names="above",
    )


def paths(r: Results, command: str = "") -> Figure:
    """Entropy values by state at the end of the run."""
    roles = {"skip": "warn", "assumed bad": "fail", "denied": "muted", "standby": "muted"}
    return charts.bars(
        "Paths at the end",
        "Entropy values of all queue pairs by state. Those marked skip are in rotation too, and are passed over once.",
        [Bar(name, float(num), colour=roles.get(name, "accent")) for name, num in r.ev_states.items()],
        x=Axis("entropy values"),
        command=command,
    )


def steps(r: Results, command: str = "") -> Figure:
    """How long each training step took."""
    return charts.bars(
        "Training steps",
        "From when the first NIC may compute to when the last NIC has its result.",
        [
            Bar(f"step {s.number}", (s.end_us - s.begin_us) / 1e6, colour="accent")
            for s in r.steps
            if s.end_us == s.end_us
        ],
        x=Axis("step time", "s"),
        command=command,
    )


def fabric(r: Results, command: str = "") -> Figure | None:
    """The fabric with what its faults touched; None where it has too many switches, or three tiers, to be drawn."""
    shape = r.setup.shape
    if shape.cores or shape.t0 > _DRAWN_T0 or shape.t1 > _DRAWN_T0:
        return None
    switches: dict[tuple[int, Literal[0, 1], int], str] = {}
    ports: dict[tuple[str, int], str] = {}
    trunks: dict[tuple[int, int, int], str] = {}
    for fault in r.setup.scenario.fault:
        for part in each(fault) if fault.kind != "paths" else []:
            note = fault_words(part)
            for link in links(shape, part):
                if part.kind in ("t0", "t1"):
                    tier: Literal[0, 1] = 1 if part.kind == "t1" else 0
                    switches[link.plane, tier, part.t1 if tier else part.t0] = note
                elif link.nic >= 0:
                    ports[f"n{link.nic}", link.plane] = note
                elif link.t1 >= 0:
                    trunks[link.plane, link.t0, link.t1] = note
    view = FabricView(
        title=r.setup.scenario.title or "fabric",
        num_planes=shape.planes,
        num_t0=shape.t0,
        num_t1=shape.t1,
        hosts=tuple(Host(name=f"n{i}", t0=i // shape.hosts, state="up") for i in range(shape.num_nics)),
        switches=tuple(Switch(plane=p, tier=t, index=i, state="down", note=n) for (p, t, i), n in switches.items()),
        ports=tuple(Port(host=h, plane=p, state="faulty", note=n) for (h, p), n in ports.items()),
        trunks=tuple(Trunk(plane=p, t0=a, t1=b, state="faulty", note=n) for (p, a, b), n in trunks.items()),
        rate_bps=shape.tiers[0].rate_gbps * 1e9,
        trunk_rate_bps=shape.tiers[1].rate_gbps * 1e9,
    )
    return fabric_figure(view, title="The fabric and its faults", command=command)


def verdict(r: Results) -> Verdict:
    """Pass where every message is complete; a run that was cut short by its time limit or stalled is a warning."""
    if r.end.ended is Ended.DONE:
        return Verdict.PASS
    return Verdict.UNKNOWN if r.end.ended is Ended.INTERRUPTED else Verdict.WARN


def figures(r: Results, command: str = "") -> dict[str, Figure]:
    """Every picture this run can be shown by, by a short name."""
    found: dict[str, Figure | None] = {"goodput": goodput(r, command)}
    if 1 < r.setup.shape.planes <= _MAX_LINES:
        found["planes"] = planes(r, command)
    if len(r.parts) > 1 and sum(p.done >= _MANY for p in r.parts):
        found["traffic"] = traffic(r, command)
    if sum(p.done for p in r.parts) >= _MANY:
        found["completion"] = completion(r, command)
    found["queues"] = queues(r, command)
    found["depths"] = depths(r, command)
    if r.ev_states:
        found["paths"] = paths(r, command)
    if r.steps:
        found["steps"] = steps(r, command)
    found["fabric"] = fabric(r, command)
    return {name: figure for name, figure in found.items() if figure}


_COUNTERS = (
    "new", "retransmitted", "sacks", "nacks", "timeouts", "marked", "trimmed", "dropped", "lost", "failed_flows",
)  # fmt: skip


def page(r: Results, *, command: str, version: str, written: str) -> str:
    """One HTML file about a run."""
    shape, c = r.setup.shape, r.counters
    header = ["traffic", "done", "FCT min (us)", "p50", "p99", "max", "all (us)", "bound", "slowdown"]
    all_figures = figures(r, command)

    def drawn(*names: str) -> list[Figure]:
        return [all_figures[name] for name in names if name in all_figures]

    packets = [[name.replace("_", " "), f"{getattr(c, name):,}"] for name in _COUNTERS]
    return page_html(
        Page(
            title=r.setup.scenario.title or "fabric simulation",
            verdict=verdict(r),
            headline=f"{shape.num_nics:,} NICs x {shape.planes} planes, {r.end.time_ps / 1e6:,.1f} us: "
            f"{ENDED[r.end.ended]}",
            facts=[
                ("NICs", f"{shape.num_nics:,}"),
                ("switches", f"{shape.num_switches:,}"),
                ("hops", f"{r.end.hops:,}"),
                ("took", f"{r.end.wall_s:.1f} s"),
                ("goodput", rate(r.mean_goodput)),
            ],
            sections=[
                Section(
                    "Traffic",
                    [Table(header=header, rows=[flow_row(part) for part in r.parts]), *drawn("completion", "steps")],
                ),
                Section("Over time", drawn("goodput", "planes", "traffic")),
                Section("Queues and paths", drawn("queues", "depths", "paths", "fabric")),
                Section("Packets", [Table(header=["what", "number"], rows=packets)]),
                Section(
                    "Again",
                    [Text("The same scenario and seed give the same run, with any number of threads."), Code(command)],
                ),
            ],
            command=command,
            version=version,
            written=written,
        )
    )

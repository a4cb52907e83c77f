"""Pictures of a run: the fabric with its faults, goodput around them, completion times, training steps.

Knows: which figure shows what. Must not know: how a chart is drawn (report), or how a run goes.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from fairlead.fabric.sim.faults import links
from fairlead.fabric.sim.model import Fault
from fairlead.fabric.sim.results import Results
from fairlead.fabric.sim.runner import Ended
from fairlead.fabric.sim.summary import quantiles, slowdown
from fairlead.records.fabricview import FabricView, Host, Port, Switch, Trunk
from fairlead.records.verdict import Verdict
from fairlead.report import charts
from fairlead.report.charts import Axis, Bar, Level, Mark, Series
from fairlead.report.fabric_picture import fabric_figure
from fairlead.report.html import Code, Page, Section, Text, page_html
from fairlead.report.svg import Figure, Table

_DRAWN_T0 = 64  # a picture of more switches than this shows nothing
_MAX_LINES = 8


def goodput(r: Results, command: str = "") -> Figure:
    """Payload placed over time, one line a plane (or one for all where there are many), with the faults."""
    times = (np.arange(r.goodput_bits_per_s.shape[1]) + 0.5) * r.bin_us / 1e6
    width = max(1, len(times) // 400)
    usable = len(times) // width * width
    means = r.goodput_bits_per_s[:, :usable].reshape(len(r.goodput_bits_per_s), -1, width).mean(axis=2)
    times = times[:usable].reshape(-1, width).mean(axis=1)
    planes = len(means)
    if planes <= _MAX_LINES:
        series = [
            Series(f"plane {p}", list(zip(times.tolist(), means[p].tolist(), strict=True)), colour=p)
            for p in range(planes)
        ]
    else:
        series = [
            Series("all planes", list(zip(times.tolist(), means.sum(axis=0).tolist(), strict=True)), colour="accent")
        ]
    levels = []
    if planes > 1:
        per_plane = (
            r.setup.nic_bits_per_s / r.setup.shape.planes * len(np.unique(r.setup.workload.src)) * r.setup.payload_share
        )
        levels = [Level(per_plane, "line rate of the senders, payload")]
    return charts.lines(
        "Goodput over time",
        f"Payload placed at the receivers in bins of {r.bin_us * width:g} us.",
        series,
        x=Axis("time", "s"),
        y=Axis("goodput", "b/s", lo=0),
        marks=_marks(r),
        levels=levels,
        command=command,
    )


def _marks(r: Results) -> list[Mark]:
    end = r.outcome.time_ps / 1e12
    found: list[Mark] = []
    for fault in r.setup.scenario.fault[:6]:
        found.append(Mark(fault.at_us / 1e6, f"{fault_words(fault)}", "fail"))
        if fault.until_us:
            found.append(Mark(fault.until_us / 1e6, "repaired", "pass"))
    return [m for m in found if m.at <= end]


def fault_words(fault: Fault) -> str:
    """A fault in a few words."""
    where = [f"{key} {getattr(fault, key)}" for key in ("plane", "t0", "t1", "nic") if getattr(fault, key) >= 0]
    how = {
        "loss": f"loses {fault.loss:g}",
        "slow": f"at {fault.rate:g} of its rate",
        "paths": f"paths lose {fault.loss:g}",
    }
    verb = how.get(fault.kind, "flaps" if fault.flap_us else "down")
    return " ".join([fault.kind if fault.kind in ("link", "port", "t0", "t1") else "", *where, verb]).strip()


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
        if limit < 1 << 30
        else []
    )
    return charts.bars(
        "Deepest queues",
        "The most bytes that waited at once at any port of a tier.",
        [Bar(name, float(num), colour=i) for i, (name, num) in enumerate(r.max_queue.items())],
        x=Axis("bytes", "B"),
        levels=[*levels, Level(r.setup.queues.ecn_low, "ECN low")],
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
        note = fault_words(fault)
        for link in links(shape, fault) if fault.kind != "paths" else []:
            if fault.kind in ("t0", "t1"):
                tier: Literal[0, 1] = 1 if fault.kind == "t1" else 0
                switches[link.plane, tier, fault.t1 if tier else fault.t0] = note
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
    if r.outcome.ended is Ended.DONE:
        return Verdict.PASS
    return Verdict.UNKNOWN if r.outcome.ended is Ended.INTERRUPTED else Verdict.WARN


def figures(r: Results, command: str = "") -> dict[str, Figure]:
    """Every picture this run can be shown by, by a short name."""
    found: dict[str, Figure | None] = {"fabric": fabric(r, command), "goodput": goodput(r, command)}
    if any(p.done for p in r.parts):
        found["completion"] = completion(r, command)
    found["queues"] = queues(r, command)
    if r.steps:
        found["steps"] = steps(r, command)
    return {name: figure for name, figure in found.items() if figure}


_COUNTERS = (
    "new", "retransmitted", "sacks", "nacks", "timeouts", "marked", "trimmed", "dropped", "lost", "failed_flows",
)  # fmt: skip


def page(r: Results, *, command: str, version: str, written: str) -> str:
    """One HTML file about a run."""
    shape, c = r.setup.shape, r.counters
    rows = [
        [
            p.name,
            f"{p.done:,} of {p.messages:,}",
            *(quantiles(p.fct_us).get(q, "-") for q in ("min", "p50", "p99", "max")),
            quantiles(slowdown(p)).get("p50", "-") if p.done else "-",
        ]
        for p in r.parts
    ]
    header = ["traffic", "done", "FCT min (us)", "p50", "p99", "max", "slowdown p50"]
    packets = [[name.replace("_", " "), f"{getattr(c, name):,}"] for name in _COUNTERS]
    return page_html(
        Page(
            title=r.setup.scenario.title or "fabric simulation",
            verdict=verdict(r),
            headline=f"{shape.num_nics:,} NICs x {shape.planes} planes, {r.outcome.time_ps / 1e6:,.1f} us played; "
            f"{r.outcome.ended}",
            facts=[
                ("NICs", f"{shape.num_nics:,}"),
                ("switches", f"{shape.num_switches:,}"),
                ("hops", f"{r.outcome.hops:,}"),
                ("took", f"{r.outcome.wall_s:.1f} s"),
                ("goodput", f"{r.mean_goodput / 1e12:.2f} Tb/s"),
            ],
            sections=[
                *[Section(figure.title, [figure]) for figure in figures(r, command).values()],
                Section("Traffic", [Table(header=header, rows=rows)]),
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

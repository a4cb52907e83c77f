"""A report with everything in it, as a verb would make it; `hostile` lets the nodes speak."""

from __future__ import annotations

import functools
import math

from fairlead.records.finding import Evidence, Finding, Subject, WaiverNote
from fairlead.records.verdict import Verdict
from fairlead.report import charts
from fairlead.report.charts import Axis, Bar, Level, Mark, Series
from fairlead.report.fabric_picture import fabric_figure
from fairlead.report.html import Code, Page, Section, Table, Text
from fairlead.report.svg import Figure
from support.views import large, medium, small


def goodput() -> Figure:
    """Four planes, one of them silent for a while."""

    def rate(plane: int, t: float) -> float:
        if plane == 2 and 3e-3 <= t < 7e-3:
            return 1e6
        return 2.35e8 * (1 + 0.01 * math.sin(plane + 1e5 * t))

    times = [i * 1e-5 for i in range(1001)]
    return charts.lines(
        "Goodput through a plane failure",
        "Plane 2 goes silent at 3 ms and is back at 7 ms.",
        [Series(f"plane {p}", [(t, rate(p, t)) for t in times], p) for p in range(4)],
        x=Axis("time", "s"),
        y=Axis("goodput", "b/s", lo=0),
        marks=[
            Mark(3e-3, "plane 2 goes silent", "fail"),
            Mark(3.2e-3, "detected", "warn"),
            Mark(7e-3, "plane 2 is back", "pass"),
        ],
        levels=[Level(250e6, "shaped rate")],
        command="fairlead fabric sim run flap.toml",
    )


def completion() -> Figure:
    """Four distributions that end at the same height."""
    samples = {
        name: [scale * (1 + math.tan(math.pi * (i + 0.5) / 4200)) for i in range(2000)]
        for name, scale in (("MRC", 2e-5), ("REPS", 2.4e-5), ("RoCE, DCQCN", 5e-5), ("ECMP", 9e-5))
    }
    return charts.cdf("Flow completion time", "MRC is left.", samples, x=Axis("FCT", "s", log=True))


def busbw() -> Figure:
    """One slow node among good ones, one with a long name."""
    rows = [
        Bar("n0", 1.2e9),
        Bar("n1", 1.19e9),
        Bar("n2", 2.5e8, note="link at 1/20 of the rate", verdict=Verdict.FAIL),
        Bar("a-very-long-node-name-in-some-region-0000123", 1.18e9),
    ]
    limits = [Level(1.2e9, "fleet median"), Level(1.15e9, "floor of the size")]
    return charts.bars("Bus bandwidth", "n2 is slow.", rows, x=Axis("busbw", "B/s"), levels=limits)


@functools.cache
def figures() -> list[Figure]:
    """One of each kind."""
    return [goodput(), completion(), busbw(), fabric_figure(small()), fabric_figure(medium()), fabric_figure(large())]


@functools.cache
def page(hostile: str = "") -> Page:
    """A failed preflight."""
    fail = Finding(
        code="preflight/slow-port",
        verdict=Verdict.FAIL,
        subject=Subject(kind="port", nodes=("n2",), name="plane 1" + hostile),
        message="carries 12 Mb/s, its siblings 236 to 242 Mb/s" + hostile,
        evidence=(Evidence("pair n2 -> n0, plane 1" + hostile, "11.9 Mb/s" + hostile),),
        remedy="sbatch --exclude=n2 train.sbatch" + hostile,
        waived=WaiverNote(reason="known" + hostile, expires="2026-12-01", was=Verdict.FAIL),
    )
    warn = [
        Finding(
            code="host/memlock",
            verdict=Verdict.WARN,
            subject=Subject(kind="node", nodes=(f"n{i}",)),
            message="the memlock limit is 8 GiB, RDMA wants none",
            evidence=(Evidence("/proc/self/limits", "Max locked memory 8589934592" + hostile),),
        )
        for i in (0, 1, 3)
    ]
    passes = [
        Finding(
            code=f"host/check-{j}",
            verdict=Verdict.PASS,
            subject=Subject(kind="node", nodes=(f"n{i}",)),
            message="as it should be" + hostile,
        )
        for i in range(4)
        for j in range(12)
    ]
    table = Table(header=["size", "time" + hostile], rows=[["1 MiB", "12.1 ms"], ["64 MiB", "711 ms" + hostile]])
    return Page(
        title="preflight of lab" + hostile,
        verdict=Verdict.FAIL,
        headline="n2 is slow on plane 1: 12 Mb/s where its siblings carry 238" + hostile,
        findings=[*passes, *warn, fail],
        facts=[("nodes", "4"), ("ranks", "16"), ("took", "9.8 s"), ("run" + hostile, "20261120-214207-preflight-7f3a")],
        next=["sbatch --exclude=n2 train.sbatch" + hostile],
        sections=[
            Section("Fabric" + hostile, [fabric_figure(small(), command="fairlead preflight" + hostile)]),
            Section(
                "Collective", [Text("All-reduce over 16 ranks." + hostile), table, goodput(), completion(), busbw()]
            ),
            Section("Larger fabrics", figures()[4:]),
            Section("Log", [Code("Total Execution Ranks: 16 " + "x" * 300 + hostile)]),
        ],
        command="fairlead preflight -f cluster.toml" + hostile,
        version="0.1.0",
        written="2026-11-20T21:42:07Z",
    )

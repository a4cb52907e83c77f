"""A report as one HTML page: the fabric drawn with what was judged, findings on top, tables below. Pure."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any, Literal

from fairlead.base.units import duration, rate, size
from fairlead.preflight import faces
from fairlead.preflight.pairs.naming import path_name
from fairlead.preflight.ranks.judge import bandwidth
from fairlead.preflight.report import PreflightReport
from fairlead.records.fabricview import FabricView, Host, Pair, Port, Switch, Trunk
from fairlead.records.finding import Finding
from fairlead.records.report import headline
from fairlead.records.runs import now_utc
from fairlead.records.verdict import Verdict
from fairlead.report.fabric_picture import fabric_figure
from fairlead.report.html import Block, Code, Page, Section, Table, Text
from fairlead.spec.topology import fabric_link_name, t0_name, t1_name

MAX_PAIRS = 400
"""Measured pairs in the table; all of them are in pairs.json."""
_SHOWN = (Verdict.FAIL, Verdict.WARN, Verdict.UNKNOWN)


def page_of(
    report: PreflightReport, *, command: str = "fairlead preflight", run_id: str = "", version: str = ""
) -> Page:
    """The whole page; `report.html.page_html` turns it into text."""
    ranks = len(report.ranks.ends) if report.ranks else 0
    facts = [
        ("nodes", f"{len(report.good)} of {len(report.nodes)} usable"),
        ("ranks", str(ranks)),
        ("took", duration(sum(report.took_s.values()))),
    ]
    if run_id:
        facts.append(("run", run_id))
    return Page(
        title=f"preflight of {report.spec.cluster.name}",
        verdict=report.verdict,
        headline=headline(report),
        findings=list(report.findings),
        facts=facts,
        sections=[
            s
            for s in (_fabric(report), _next(report), _collective(report), _pairs(report), _topology(report))
            if s.blocks
        ],
        command=command,
        version=version,
        written=now_utc(),
    )


def fabric_view(report: PreflightReport) -> FabricView | None:
    """The fabric with what was measured and judged; None where the cluster file does not say how it is built."""
    fabric = report.spec.fabric
    num_t0, groups = fabric.t0 or 0, report.paths.groups if report.paths else {}
    if report.paths is None or not groups or max(groups.values()) >= num_t0:
        return None
    notes = _notes(report.findings)
    hosts = tuple(Host(name=n, t0=groups.get(n, 0), **_state(notes.get(("node", n)))) for n in report.nodes)
    return FabricView(
        title=report.spec.cluster.name,
        num_planes=fabric.planes,
        num_t0=num_t0,
        num_t1=fabric.t1 or 1,
        hosts=hosts,
        ports=tuple(_ports(report, notes)),
        switches=tuple(
            Switch(plane=p, tier=tier, index=i, **_state(notes[("plane", name(p, i))]))
            for p in range(fabric.planes)
            for tier, name, num in _tiers(num_t0, fabric.t1 or 1)
            for i in range(num)
            if ("plane", name(p, i)) in notes
        ),
        trunks=tuple(
            Trunk(plane=p, t0=i, t1=j, **_state(notes[("link", fabric_link_name(p, i, j))]))
            for p in range(fabric.planes)
            for i in range(num_t0)
            for j in range(fabric.t1 or 1)
            if ("link", fabric_link_name(p, i, j)) in notes
        ),
        pairs=tuple(_pairs_of(report.findings)),
        rate_bps=report.paths.rate_bps,
    )


def _tiers(num_t0: int, num_t1: int) -> Iterable[tuple[Literal[0, 1], Callable[[int, int], str], int]]:
    """Tier, how its switches are called, and how many a plane has."""
    return (0, t0_name, num_t0), (1, t1_name, num_t1)


def _notes(findings: Iterable[Finding]) -> dict[tuple[str, str], Finding]:
    """The first finding about each part, by kind and name."""
    out: dict[tuple[str, str], Finding] = {}
    for finding in findings:
        if finding.verdict not in _SHOWN:
            continue
        subject = finding.subject
        if subject.kind in ("node", "device", "rank"):
            for name in subject.nodes:
                out.setdefault(("node", name), finding)
        elif subject.kind == "port":
            out.setdefault(("port", f"{subject.nodes[0]} {subject.name}"), finding)
        elif subject.kind in ("plane", "link"):
            out.setdefault((subject.kind, subject.name), finding)
    return out


def _state(finding: Finding | None) -> dict[str, Any]:
    if finding is None:
        return {}
    return {"state": "faulty", "note": finding.message, "verdict": finding.verdict}


def _ports(report: PreflightReport, notes: dict[tuple[str, str], Finding]) -> Iterable[Port]:
    rates: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    pairs = report.pairs
    if pairs is not None:
        for speed in chain(pairs.speeds, pairs.speeds_again):
            for end in (speed.src, speed.dst):
                if speed.rate_bps and speed.path not in pairs.ways:
                    rates[pairs.nodes[end], speed.path - 1].append(speed.rate_bps)
    for host in report.nodes:
        for plane in range(report.spec.fabric.planes):
            finding = notes.get(("port", f"{host} plane {plane}")) or notes.get(("plane", f"plane {plane}"))
            found = rates.get((host, plane))
            measured = statistics.median(found) if found else None
            if finding or measured:
                yield Port(host=host, plane=plane, rate_bps=measured, **_state(finding))


def _pairs_of(findings: Iterable[Finding]) -> Iterable[Pair]:
    for finding in findings:
        if finding.subject.kind == "pair" and finding.verdict in _SHOWN:
            name = finding.subject.name.removeprefix("plane ")
            a, b = finding.subject.nodes
            yield Pair(
                a=a,
                b=b,
                plane=int(name) if name.isdigit() else None,
                note=finding.message,
                verdict=finding.verdict,
            )


# ---- sections --------------------------------------------------------------------------------------------------------


def _fabric(report: PreflightReport) -> Section:
    view = fabric_view(report)
    return Section("Fabric", [fabric_figure(view, command="fairlead preflight")] if view else [])


def _next(report: PreflightReport) -> Section:
    blocks: list[Block] = []
    if report.exclude:
        blocks = [Text("Leave the bad nodes out:"), Code(f"sbatch {report.exclude} JOB.sbatch")]
    blocks += [Text(f"{node}: {before}") for node, before in report.history.items()]
    return Section("What to do", blocks)


def _collective(report: PreflightReport) -> Section:
    found = bandwidth(report.ranks) if report.ranks else {}
    rows = [(size(b), duration(t), f"{busbw / 1e9:.3f}") for b, (t, busbw) in found.items()]
    lines = faces.stable_lines(report)
    blocks: list[Block] = [Code(lines)] if lines else []
    if rows:
        blocks.append(Table(header=("message", "time", "busbw GB/s"), rows=rows))
    return Section("Collective", blocks)


def _pairs(report: PreflightReport) -> Section:
    summary = next((f for f in report.findings if f.code == "preflight/pairs"), None)
    if summary is None or report.pairs is None:
        return Section("Pairs", [])
    facts = report.pairs
    rows = [
        (
            facts.nodes[s.src],
            facts.nodes[s.dst],
            path_name(facts, s.path),
            rate(s.rate_bps) if s.rate_bps else "-",
            duration(s.rtt_ns / 1e9) if s.rtt_ns else "-",
        )
        for s in sorted(facts.speeds, key=lambda s: (s.src, s.dst, s.path))[:MAX_PAIRS]
    ]
    return Section(
        "Pairs", [Text(summary.message), Table(header=("from", "to", "path", "rate", "round trip"), rows=rows)]
    )


def _topology(report: PreflightReport) -> Section:
    text = "\n\n".join(t for t in (faces.topology(report), faces.nodes(report), faces.ports(report.facts)) if t)
    return Section("Ranks, nodes and ports", [Code(text)] if text else [])

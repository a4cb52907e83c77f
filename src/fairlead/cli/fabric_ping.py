"""`fairlead fabric ping`: loss and round-trip time of every path between nodes, and the link that is to blame."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from fairlead.base.nodeset import fold
from fairlead.base.program import Program
from fairlead.base.table import table
from fairlead.base.units import counted, duration
from fairlead.cli.common import Common, Exclude, Nodes, SpecFile
from fairlead.cli.fabric_ping_run import SLACK_S, START_S, Run
from fairlead.cli.output import Answer, session
from fairlead.errors import FabricError, UsageError
from fairlead.preflight.pairs import pinged
from fairlead.preflight.pairs.pinged import Plan
from fairlead.records.finding import Finding, verdict_of
from fairlead.records.verdict import Verdict
from fairlead.report.text import counts_line, findings_text, paint_for

PARTS = ("fairlead.cluster.channel", "fairlead.cli.fabric_nics", "fairlead.cli.fabric_pinger")
MAX_PACKETS_PER_S = 20_000
MAX_PACKETS = 4_000_000
"""Of a node: it keeps 16 bytes of each."""
WORST = 10
MAX_SIZE = 65_507
"""Of a UDP packet; what fits a port's MTU is known when the nodes have said it."""


def ping(
    *,
    nodes: Nodes = None,
    exclude: Exclude = "",
    count: int = 300,
    interval: float = 0.02,
    size: int = 256,
    spec: SpecFile = None,
    common: Common = Common(),
) -> Answer:
    """Send packets over every path between nodes, and name the link, switch, port or node that loses or delays them.

    On a fabric steered by micro-segments every path is chosen by address, and every link between switches is tested by
    itself: packets go up over it and back to their sender. Elsewhere several UDP source ports are tried on every rail.
    Nothing is installed on the nodes. Packets leave by the NIC that has their address, and four of each path are of
    full size, so that a hop with a smaller MTU shows. Exit codes: 0 no path loses or delays packets; 3 a part fails;
    4 a node gave no answer, or a port was not tested.

    Parameters
    ----------
    count
        Packets over each path. A loss of 0.6 % between two nodes is found with 300, of 0.15 % with 3000; the limit is
        0.04 %, and `[preflight.limits]` sets another. Of links between switches by themselves, about ten times as much.
    interval
        Seconds between two packets over one path.
    size
        Bytes of payload, up to what the ports' MTU leaves.
    spec
        The cluster file; else FAIRLEAD_SPEC, ./cluster.toml, or the lab.
    """
    from fairlead.cli.probe import from_nodes
    from fairlead.cluster import connect
    from fairlead.preflight.pairs.limits import limits_of
    from fairlead.preflight.pairs.paths import paths_of
    from fairlead.probe.addresses import book_of

    for ok, what in (
        (8 <= count <= 1_000_000, "--count must be 8 to 1000000"),
        (0.001 <= interval <= 60, "--interval must be 0.001 to 60"),
        (64 <= size <= MAX_SIZE, f"--size must be 64 to {MAX_SIZE}"),
    ):
        if not ok:
            raise UsageError("cli/usage", what, hint="fairlead fabric ping --help")
    facts, silent, cluster_file, folder = from_nodes(nodes, exclude, None, spec, common, imds=False)
    book = book_of(facts)
    names = [place.node for place in book.places if place.address or any(p.address for p in place.ports)]
    if len(names) < 2:
        raise FabricError(
            "fabric/no-place",
            f"pinging takes two nodes with an address; {counted(len(names), 'node')} of "
            f"{len(facts) + len(silent)} asked has one",
            hint="ask more nodes, or see what they have: fairlead probe",
        )
    plan = pinged.plan_of(names, paths_of(book))
    each = max(sum(p.src == n for p in plan.pings) for n in range(len(names)))
    if count * each > MAX_PACKETS:
        raise UsageError(
            "cli/usage",
            f"a node has up to {counted(each, 'path')}: {count * each:,} packets, and {MAX_PACKETS:,} are the most",
            hint=f"--count {MAX_PACKETS // each}",
        )
    interval = max(interval, each / MAX_PACKETS_PER_S)
    wish = {"count": count, "interval_s": interval, "size": size}
    run = Run(plan, wish, lambda done, total: session().progress("nodes", done, total, ""))
    program = Program.of("fairlead-ping", *PARTS, call="main()")
    limit_s = START_S + count * interval + SLACK_S
    with connect(cluster_file) as cluster, cluster.start(program, ",".join(names), limit_s=limit_s) as group:
        run.run(group, count * interval)
    assert folder is not None
    rows = list(run.rows())
    folder.write("paths.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    limits = limits_of(cluster_file)
    of_paths = run.judged(limits, {node: pool.name for pool in cluster_file.pools for node in pool.nodes})
    findings = [*silent, *of_paths]
    least, apart = pinged.findable(plan, count, limits), pinged.groups(plan, run.seen(), limits)
    folder.write("findings.json", findings)
    body = {"nodes": names, "count": count, "interval_s": interval, "paths": rows, "findings": findings}
    body |= {"loss_found": least, "groups": [{"path": path, "nodes": [fold(g) for g in own]} for path, own in apart]}
    return Answer(
        schema="fairlead.fabric-ping/1",
        verdict=verdict_of(findings) if findings else Verdict.PASS,
        text=lambda: _page(plan, rows, findings, [*_apart(apart), *_least(least)]),
        body=body,
        hints=["fairlead preflight"] if findings else [],
    )


def _apart(groups: list[tuple[str, list[list[str]]]]) -> Iterator[str]:
    """Groups of nodes with a longer way between them than within."""
    for path, own in groups:
        yield f"{path}: {' and '.join(map(fold, own))} stand apart, and none of them is late among its own"


def _least(share: float) -> Iterator[str]:
    if share < 1:
        yield f"a loss of {share:.2%} or more between two nodes is found: a longer --count finds smaller ones"


def _page(plan: Plan, rows: list[dict[str, Any]], findings: list[Finding], notes: list[str]) -> str:
    """A line for each way through the fabric, the worst paths, then who is to blame."""
    import sys

    ways: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        ways[row["path"].partition(" flow ")[0]].append(row)
    lines = []
    for way, own in sorted(ways.items()):
        sent, lost = sum(r["sent"] for r in own), sum(r["lost"] for r in own)
        of: tuple[tuple[str, Callable[[list[float]], float]], ...]
        of = (("min_us", min), ("p50_us", _middle), ("p99_us", max))
        times = [([row[key] for row in own if row[key]], how) for key, how in of]
        best = [_us(how(known)) if known else "-" for known, how in times]
        lines.append([way, str(len(own)), f"{sent:,}", f"{lost / sent:.2%}", *best])
    text = [table(["WAY", "PATHS", "SENT", "LOST", "RTT MIN", "MEDIAN", "WORST P99"], lines)]
    worst = sorted((r for r in rows if r["lost"]), key=lambda r: -r["lost"])[:WORST]
    if worst:
        shown_ = [
            [r["from"], r["to"], r["path"], f"{r['lost'] / r['sent']:.1%}", str(r["lost_out"]), str(r["lost_back"])]
            for r in worst
        ]
        text.append(table(["FROM", "TO", "PATH", "LOST", "ON THE WAY", "COMING BACK"], shown_))
    if findings:
        text.append(findings_text(findings, paint_for(sys.stdout)))
    text.append("\n".join([*notes, f"{pinged.tested(plan)}; {_counted(findings)}"]))
    return "\n\n".join(text)


def _counted(findings: list[Finding]) -> str:
    return counts_line(findings) if findings else "no path is to blame"


def _middle(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def _us(value: float) -> str:
    return duration(value / 1e6)

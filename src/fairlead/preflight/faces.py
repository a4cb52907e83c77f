"""A report as a person reads it in a terminal: what each stage did in one line, then the findings, then what to do.

Two lines are stable and stand there only when they are true; other tools may look for them:

    Total Execution Ranks: 8
    SUCCESS: DDP Multi-Node AllReduce Ring Complete!
"""

from __future__ import annotations

from collections.abc import Iterable

from fairlead.base.table import table
from fairlead.base.units import duration, rate, size
from fairlead.checks import condensed
from fairlead.preflight.ranks.judge import bandwidth
from fairlead.preflight.ranks.said import heard
from fairlead.preflight.report import PreflightReport
from fairlead.records.facts import Facts, NodeFacts, Unread
from fairlead.records.verdict import Verdict
from fairlead.report.inventory import cells
from fairlead.report.text import Paint, findings_text

RANKS_LINE = "Total Execution Ranks: {}"
SUCCESS_LINE = "SUCCESS: DDP Multi-Node AllReduce Ring Complete!"
_NODE_COLUMNS = ("OS", "KERNEL", "CPU", "MEMORY", "GPUS", "DRIVER")


def text_of(report: PreflightReport, paint: Paint | None = None, *, details: bool = False) -> str:
    """The whole report."""
    parts = [
        _stages(report),
        findings_text(condensed(list(report.findings)), paint),
        *(_details(report) if details else ()),
        stable_lines(report),
        _end(report, paint or Paint()),
    ]
    return "\n\n".join(p for p in parts if p)


def stable_lines(report: PreflightReport) -> str:
    """The two lines that other tools look for; the second only on real success."""
    if report.ranks is None:
        return ""
    started = heard(report.ranks).start
    lines = [RANKS_LINE.format(len(started))]
    if report.has_succeeded:
        lines.append(SUCCESS_LINE)
    return "\n".join(lines)


def _stages(report: PreflightReport) -> str:
    rows = []
    answered = len(report.facts)
    bad = len(
        {
            n
            for f in report.findings
            if f.verdict is Verdict.FAIL and f.subject.kind in ("node", "device")
            for n in f.subject.nodes
        }
    )
    said = f"{answered} of {len(report.nodes)} answered" + (f", {bad} not well" if bad else "")
    rows.append(("nodes", said, _took(report, "nodes")))
    for stage, code in (("pairs", "preflight/pairs"), ("ranks", "preflight/collective")):
        found = next((f for f in report.findings if f.code == code), None)
        if found is not None:
            rows.append((stage, found.message, _took(report, stage)))
        elif stage == "pairs" and report.pairs is None:
            rows.append((stage, "not tested: fewer than two nodes", ""))
        elif stage == "ranks":
            rows.append((stage, "not run" if report.ranks is None else "did not finish", _took(report, stage)))
    return "\n".join(f"{a:<8} {c:>7}  {b}" for a, b, c in rows)


def _took(report: PreflightReport, stage: str) -> str:
    return duration(report.took_s[stage]) if stage in report.took_s else ""


def _end(report: PreflightReport, paint: Paint) -> str:
    usable = f"{len(report.good)} of {len(report.nodes)} nodes usable"
    if report.good and report.rest is Verdict.FAIL:
        usable = f"not one node's fault: {len(report.good)} of {len(report.nodes)} have none of their own"
    lines = [f"verdict  {paint.verdict(report.verdict, str(report.verdict))}   {usable}"]
    for node, before in report.history.items():
        lines.append(f"before   {node}: {before}")
    if report.exclude:
        lines.append(f"exclude  {report.exclude}")
    return "\n".join(lines)


# ---- tables ----------------------------------------------------------------------------------------------------------


def _details(report: PreflightReport) -> list[str]:
    """Topology of the ranks, what each node is, the state of its fabric ports, and what the all-reduce reached."""
    return [t for t in (topology(report), nodes(report), ports(report.facts), speeds(report)) if t]


def topology(report: PreflightReport) -> str:
    """One line a rank: where it ran and what it used."""
    if report.ranks is None:
        return ""
    ranks = heard(report.ranks)
    rows = []
    for rank, said in sorted(ranks.start.items()):
        gpu, peer = said.gpu, ranks.torch[rank].peer_access if rank in ranks.torch else None
        card = ("-" if gpu.index is None else gpu.index, gpu.uuid or "-", gpu.pci or "-")
        rest = (said.cpus or "-", said.interface or "-", "-" if peer is None else "yes" if peer else "no")
        rows.append((rank, said.node, said.local_rank, *card, *rest))
    return table(["RANK", "NODE", "LOCAL", "GPU", "UUID", "PCI", "CPUS", "INTERFACE", "PEER"], rows)


def nodes(report: PreflightReport) -> str:
    """One line a node: what its probe read, and the versions that its ranks found."""
    torch = {s.node: s for s in heard(report.ranks).torch.values()} if report.ranks else {}
    rows = []
    for record in report.facts:
        said = torch.get(record.node)
        versions = (said.torch or "-", said.cuda or said.hip or "-", said.nccl or "-") if said else ("-", "-", "-")
        rows.append((record.node, *cells(record, _NODE_COLUMNS), *versions))
    return table(["NODE", *_NODE_COLUMNS, "TORCH", "CUDA OR HIP", "NCCL"], rows) if rows else ""


def ports(facts: Iterable[NodeFacts]) -> str:
    """One line an RDMA port, with its link layer: an Ethernet port is not one of InfiniBand."""
    rows = []
    for record in facts:
        read = Facts(record)
        try:
            devices = sorted(read.keys("ib.devices"))
        except Unread:
            continue
        for device in devices:
            try:
                for port in read.get("ib.devices", device, "ports"):
                    at = ("ib.devices", device, "ports", port)
                    rows.append(
                        (
                            record.node,
                            f"{device}/{port}",
                            *(str(read.get(*at, key)) for key in ("link_layer", "state", "phys_state", "rate")),
                        )
                    )
            except Unread:
                rows.append((record.node, device, "?", "?", "?", "?"))
    return table(["NODE", "PORT", "LINK LAYER", "STATE", "PHYSICAL", "RATE"], rows) if rows else ""


def speeds(report: PreflightReport) -> str:
    """One line a message size: time and busbw as nccl-tests defines it."""
    found = bandwidth(report.ranks) if report.ranks else {}
    rows = [(size(b), duration(t), rate(busbw * 8), f"{busbw / 1e9:.3f}") for b, (t, busbw) in found.items()]
    return table(["ALL-REDUCE", "TIME", "BUSBW", "BUSBW GB/S"], rows) if rows else ""


UNFINISHED = "--exclude=preflight-has-not-finished\n"
"""`exclude` while a run goes on, and for good where it was cut short. No cluster has such a node, so sbatch refuses the
job: no older run's result is taken for this one's."""


def lists(report: PreflightReport) -> dict[str, str]:
    """Files for other tools: names of good and bad nodes, one a line, and the option to leave the bad ones out.

    `exclude` is always one line, and an empty one where nobody is bad.
    """
    return {
        "good.nodes": "".join(f"{n}\n" for n in report.good),
        "bad.nodes": "".join(f"{n}\n" for n in report.bad),
        "exclude": report.exclude + "\n",
    }

"""A spread as a report: findings, the bound, the six lines that scripts read, metrics. Pure."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fairlead.base.nodeset import NodeSet, fold
from fairlead.base.units import counted, duration, size
from fairlead.records.finding import Evidence, Finding, Subject, node, worst_first
from fairlead.records.report import Report
from fairlead.records.verdict import Verdict
from fairlead.weights.manifest import outdated
from fairlead.weights.outcome import NodeState, SpreadOutcome
from fairlead.weights.planned import presence

MAX_REASONS = 5
TO_DO = {
    "": ("weights/missing", "run again when the origin is well: what came is kept"),
    "gone": ("weights/missing", "fairlead weights ls {source}; upload it again, or --leave-out '{name}'"),
    "unseen": ("weights/missing", "mount the folder on every node, or --download-ranks with nodes that see it"),
    "changed": ("weights/changed", "run again: what did not change is not fetched again"),
    "manifest": (
        "weights/changed",
        "fairlead weights manifest FOLDER where the model is published, and upload all again",
    ),
    "ranges": ("weights/no-ranges", "curl it into a folder, and take that as the source"),
    "denied": ("weights/denied", "set credentials that may read it, and run again: what came is kept"),
}
"""What is to be done about why files could not be had."""


@dataclass(frozen=True, kw_only=True)
class SpreadReport(Report):
    """What came of a spread."""

    outcome: SpreadOutcome
    totals: Mapping[str, Any] = field(default_factory=dict)

    def body(self) -> dict[str, Any]:
        """The document's keys."""
        return {**super().body(), **self.totals}


def report_of(out: SpreadOutcome) -> SpreadReport:
    """Findings and totals."""
    nodes = NodeSet(n.name for n in out.nodes)
    findings = worst_first(_findings(out))
    return SpreadReport(
        stage="weights",
        nodes=nodes,
        findings=tuple(findings),
        took_s=out.took_s,
        said="" if any(f.verdict in (Verdict.FAIL, Verdict.UNKNOWN) for f in findings) else _said(out),
        ended=Verdict.PASS if out.is_dry and not findings else None,
        outcome=out,
        totals=totals(out),
    )


def totals(out: SpreadOutcome) -> dict[str, Any]:
    """What is counted, in base units."""
    plan = out.plan
    wanted = [n for n in out.nodes if n.has]
    return {
        "source": out.source,
        "dest": out.dest,
        "files": len(plan.objects),
        "bytes": plan.total_bytes,
        "chunks": len(plan.chunks),
        "chunk_bytes": plan.chunk_bytes,
        "digest": out.algorithm,
        "root": next((n.root for n in out.complete), ""),
        "present": presence(len(plan.chunks), {n.name: n.has for n in wanted}) if wanted else {},
        "origin_bytes": out.origin_bytes,
        "origin_share": round(out.origin_bytes / plan.total_bytes, 4) if plan.total_bytes else 0.0,
        "origin_requests": sum(n.counts.get("origin_requests", 0) for n in out.nodes),
        "retries": sum(n.counts.get("retries", 0) for n in out.nodes),
        "doubles": sum(n.counts.get("doubles", 0) for n in out.nodes),
        "complete": fold(n.name for n in out.complete),
        "slow": fold(n.name for n in out.nodes if n.slow),
        "adopted_bytes": sum(n.counts.get("adopted_bytes", 0) for n in out.nodes),
        "peer_bytes": sum(n.counts.get("peer_bytes", 0) for n in out.nodes),
        "missing": dict(sorted(_missing(out).items())[:1000]),
        "compared": out.num_compared,
        "not_compared": out.num_unread,
        "wrong": dict(sorted(out.wrong.items())[:1000]),
        "odd": dict(sorted(out.odd.items())),
        **({"forecast": out.forecast.body()} if out.forecast is not None else {}),
        "max_rss_bytes": max((n.rss_bytes for n in out.nodes), default=0),
    }


def _missing(out: SpreadOutcome) -> dict[str, str]:
    """Every file that could not be had, and why."""
    return {path: f"it travels in one chunk with {culprit}" for path, culprit in out.beside.items()} | out.missing


def _findings(out: SpreadOutcome) -> list[Finding]:
    found = []
    for one in out.nodes:
        if one.failed is not None:
            code, text, hint = one.failed
            is_here = one.name == "localhost"
            words = f"pull {out.source} {out.dest}" if is_here else f"spread {out.source} {out.dest} -w {one.name}"
            again = hint or f"fairlead weights {words}"
            found.append(Finding(code=code, verdict=Verdict.FAIL, subject=node(one.name), message=text, remedy=again))
        elif one.slow:
            text = "it took so slowly that it was hung at the ring's side; the others did not wait"
            hint = f"fairlead preflight -w {one.name}"
            found.append(
                Finding(
                    code="weights/slow-node", verdict=Verdict.WARN, subject=node(one.name), message=text, remedy=hint
                )
            )
        if one.reader:
            found.append(
                Finding(
                    code="weights/reader",
                    verdict=Verdict.FAIL,
                    subject=node(one.name),
                    message=f"the command of --stream-to failed: {one.reader}",
                    remedy=f"look at {out.dest}/.fairlead/reader.log on {one.name}",
                )
            )
    found += [_bad(out, giver, taker, num) for (giver, taker), num in out.bad.items()]
    found += _other_bytes(out.complete)
    found += _not_had(out)
    if out.plan.manifest is not None and (old := outdated(out.plan.manifest, out.plan.objects)):
        found.append(
            Finding(
                code="weights/old-manifest",
                verdict=Verdict.WARN,
                subject=Subject(kind="job"),
                message=f"{counted(len(old), 'file')} changed after the manifest was written: {', '.join(old[:3])}",
                remedy="fairlead weights manifest FOLDER where the model is published, and upload it again",
            )
        )
    if out.wrong:
        names = ", ".join(sorted(out.wrong)[:3])
        found.append(
            Finding(
                code="weights/wrong-bytes",
                verdict=Verdict.FAIL,
                subject=Subject(kind="job"),
                message=f"{counted(len(out.wrong), 'file')} is not what the store says; none is published: {names}",
                evidence=tuple(Evidence(path, text) for path, text in sorted(out.wrong.items())[:5]),
                remedy="run again: these files are fetched anew; if it stays, upload them again",
            )
        )
    if out.odd:
        name, why = min(out.odd.items())
        found.append(
            Finding(
                code="weights/odd-tensors",
                verdict=Verdict.WARN,
                subject=Subject(kind="job"),
                message=f"no loader will take {counted(len(out.odd), 'file')}: {name}: {why}",
                evidence=tuple(Evidence(path, text) for path, text in sorted(out.odd.items())[:5]),
                remedy="look at the files at the source: they are on the nodes as they are there",
            )
        )
    if out.without_blake3 and not out.is_dry:
        found.append(
            Finding(
                code="weights/no-python-package",
                verdict=Verdict.PASS,
                subject=Subject(kind="job"),
                message=f"SHA-256 verified: no blake3 on {fold(out.without_blake3)}",
            )
        )
    if out.num_unread:
        found.append(
            Finding(
                code="weights/no-crc",
                verdict=Verdict.PASS,
                subject=Subject(kind="job"),
                message=f"the store's CRC of {counted(out.num_unread, 'file')} was not compared: no awscrt on any node",
                remedy="pip install awscrt for the pool's Python",
            )
        )
    if out.complete and len(out.complete) == len(out.nodes):
        found.append(
            Finding(code="weights/spread", verdict=Verdict.PASS, subject=Subject(kind="job"), message=_said(out))
        )
    return found


def _not_had(out: SpreadOutcome) -> list[Finding]:
    """A finding for each reason that files could not be had for; the most files first, and no more than a few."""
    files: dict[str, list[str]] = {}
    for path, why in sorted(out.missing.items()):
        files.setdefault(why, []).append(path)
    found = []
    for why, paths in sorted(files.items(), key=lambda pair: -len(pair[1]))[:MAX_REASONS]:
        code, remedy = TO_DO.get(out.kinds.get(why, ""), TO_DO[""])
        others = sum(culprit in paths for path, culprit in out.beside.items() if path not in out.missing)
        with_it = f"; {counted(others, 'small file')} beside it in one chunk did not come either" if others else ""
        names = ", ".join(paths[:3]) + (", ..." if len(paths) > 3 else "")
        text = f"{counted(len(paths), 'file')} could not be had: {names}{with_it}; why: {why}"
        what = {"source": out.source, "name": paths[0]}
        found.append(
            Finding(
                code=code,
                verdict=Verdict.FAIL,
                subject=Subject(kind="job"),
                message=text,
                evidence=(Evidence("the origin", why),),
                remedy=remedy.format(**what),
            )
        )
    return found


def _bad(out: SpreadOutcome, giver: str, taker: str, num: int) -> Finding:
    return Finding(
        code="weights/bad-chunk",
        verdict=Verdict.WARN,
        subject=Subject(kind="pair", nodes=(giver, taker)),
        message=f"{counted(num, 'chunk')} did not verify and came again",
        remedy=f"fairlead preflight -w {giver},{taker}",
    )


def _other_bytes(complete: list[NodeState]) -> list[Finding]:
    """Whose root is not that of most; with no majority, nobody knows whose bytes are right."""
    roots: dict[str, list[str]] = {}
    for one in complete:
        roots.setdefault(one.root, []).append(one.name)
    if len(roots) < 2:
        return []
    most = max(roots.values(), key=len)
    text = "it has other bytes than most nodes"
    if 2 * len(most) <= len(complete):
        both = tuple(n for names in roots.values() for n in names)
        return [Finding(code="weights/other-bytes", verdict=Verdict.UNKNOWN, subject=Subject(kind="job", nodes=both),
                        message="nodes ended with different bytes, and no majority agrees")]  # fmt: skip
    return [
        Finding(code="weights/other-bytes", verdict=Verdict.FAIL, subject=node(name), message=text)
        for names in roots.values()
        if names is not most
        for name in names
    ]


def _said(out: SpreadOutcome) -> str:
    took = out.took_s.get("spread", 0.0)
    egress = out.origin_bytes / out.plan.total_bytes if out.plan.total_bytes else 0.0
    return (
        f"{counted(len(out.complete), 'node')} {'has' if len(out.complete) == 1 else 'have'} "
        f"{counted(len(out.plan.objects), 'file')}, {size(out.plan.total_bytes)}, verified and published in "
        f"{duration(took)}; {egress:.2f} of it left the origin"
    )


def six_lines(out: SpreadOutcome) -> str:
    """Lines that scripts read: `[list] [diff] [download] [bcast] [filelist] [total]`, each of `name=value` words.

    Downloading and passing on overlap, so both take what the spread took.
    """
    plan, num = out.plan, len(out.nodes)
    listed, diff, spread = (out.took_s.get(name, 0.0) for name in ("list", "diff", "spread"))
    there = presence(len(plan.chunks), {n.name: n.has for n in out.nodes if n.has})
    peer = sum(n.counts.get("peer_bytes", 0) for n in out.nodes)
    retries = sum(n.counts.get("retries", 0) for n in out.nodes)

    def rate(num_bytes: int) -> str:
        return f"{num_bytes * 8 / spread / 1e9:.2f}" if spread else "0.00"

    where = f"everywhere={there['all']} somewhere={there['some']}"
    lines = [
        f"[list] files={len(plan.objects)} bytes={plan.total_bytes} seconds={listed:.2f}",
        f"[diff] nodes={num} chunks={len(plan.chunks)} {where} seconds={diff:.2f}",
        f"[download] bytes={out.origin_bytes} seconds={spread:.2f} gbps={rate(out.origin_bytes)} retries={retries}",
        f"[bcast] bytes={peer} seconds={spread:.2f} gbps_per_node={rate(peer // max(1, num))}",
        f"[filelist] files={len(plan.objects)} published={len(out.complete)} missing={len(out.missing)}",
        f"[total] nodes={len(out.complete)}/{num} bytes={plan.total_bytes} seconds={sum(out.took_s.values()):.2f}",
    ]
    return "\n".join(lines)


def metrics(report: SpreadReport, cluster: str) -> str:
    """For Prometheus's node exporter."""
    from fairlead.report.prom import prom_text

    return prom_text(
        report.findings,
        verb="weights",
        cluster=cluster,
        verdict=report.verdict,
        finished_s=time.time(),
        took_s=report.took_s,
        nodes={"good": len(report.outcome.complete), "bad": len(report.nodes) - len(report.outcome.complete)},
    )

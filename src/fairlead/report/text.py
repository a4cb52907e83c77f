"""Findings as a person reads them in a terminal: the worst first, equal nodes folded, healthy things in one line."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TextIO

from fairlead.base.nodeset import fold
from fairlead.records.finding import Finding, worst_first
from fairlead.records.verdict import Verdict

_COLOURS = {
    Verdict.PASS: "32",
    Verdict.WARN: "33",
    Verdict.FAIL: "31",
    Verdict.UNKNOWN: "35",
    Verdict.SKIP: "2",
}


@dataclass(frozen=True)
class Paint:
    """Colour for verdict words and bold for names; the words say everything by themselves."""

    on: bool = False

    def verdict(self, verdict: Verdict, text: str) -> str:
        """A word in its verdict's colour."""
        return f"\x1b[{_COLOURS[verdict]}m{text}\x1b[0m" if self.on else text

    def bold(self, text: str) -> str:
        """A name."""
        return f"\x1b[1m{text}\x1b[0m" if self.on else text


def paint_for(stream: TextIO) -> Paint:
    """Whether a stream wants colour: NO_COLOR and TERM=dumb say no, FORCE_COLOR yes, else a terminal does."""
    env = os.environ
    if env.get("NO_COLOR"):
        return Paint(on=False)
    if env.get("FORCE_COLOR"):
        return Paint(on=True)
    return Paint(on=stream.isatty() and env.get("TERM", "") != "dumb")


def findings_text(findings: Iterable[Finding], paint: Paint | None = None, *, passes: bool = False) -> str:
    """One block a distinct finding, in the worst-first order; passes and skips are left to `counts_line`."""
    paint = paint or Paint()
    shown = [f for f in worst_first(findings) if passes or f.verdict not in (Verdict.PASS, Verdict.SKIP)]
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for finding in shown:
        groups.setdefault(_same(finding), []).append(finding)
    blocks = [_block(group, paint) for group in groups.values()]
    return "\n".join(blocks)


def counts_line(findings: Sequence[Finding]) -> str:
    """`57 checks: 54 pass, 1 warn, 1 fail, 1 unknown`, naming only what there is."""
    count = {v: sum(f.verdict is v for f in findings) for v in Verdict}
    said = ", ".join(f"{n} {v}" for v, n in count.items() if n)
    waived = sum(f.waived is not None for f in findings)
    return f"{len(findings)} findings: {said or 'none'}" + (f" ({waived} waived)" if waived else "")


def _same(finding: Finding) -> tuple[object, ...]:
    """Findings that differ only in their node are one for a reader."""
    subject = finding.subject
    alone = subject.kind in ("pair", "link", "cluster", "job")
    return (
        finding.code,
        finding.verdict,
        finding.message,
        subject.kind,
        subject.name,
        subject.nodes if alone else (),
        finding.waived,
    )


def _block(group: list[Finding], paint: Paint) -> str:
    first = group[0]
    if len(group) > 1:
        nodes = [n for f in group for n in f.subject.nodes]
        subject = f"{fold(nodes)} ({len(set(nodes))})" + (f" {first.subject.name}" if first.subject.name else "")
    else:
        subject = str(first.subject)
    word = paint.verdict(first.verdict, f"{first.verdict.upper():7}")
    lines = [f"{word} {paint.bold(f'{subject:20}')}  {first.code:22}  {first.message}"]
    lines += [f"        {'read':8}  {e.source}: {_short(e.value)}" for e in first.evidence[:3]]
    if first.waived:
        note = f"was {first.waived.was}; {first.waived.reason} (until {first.waived.expires})"
        lines.append(f"        {'waived':8}  {note}")
    if first.remedy:
        lines.append(f"        {'do':8}  {first.remedy}")
    return "\n".join(lines)


def _short(value: str, width: int = 120) -> str:
    """Evidence on one line, without control characters: it came from another machine."""
    clean = "".join(c if c.isprintable() else " " for c in " ".join(value.split()))
    return clean if len(clean) <= width else clean[: width - 3] + "..."

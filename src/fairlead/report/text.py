"""Findings as a person reads them in a terminal: the worst first, equal nodes folded, healthy things in one line."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TextIO

from fairlead.base.shown import coloured
from fairlead.base.table import printable
from fairlead.records.finding import Finding
from fairlead.records.verdict import Verdict
from fairlead.report.folding import Fold, folded, one_line

_COLOURS = {
    Verdict.PASS: "32",
    Verdict.WARN: "33",
    Verdict.FAIL: "31",
    Verdict.UNKNOWN: "35",
    Verdict.SKIP: "2",
}


@dataclass(frozen=True)
class Paint:
    """Colour for verdict words and bold for names; the words say everything by themselves.

    What it gives is printed through `base/shown.py`.
    """

    on: bool = False

    def verdict(self, verdict: Verdict, text: str) -> str:
        """A word in its verdict's colour."""
        return coloured(_COLOURS[verdict], text) if self.on else text

    def bold(self, text: str) -> str:
        """A name."""
        return coloured("1", text) if self.on else text


def paint_for(stream: TextIO) -> Paint:
    """Whether a stream wants colour: NO_COLOR and TERM=dumb say no, FORCE_COLOR yes, else a terminal does."""
    env = os.environ
    if env.get("NO_COLOR"):
        return Paint(on=False)
    if env.get("FORCE_COLOR"):
        return Paint(on=True)
    return Paint(on=stream.isatty() and env.get("TERM", "") != "dumb")


def findings_text(findings: Iterable[Finding], paint: Paint | None = None, *, passes: bool = False) -> str:
    """One block a distinct finding, in the worst-first order; passes and skips are left to `counts_line`.

    A skip that asks for something, such as a right that is missing, is no calm one and is shown.
    """
    paint = paint or Paint()
    groups = folded(f for f in findings if passes or not _is_calm(f))
    return "\n".join(_block(group, paint) for group in groups)


def _is_calm(finding: Finding) -> bool:
    return finding.verdict is Verdict.PASS or (finding.verdict is Verdict.SKIP and "needs" not in finding.data)


def counts_line(findings: Sequence[Finding]) -> str:
    """`57 checks: 54 pass, 1 warn, 1 fail, 1 unknown`, naming only what there is."""
    count = {v: sum(f.verdict is v for f in findings) for v in Verdict}
    said = ", ".join(f"{n} {v}" for v, n in count.items() if n)
    waived = sum(f.waived is not None for f in findings)
    return f"{len(findings)} findings: {said or 'none'}" + (f" ({waived} waived)" if waived else "")


def _block(group: Fold, paint: Paint) -> str:
    first = group.first
    word = paint.verdict(first.verdict, f"{first.verdict.upper():7}")
    subject = paint.bold(f"{printable(group.subject):20}")
    lines = [f"{word} {subject}  {first.code:22}  {printable(first.message)}"]
    details = [("read", f"{e.source}: {one_line(e.value)}") for e in first.evidence[:3]]
    if first.waived:
        note = f"was {first.waived.was}; {first.waived.reason} (until {first.waived.expires})"
        details.append(("waived", note))
    if first.remedy:
        details.append(("do", first.remedy))
    return "\n".join(lines + [f"        {name:8}  {printable(text)}" for name, text in details])

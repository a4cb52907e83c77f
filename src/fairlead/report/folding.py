"""Findings as a reader counts them: those that differ only in their node are one, with a node set."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fairlead.base.nodeset import fold
from fairlead.base.table import printable
from fairlead.records.finding import Finding, worst_first


@dataclass(frozen=True)
class Fold:
    """Equal findings about one or more nodes."""

    findings: tuple[Finding, ...]

    @property
    def first(self) -> Finding:
        """What all of them say; evidence is this one's."""
        return self.findings[0]

    @property
    def subject(self) -> str:
        """`h200-[017,101] (2) mlx5_ib3`: the node set with its size, then the part."""
        first = self.first.subject
        if len(self.findings) == 1:
            return str(first)
        nodes = {n for f in self.findings for n in f.subject.nodes}
        return f"{fold(nodes)} ({len(nodes)})" + (f" {first.name}" if first.name else "")


def folded(findings: Iterable[Finding]) -> list[Fold]:
    """Groups, the worst first; the order among equals is kept."""
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for finding in worst_first(findings):
        groups.setdefault(_same(finding), []).append(finding)
    return [Fold(tuple(members)) for members in groups.values()]


def one_line(value: str, width: int = 120) -> str:
    """Evidence on one line, without control characters: it came from another machine."""
    clean = printable(" ".join(value.split()))
    return clean if len(clean) <= width else clean[: width - 3] + "..."


def _same(finding: Finding) -> tuple[object, ...]:
    subject = finding.subject
    is_alone = subject.kind in {"pair", "link", "cluster", "job"}
    return (
        finding.code,
        finding.verdict,
        finding.message,
        subject.kind,
        subject.name,
        subject.nodes if is_alone else (),
        finding.waived,
    )

"""Waivers: a finding somebody has decided to live with for a while is shown, and no longer counts.

A waiver for all nodes switches a check off for the whole fleet. One that has expired does not apply, and is itself a
warning.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence

import msgspec

from fairlead.base.nodeset import NodeSet
from fairlead.base.suggest import did_you_mean
from fairlead.records.codes import explanations
from fairlead.records.finding import Finding, Subject, WaiverNote
from fairlead.records.verdict import Verdict
from fairlead.spec.model import Waiver

WAIVABLE = (Verdict.FAIL, Verdict.WARN, Verdict.UNKNOWN)


def apply_waivers(findings: Iterable[Finding], waivers: Sequence[Waiver], today: dt.date) -> list[Finding]:
    """The findings, those that are waived turned to skip with a note, and what is wrong with the waivers themselves."""
    active = [w for w in waivers if w.is_active(today)]
    out: list[Finding] = []
    for finding in findings:
        out += (
            _waive(finding, [w for w in active if w.code == finding.code]) if finding.verdict in WAIVABLE else [finding]
        )
    return out + [f for w in waivers for f in _about(w, today)]


def _waive(finding: Finding, waivers: list[Waiver]) -> list[Finding]:
    """A finding about several nodes is split where a waiver covers only some of them."""
    rest = list(finding.subject.nodes)
    out: list[Finding] = []
    for waiver in waivers:
        covered = [node for node in rest if waiver.covers(node)]
        if not covered and not (waiver.covers_all and not rest):
            continue
        rest = [node for node in rest if node not in covered]
        note = WaiverNote(reason=waiver.reason, expires=waiver.expires.isoformat(), was=finding.verdict)
        out.append(
            msgspec.structs.replace(
                finding, verdict=Verdict.SKIP, waived=note, subject=_narrowed(finding.subject, covered)
            )
        )
        if not rest:
            return out
    return [msgspec.structs.replace(finding, subject=_narrowed(finding.subject, rest)), *out]


def _narrowed(subject: Subject, nodes: list[str]) -> Subject:
    return msgspec.structs.replace(subject, nodes=tuple(nodes))


def _about(waiver: Waiver, today: dt.date) -> list[Finding]:
    """Whether a waiver itself needs a look: expired, or for a code that does not exist."""
    nodes = str(waiver.nodes)
    subject = Subject(kind="cluster", name=f"waiver of {waiver.code} on {nodes}")
    if waiver.code not in explanations():
        message = f"no finding has the code {waiver.code}; {did_you_mean(waiver.code, explanations())}"
        return [
            Finding(
                code="waiver/unknown-code",
                verdict=Verdict.WARN,
                subject=subject,
                message=message,
                remedy="fairlead explain",
            )
        ]
    if waiver.is_active(today):
        return []
    return [
        Finding(
            code="waiver/expired",
            verdict=Verdict.WARN,
            subject=subject,
            message=f"expired on {waiver.expires.isoformat()} and no longer applies; its reason was: {waiver.reason}",
            remedy="repair what it was about, or give it a new date in the cluster file",
            data={
                "nodes": "all" if waiver.covers_all else str(NodeSet(waiver.nodes)),
                "expires": waiver.expires.isoformat(),
            },
        )
    ]

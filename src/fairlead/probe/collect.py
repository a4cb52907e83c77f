"""From nodes' answers to records: who gave facts, and a finding for each who did not. Knows no backend."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from fairlead.errors import ClusterError
from fairlead.probe.answer import parse
from fairlead.records.border import shown
from fairlead.records.facts import NodeFacts
from fairlead.records.finding import Evidence, Finding, Subject
from fairlead.records.verdict import Verdict


class Answer(NamedTuple):
    """What a node sent: its document, or None and why not."""

    node: str
    document: bytes | None
    error: str = ""
    """One sentence without the node's name."""
    hint: str = ""
    code: str = ""
    """Of what it did wrong, where that is more than silence: `cluster/bad-answer`."""


def sort_answers(
    answers: Iterable[Answer], *, silent: Verdict = Verdict.UNKNOWN
) -> tuple[list[NodeFacts], list[Finding]]:
    """Facts of the nodes that gave some, and a finding for each of the others; `silent` is what no answer means."""
    facts, findings = [], []
    for answer in answers:
        if answer.document is None:
            findings.append(
                _about(answer, answer.code or "probe/no-answer", silent, answer.error or "no answer", answer.hint)
            )
            continue
        try:
            facts.append(parse(answer.document, answer.node))
        except ClusterError as error:
            findings.append(_about(answer, error.code, Verdict.UNKNOWN, error.message, error.hint))
    return facts, findings


def _about(answer: Answer, code: str, verdict: Verdict, message: str, hint: str) -> Finding:
    end = shown((answer.document or b"")[-200:], 200)
    return Finding(
        code=code,
        verdict=verdict,
        subject=Subject(kind="node", nodes=(answer.node,)),
        message=message,
        evidence=(Evidence("the end of its answer", end),) if end else (),
        remedy=hint or f"fairlead exec -w {answer.node} -- true",
    )

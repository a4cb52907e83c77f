"""Answers of a node that lies: its own finding, with what it sent, and never the end of the verb."""

from __future__ import annotations

import json

import pytest

from fairlead.probe import NodeAnswer, sort_answers
from fairlead.records.facts import MAX_DEPTH, SCHEMA
from fairlead.records.verdict import Verdict


def nested(levels: int) -> dict:
    value: dict = {}
    for _ in range(levels - 1):
        value = {"a": value}
    return value


GOOD = json.dumps({"schema": SCHEMA, "node": "n9", "facts": {"host": {"name": "x"}}}).encode()
LIES = {
    "deep": b'{"facts":{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}}",
    "deeper than any tree": json.dumps({"facts": nested(MAX_DEPTH + 1)}).encode(),
    "not an object": b'["\x1b[2J"]',
    "a list of facts": b'{"facts":[]}',
    "no number": b'{"taken_at_ns":NaN}',
    "control characters": b"\x1b]0;x\x07{",
    "another schema": b'{"schema":"\\u001b[2J"}',
    "more than a document can be": b'{"facts":{"a":"' + b"x" * (9 << 20) + b'"}}',
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_lie_is_one_finding_about_its_node(lie):
    answers = [NodeAnswer("n1", GOOD), NodeAnswer("n2", lie), NodeAnswer("n3", GOOD)]
    facts, findings = sort_answers(answers, silent=Verdict.FAIL)
    assert [f.node for f in facts] == ["n1", "n3"]  # whatever the documents say of themselves
    (found,) = findings
    assert (found.code, found.subject.nodes) == ("probe/bad-answer", ("n2",))
    assert (found.message + found.evidence[0].value).isprintable()
    assert len(found.message) + len(found.evidence[0].value) < 1000


def test_as_deep_as_a_tree_may_be():
    document = json.dumps({"facts": nested(MAX_DEPTH)}).encode()
    facts, findings = sort_answers([NodeAnswer("n1", document)])
    assert (len(facts), findings) == (1, [])
    assert list(facts[0].facts) == ["a"]


def test_what_broke_a_bound_of_the_wire_is_said_by_its_code():
    _, (found,) = sort_answers([NodeAnswer("n1", None, "it sent junk", code="cluster/bad-answer")], silent=Verdict.FAIL)
    assert (found.code, found.verdict) == ("cluster/bad-answer", Verdict.FAIL)

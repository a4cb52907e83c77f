from __future__ import annotations

import msgspec
import pytest

from fairlead.records.codec import builtins, from_json, to_json
from fairlead.records.finding import Evidence, Finding, Subject, WaiverNote, node, verdict_of, worst_first
from fairlead.records.verdict import Verdict


def finding(verdict, name="n1"):
    return Finding(code="x/y", verdict=verdict, subject=node(name), message="it is so")


FULL = Finding(
    code="ib/port-rate",
    verdict=Verdict.WARN,
    subject=Subject(kind="port", nodes=("n1",), name="mlx5_0/1"),
    message="200 Gb/s, expected 400",
    evidence=(Evidence("/sys/class/infiniband/mlx5_0/ports/1/rate", "200 Gb/sec (4X HDR)"),),
    remedy="look at the cable",
    data={"value": 200, "expected": 400, "unit": "Gb/s"},
    waived=WaiverNote(reason="known", expires="2026-12-24", was=Verdict.FAIL),
)


@pytest.mark.parametrize(
    ("subject", "text"),
    [
        (Subject(kind="node", nodes=("n1",)), "n1"),
        (Subject(kind="port", nodes=("n1",), name="mlx5_0/1"), "n1 mlx5_0/1"),
        (Subject(kind="pair", nodes=("n1", "n2")), "n1 <-> n2"),
        (Subject(kind="link", nodes=("n1", "n2"), name="plane 2"), "n1 <-> n2 plane 2"),
        (Subject(kind="job", nodes=("n1", "n2")), "n1,n2"),
        (Subject(kind="cluster"), "cluster"),
        (Subject(kind="plane", name="plane 2"), "plane 2"),
    ],
)
def test_a_subject_says_what_it_is(subject, text):
    assert str(subject) == text


def test_the_worst_comes_first_and_equals_keep_their_order():
    some = [
        finding(Verdict.PASS, "a"),
        finding(Verdict.FAIL, "b"),
        finding(Verdict.WARN, "c"),
        finding(Verdict.FAIL, "d"),
    ]
    assert [f.subject.nodes[0] for f in worst_first(some)] == ["b", "d", "c", "a"]
    assert verdict_of(some) is Verdict.FAIL


@pytest.mark.parametrize("some", [FULL, finding(Verdict.PASS)])
def test_json_and_back(some):
    assert from_json(to_json(some), Finding) == some
    assert from_json(to_json(some, indent=0), Finding) == some
    assert "\n" not in to_json(some, indent=0)
    assert msgspec.convert(builtins(some), Finding) == some


def test_what_is_not_a_finding_is_refused():
    with pytest.raises(ValueError, match="verdict"):
        from_json('{"code": "x/y", "verdict": "maybe", "subject": {"kind": "node"}, "message": ""}', Finding)
    with pytest.raises(ValueError, match="truncated"):
        from_json('{"code": "x/', Finding)


def test_file_names_that_are_not_utf8_do_not_break_the_document():
    bad = b"/mnt/\xff".decode("utf-8", "surrogateescape")
    text = to_json({"place": [bad], bad: 1})
    assert from_json(text, dict) == {"place": ["/mnt/?"], "/mnt/?": 1}


def test_no_number_is_written_that_json_does_not_have():
    assert to_json({"x": float("nan"), "y": float("inf")}, indent=0) == '{"x":null,"y":null}'

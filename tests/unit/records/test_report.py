"""The report every stage answers with: its verdict, who is left out, what to look at first."""

from __future__ import annotations

import pytest

from fairlead.base.nodeset import NodeSet
from fairlead.records.codec import builtins
from fairlead.records.finding import Finding, Subject, node
from fairlead.records.report import Report, apart, bad_nodes, headline
from fairlead.records.verdict import Verdict

NODES = NodeSet("n[0-3]")


def found(subject, verdict=Verdict.FAIL):
    return Finding(code="ib/count", verdict=verdict, subject=subject, message="one is gone")


def pair(a, b):
    return found(Subject(kind="pair", nodes=(a, b)))


def test_nothing_at_all_is_unknown_and_work_that_ended_well_is_a_pass():
    assert Report(stage="audit").verdict is Verdict.UNKNOWN
    assert Report(stage="lab up", ended=Verdict.PASS).verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("verdicts", "whole"),
    [("pass pass", "pass"), ("pass warn", "warn"), ("warn unknown", "unknown"), ("unknown fail", "fail")],
)
def test_the_verdict_is_the_worst_of_findings_and_of_parts(verdicts, whole):
    first, second = (found(node("n1"), Verdict(word)) for word in verdicts.split())
    assert Report(stage="a", findings=(first, second)).verdict == whole
    parts = (Report(stage="b", findings=(first,)), Report(stage="c", findings=(second,)))
    assert Report(stage="a", parts=parts).verdict == whole
    assert Report(stage="a", ended=Verdict.PASS, parts=parts).verdict == whole


def test_who_is_left_out_and_what_to_look_at_first():
    report = Report(stage="audit", nodes=NODES, findings=(found(node("n2")), found(node("n1"), Verdict.WARN)))
    assert (str(report.bad), str(report.good), report.exclude) == ("n2", "n[0-1,3]", "--exclude=n2")
    assert headline(report) == "n2: one is gone"
    assert builtins(report.body())["bad"] == "n2"
    assert list(report.body()) == ["nodes", "good", "bad", "exclude", "culprit", "findings", "took_s"]


def test_a_report_without_a_culprit_says_how_many_are_ready_or_its_own_sentence():
    well = Report(stage="audit", nodes=NODES, findings=(found(node("n1"), Verdict.PASS),))
    assert (headline(well), well.exclude, well.culprit) == ("4 of 4 nodes are ready", "", None)
    warned = Report(stage="audit", nodes=NODES, findings=(found(node("n1"), Verdict.WARN),))
    assert headline(warned) == "4 of 4 nodes are ready, with warnings"
    assert headline(Report(stage="lab up", ended=Verdict.PASS, said="4 hosts")) == "4 hosts"


def test_of_bad_pairs_the_node_in_most_of_them_is_left_out():
    assert str(bad_nodes([pair("n0", "n3"), pair("n1", "n3")], NODES)) == "n3"
    assert str(bad_nodes([found(node("n3")), pair("n0", "n3")], NODES)) == "n3"
    assert not bad_nodes([found(node("stranger"))], NODES)
    assert not bad_nodes([found(Subject(kind="plane", nodes=("n1",)))], NODES)


def test_times_add_up_over_parts():
    part = Report(stage="b", took_s={"x": 1.5})
    assert Report(stage="a", took_s={"own": 1.0}, parts=(part, part)).took_in_all_s == 4.0


@pytest.mark.parametrize(
    "pairs",
    [
        [("n0", "n3")],
        [("n0", "n3"), ("n3", "n0")],
        [("n0", "n1"), ("n2", "n3")],
        [("n0", "n1"), ("n1", "n2"), ("n0", "n2")],
        [("n1", "n3"), ("n3", "n0"), ("n0", "n2")],
    ],
    ids=["one pair", "both its directions", "two of them", "three in a ring", "four in a row"],
)
def test_bad_pairs_in_which_no_node_stands_out_exclude_nobody_and_are_kept_apart(pairs):
    fails = [pair(a, b) for a, b in pairs]
    assert not bad_nodes(fails, NODES)
    left = NODES - apart(fails, NODES)
    assert left
    assert not any({a, b} <= set(left) for a, b in pairs)

from __future__ import annotations

import math

import pytest

from fairlead.records.finding import Finding, Subject, node
from fairlead.records.verdict import Verdict
from fairlead.report.prom import MAX_SERIES, escape, prom_text
from support import promtext

HEAD = {"verb": "preflight", "cluster": "c"}


def find(code="ib/port-rate", name="n1", verdict=Verdict.FAIL, subject=None):
    return Finding(code=code, verdict=verdict, subject=subject or node(name), message="x")


def metrics(findings=(), *, verdict=Verdict.FAIL, finished_s=1795228000.125, took_s=None, **more):
    text = prom_text(
        findings, verb="preflight", cluster=more.pop("cluster", "c"), verdict=verdict, finished_s=finished_s,
        took_s=took_s or {}, **more,
    )  # fmt: skip
    return promtext.read(text)


def one(found, name, **labels):
    return found[name][frozenset({**HEAD, **labels}.items())]


def test_the_verdict_is_one_of_five():
    found = metrics(verdict=Verdict.UNKNOWN)
    assert {v: one(found, "fairlead_verdict", verdict=v) for v in Verdict} == {
        "pass": 0, "warn": 0, "fail": 0, "unknown": 1, "skip": 0,
    }  # fmt: skip


def test_findings_are_counted_by_verdict():
    found = metrics([find(), find(name="n2"), find(verdict=Verdict.PASS), find(verdict=Verdict.SKIP)])
    assert one(found, "fairlead_findings", verdict="fail") == 2
    assert one(found, "fairlead_findings", verdict="warn") == 0


def test_what_is_not_well_is_a_series_each_and_what_is_well_is_none():
    port = Subject(kind="port", nodes=("n1",), name="mlx5_0/1")
    pair = Subject(kind="pair", nodes=("n1", "n2"))
    found = metrics(
        [find(subject=port), find(subject=port), find("preflight/tcp", subject=pair), find(verdict=Verdict.PASS)]
    )
    series = found["fairlead_finding"]
    assert len(series) == 3
    said = {"code": "ib/port-rate", "verdict": "fail", "node": "n1", "kind": "port", "part": "mlx5_0/1"}
    assert one(found, "fairlead_finding", **said) == 2
    for name in ("n1", "n2"):
        said = {"code": "preflight/tcp", "verdict": "fail", "node": name, "kind": "pair", "part": ""}
        assert one(found, "fairlead_finding", **said) == 1


def test_a_finding_about_no_node_has_an_empty_one():
    plane = Subject(kind="plane", name="plane 2")
    said = {"code": "ib/port-rate", "verdict": "fail", "node": "", "kind": "plane", "part": "plane 2"}
    assert one(metrics([find(subject=plane)]), "fairlead_finding", **said) == 1


def test_a_bad_day_is_bounded_keeps_the_worst_and_says_what_is_missing():
    findings = [find(name=f"n{i}", verdict=Verdict.WARN) for i in range(MAX_SERIES)] + [find(name="x")]
    found = metrics(findings)
    assert len(found["fairlead_finding"]) == MAX_SERIES
    assert one(found, "fairlead_finding_series_left_out") == 1
    said = {"code": "ib/port-rate", "verdict": "fail", "node": "x", "kind": "node", "part": ""}
    assert one(found, "fairlead_finding", **said) == 1
    assert one(metrics([find()]), "fairlead_finding_series_left_out") == 0


def test_times_and_counts():
    found = metrics(took_s={"nodes": 1.25, "pairs": 2}, nodes={"good": 127, "bad": 1})
    assert one(found, "fairlead_run_finished_timestamp_seconds") == 1795228000.125
    assert one(found, "fairlead_stage_duration_seconds", stage="nodes") == 1.25
    assert one(found, "fairlead_nodes", state="good") == 127


@pytest.mark.parametrize("value", [1795228000.0, 1e9 + 1, 0.000001234, 3e-9, 0, math.inf, -math.inf])
def test_numbers_keep_their_figures(value):
    assert one(metrics(took_s={"s": value}), "fairlead_stage_duration_seconds", stage="s") == value


def test_a_number_that_is_none_is_no_error():
    assert math.isnan(one(metrics(took_s={"s": math.nan}), "fairlead_stage_duration_seconds", stage="s"))


@pytest.mark.parametrize("text", ['a"b', "a\\b", "a\\", "\\n", 'x"} 1', "ü", "a,b={}"])
def test_any_text_can_be_a_label(text):
    found = metrics([find(subject=Subject(kind="device", nodes=("n1",), name=text))], cluster=text)
    labels = dict(next(iter(found["fairlead_finding"])))
    assert (labels["part"], labels["cluster"]) == (text, text)


def test_what_would_break_a_line_becomes_a_blank_and_what_would_drive_a_terminal_is_written_out():
    assert escape("a\nb\r\x1b[31m\u202e\udc80") == r"a b \\x1b[31m\\u202e\\udc80"
    assert len(metrics([find(subject=Subject(kind="node", nodes=("n1",), name="a\nb"))])["fairlead_finding"]) == 1


def test_no_findings_leave_no_empty_metric():
    assert "fairlead_finding" not in metrics()
    assert "fairlead_nodes" not in metrics()


@pytest.mark.parametrize(
    "text",
    [
        "a 1",
        "# HELP a b\n# TYPE a gauge\na 1 1700000000\n",
        "# HELP a b\n# TYPE a gauge\na 1\na 1\n",
        '# HELP a b\n# TYPE a gauge\na{x="1",x="2"} 1\n',
        "# HELP a b\n# TYPE a thing\na 1\n",
        "a 1\n# HELP a b\n# TYPE a gauge\n",
        '# HELP a b\n# TYPE a gauge\na{x="\\q"} 1\n',
        "# HELP a b\n# TYPE a gauge\na one\n",
    ],
)  # fmt: skip
def test_the_reader_is_strict(text):
    with pytest.raises(ValueError):
        promtext.read(text)

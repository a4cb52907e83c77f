"""What the gate tells of its decisions."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from fairlead.base.nodeset import NodeSet
from fairlead.preflight.telling import log, tell_findings, tell_limits, tell_usable
from fairlead.records.event import Event, Severity
from fairlead.records.finding import Finding, Subject, node
from fairlead.records.log import ROOT, Events
from fairlead.records.verdict import Verdict
from fairlead.spec.model import Access, Pool, Spec

NODES = NodeSet("n[0-3]")
SPEC = Spec(schema=1, access=Access(via="ssh"), pools=(Pool(name="p", size="other", nodes=NODES),))


@pytest.fixture
def told() -> Iterator[list[Event]]:
    """Every event of the gate."""
    events: list[Event] = []
    handler, before = Events(events.append), ROOT.level
    ROOT.addHandler(handler)
    ROOT.setLevel(logging.DEBUG)
    yield events
    ROOT.removeHandler(handler)
    ROOT.setLevel(before)


def fail(name, verdict=Verdict.FAIL):
    return Finding(code="gpu/count", verdict=verdict, subject=node(name), message="7 of 8")


def test_who_is_left_out_of_a_stage_and_why(told):
    tell_usable("pairs", NODES, NodeSet("n[0-1]"), [fail("n0", Verdict.WARN), fail("n2")])
    assert [(e.node, e.what) for e in told] == [
        ("n2", "left out of pairs: gpu/count: 7 of 8"),
        ("n3", "left out of pairs: it gave no answer, or Slurm gives it no work"),
        ("", "pairs on 2 of 4 nodes"),
    ]
    assert told[0].data == {"code": "gpu/count"}
    assert told[2].data == {"nodes": "n[0-1]"}


def test_limits_are_told_with_unit_and_source(told):
    tell_limits(SPEC)
    straggler = next(e for e in told if e.what.startswith("limit ") and "straggler" in e.what)
    assert straggler.severity is Severity.DEBUG
    assert straggler.data["source"]
    assert {"judges", "value", "unit", "key"} <= straggler.data.keys()


def test_where_nobody_listens_limits_are_not_worked_out(monkeypatch):
    monkeypatch.setattr("fairlead.preflight.telling.brought", lambda _: pytest.fail("asked for limits"))
    monkeypatch.setattr(log, "isEnabledFor", lambda _: False)
    tell_limits(SPEC)


def test_what_is_found_is_told_the_worse_the_louder(told):
    plane = Finding(code="x/y", verdict=Verdict.UNKNOWN, subject=Subject(kind="plane", name="plane 2"), message="m")
    tell_findings([fail("n1"), plane, fail("n2", Verdict.WARN), fail("n3", Verdict.PASS)])
    assert [(e.node, e.severity) for e in told] == [
        ("n1", Severity.WARN), ("", Severity.WARN), ("n2", Severity.INFO),
    ]  # fmt: skip
    assert told[1].data["subject"] == "plane 2"

"""What is told becomes Events, whoever tells it, and telling never fails."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading

import msgspec
import pytest

from fairlead.records.codec import from_json, to_json
from fairlead.records.event import Event, Severity
from fairlead.records.log import ROOT, Events, doing, line_of, tell

log = logging.getLogger("fairlead.test")


@pytest.fixture
def heard():
    found: list[Event] = []
    handler = Events(found.append)
    ROOT.addHandler(handler)
    ROOT.setLevel(logging.DEBUG)
    yield found
    ROOT.removeHandler(handler)
    ROOT.setLevel(logging.NOTSET)


def test_what_is_told_has_time_source_severity_node_and_data(heard):
    tell(log, "shard is there, 100 % of it", node="n3", bytes=1 << 30)
    (event,) = heard
    assert (event.source, event.severity, event.node) == ("fairlead.test", Severity.INFO, "n3")
    assert (event.what, event.data) == ("shard is there, 100 % of it", {"bytes": 1 << 30})
    assert 1.7e18 < event.time_ns < 4e18, "nanoseconds since 1970"
    assert from_json(to_json(event), Event) == event


def test_plain_logging_is_told_too(heard):
    log.warning("lost %s of %s", 3, 4)
    try:
        raise ValueError("no room")
    except ValueError:
        log.exception("could not")
    assert [(e.severity, e.what) for e in heard] == [
        (Severity.WARN, "lost 3 of 4"),
        (Severity.ERROR, "could not: ValueError: no room"),
    ]
    logging.getLogger("elsewhere").critical("not ours")
    assert len(heard) == 2


@pytest.mark.parametrize("level", range(1, 60))
def test_each_level_has_a_severity(heard, level):
    ROOT.setLevel(1)
    log.log(level, "x")
    steps = {50: "fatal", 40: "error", 30: "warn", 20: "info", 0: "debug"}
    assert heard[0].severity == next(word for least, word in steps.items() if level >= least)


def test_something_that_takes_time_is_told_twice(heard):
    with doing(log, "spread", nodes="n[1-2]") as told:
        told["shards"] = 12
    begin, end = heard
    assert (begin.what, begin.data) == ("spread begins", {"nodes": "n[1-2]"})
    assert (end.what, end.data["nodes"], end.data["shards"]) == ("spread ended", "n[1-2]", 12)
    assert end.data["took_ms"] >= 0


@pytest.mark.parametrize("error", [RuntimeError("no"), KeyboardInterrupt("stopped")])
def test_what_stops_it_is_told_and_goes_on(heard, error):
    with pytest.raises(type(error)), doing(log, "spread"):
        raise error
    assert (heard[-1].severity, heard[-1].data["error"]) == (Severity.WARN, f"{type(error).__name__}: {error}")


@pytest.mark.parametrize("data", [{"x": object()}, {"x": {1, 2}}, {"x": b"\xff"}, {"x": "\udcff"}, {"x": float("nan")}])
def test_whatever_is_told_can_be_written(heard, data):
    tell(log, "odd", **data)
    assert list(json.loads(to_json(heard[0].data))) == ["x"]


def test_a_taker_that_fails_fails_alone(heard):
    def full(event):
        raise OSError("no room")

    handler = Events(full)
    ROOT.addHandler(handler)
    try:
        tell(log, "still told")
    finally:
        ROOT.removeHandler(handler)
    assert [e.what for e in heard] == ["still told"]


def test_events_of_many_threads_are_all_told(heard):
    threads = [threading.Thread(target=lambda n=n: [tell(log, f"{n}.{i}") for i in range(50)]) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {e.what for e in heard} == {f"{n}.{i}" for n in range(8) for i in range(50)}


def test_an_event_for_people_is_one_line():
    event = Event(
        time_ns=1_700_000_000_123_000_000,
        node="n3",
        source="fairlead.cluster",
        severity=Severity.WARN,
        what="ran",
        data={"rc": 3, "argv": "a b", "ok": True, "none": ""},
    )
    clock, rest = line_of(event).split("  ", 1)
    assert clock.endswith(".123")
    assert rest == 'cluster  WARN  n3  ran  rc=3 argv="a b" ok=true none=""'


def test_where_nobody_listens_nothing_is_printed_or_built():
    code = (
        "import logging; from fairlead.records.log import tell, doing\n"
        "class Loud:\n    def __repr__(self): raise SystemExit('built')\n"
        "log = logging.getLogger('fairlead.x')\n"
        "tell(log, 'a', x=Loud()); log.warning('b'); log.error('c')\n"
        "with doing(log, 'd', x=Loud()): pass\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_an_event_needs_time_source_and_severity():
    with pytest.raises(msgspec.ValidationError):
        from_json('{"time_ns": 1, "source": "x", "severity": "loud", "what": ""}', Event)

from __future__ import annotations

import datetime as dt

import pytest
from msgspec.structs import replace

from fairlead.base.nodeset import NodeSet
from fairlead.preflight.nodes.history import (
    SOME,
    Entry,
    History,
    entry_of,
    failed_before,
    judge_history,
    machine_ids,
    of_these,
    repeats,
)
from fairlead.records.facts import NodeFacts
from fairlead.records.finding import Finding, Subject, node
from fairlead.records.verdict import Verdict

WHEN = dt.datetime(2026, 11, 21, 3, 30, tzinfo=dt.timezone(dt.timedelta(hours=2)))


def entry(number, nodes="n[1-4]", cluster="", **failed):
    return Entry(
        run=f"run-{number}",
        time=f"2026-11-{number:02}T01:30:00Z",
        cluster=cluster,
        nodes=nodes,
        failed={name: tuple(codes.split()) for name, codes in failed.items()},
    )


def find(code, name="n1", verdict=Verdict.FAIL, **more):
    return Finding(code=code, verdict=verdict, subject=more.pop("subject", node(name)), message="x", **more)


# ---- what is remembered ----------------------------------------------------------------------------------------------


def test_a_run_leaves_who_was_asked_and_who_failed_of_what():
    pair = Subject(kind="pair", nodes=("n2", "n3"))
    findings = [
        find("ib/count"),
        find("ib/port-rate", subject=Subject(kind="port", nodes=("n1",), name="mlx5_0/1")),
        find("ib/count", subject=Subject(kind="port", nodes=("n1",), name="mlx5_1/1")),
        find("preflight/tcp", subject=pair),
        find("gpu/ecc", "n4", Verdict.UNKNOWN),
        find("host/swap", "n4", Verdict.WARN),
        find("preflight/node-state", "n4"),
        find("skew/torch", "n4"),
        find("preflight/slow-link", subject=Subject(kind="plane", nodes=("n4",), name="plane 1")),
    ]
    made = entry_of("run-1", WHEN, NodeSet("n[1-4]"), findings, cluster="c")
    assert made == Entry(
        run="run-1",
        time="2026-11-21T01:30:00Z",
        cluster="c",
        nodes="n[1-4]",
        failed={"n1": ("ib/count", "ib/port-rate")},
    )


def test_a_run_leaves_the_machine_ids_of_who_failed_and_of_some_others():
    ids = {f"n{i}": f"id{i}" for i in range(20)}
    findings = [find("ib/count", "n15"), find("probe/no-answer", "n30")]
    made = entry_of("run-1", WHEN, NodeSet("n[0-19],n30"), findings, machines=ids)
    assert made.machines == {name: ids[name] for name in ("n15", *(f"n{i}" for i in range(SOME)))}
    facts = NodeFacts(node="n7", facts={"host": {"identity": {"machine_id": "abc"}}})
    assert machine_ids([facts, NodeFacts(node="n8")]) == {"n7": "abc"}


def test_a_machine_that_was_put_in_place_of_a_bad_one_begins_anew():
    past = [replace(entry(i, n1="ib/count", n2="ib/count"), machines={"n1": "a", "n2": "b", "n3": "c"}) for i in (1, 2)]
    now = entry(3, n1="ib/count", n2="ib/count")
    same, other = {"n1": "a", "n2": "b", "n3": "c"}, {"n1": "A", "n2": "b", "n3": "c"}
    assert [f.subject.nodes for f in judge_history(of_these(past, same), now)] == [("n1",), ("n2",)]
    assert [f.subject.nodes for f in judge_history(of_these(past, other), now)] == [("n2",)]


def test_where_all_machines_are_others_nobody_failed_before():
    """A lab that was built again: also the host that never answered, of which nobody knows the machine-id, is new."""
    past = [replace(entry(i, n4="probe/no-answer"), machines={"n1": "a", "n2": "b"}) for i in (1, 2)]
    now = entry(3, n4="probe/no-answer")
    assert judge_history(of_these(past, {"n1": "A", "n2": "B"}), now) == []
    assert judge_history(of_these(past, {"n1": "a", "n2": "B"}), now) != []
    assert judge_history(of_these(past, {}), now) != []


def test_what_is_added_is_read_back_by_its_cluster_alone(tmp_path):
    ours, theirs = History(tmp_path / "new", "a"), History(tmp_path / "new", "b")
    assert ours.entries() == []
    assert ours.add(entry(1, cluster="a", n1="ib/count"))
    assert theirs.add(entry(2, cluster="b"))
    assert ours.add(entry(3, cluster="a"))
    assert [e.run for e in ours.entries()] == ["run-1", "run-3"]
    assert ours.entries()[0] == entry(1, cluster="a", n1="ib/count")


# ---- judging ---------------------------------------------------------------------------------------------------------


def days(pattern):
    """Entries in which n1 fails (x), passes (.) or is not asked (-)."""
    return [
        entry(i, "n[2-4]" if mark == "-" else "n[1-4]", **({"n1": "ib/count"} if mark == "x" else {}))
        for i, mark in enumerate(pattern, 1)
    ]


@pytest.mark.parametrize(
    ("pattern", "window", "failed", "of"),
    [
        ("x", 10, 1, 1),
        ("..x.x", 10, 2, 5),
        ("xxx..........", 10, None, None),
        ("xxx.........x", 10, 1, 10),
        ("x---------------x", 10, 2, 2),
        ("xxxxx", 2, 2, 2),
        ("....", 10, None, None),
        ("", 10, None, None),
    ],
)
def test_failures_are_counted_in_the_last_preflights_that_asked_the_node(pattern, window, failed, of):
    found = repeats(days(pattern), "n1", window)
    assert (found and (found.failed, found.of)) == ((failed, of) if failed else None)


def test_words_name_the_first_failure_in_the_window_and_the_usual_causes():
    past = [entry(1, n1="a/a"), entry(2, n1="b/b c/c"), entry(3), entry(4, n1="b/b d/d e/e")]
    assert str(repeats(past, "n1", 3)) == "failed 2 of its last 3 preflights, first on 2026-11-02 (b/b, c/c, d/d, ...)"


@pytest.mark.parametrize(
    ("pattern", "now", "is_warned"),
    [("xx", "x", True), ("xx", ".", False), ("xxx", ".", True), ("x.......x", "x", True), ("xxx.......", "-", False)],
)
def test_a_node_that_failed_often_is_warned_of_even_if_it_passes_now(pattern, now, is_warned):
    *past, last = days(pattern + now)
    found = judge_history(past, last)
    assert [f.subject.nodes for f in found] == ([("n1",)] if is_warned else [])
    if is_warned:
        (warning,) = found
        assert (warning.code, warning.verdict) == ("preflight/repeat-offender", Verdict.WARN)
        assert len(warning.evidence) == warning.data["failed"] >= warning.data["limit"] == 3
        assert "n1" not in warning.message


def test_limits_are_the_callers():
    *past, last = days("xx.x")
    assert judge_history(past, last, window=2) == []
    assert len(judge_history(past, last, window=2, at_least=1)) == 1


def test_nodes_that_fail_now_and_did_before_are_told():
    past = [entry(1, n1="ib/count", n3="ib/count"), entry(2)]
    now = entry(3, n1="ib/count", n2="gpu/ecc")
    assert failed_before(past, now) == {"n1": "failed 2 of its last 3 preflights, first on 2026-11-01 (ib/count)"}


# ---- the file (records/journal.py has its own tests) -----------------------------------------------------------------


@pytest.mark.parametrize(
    "rubbish",
    [
        b'{"run":"torn","time":"2026-11-0',
        b"\x00\xff\xfe",
        b"[]\n\n{}\n",
        b'{"run":1,"time":2,"nodes":3}\n',
        b'{"run":"x","time":"2026-11-01","nodes":"n[1-","failed":{"n1":["a/a"]}}\n',
    ],
)
def test_what_is_no_entry_is_skipped_and_the_next_stands_whole(tmp_path, rubbish):
    history = History(tmp_path)
    assert history.add(entry(1, n1="ib/count"))
    with (tmp_path / "history.jsonl").open("ab") as file:
        file.write(rubbish)
    assert history.add(entry(2))
    assert [e.run for e in history.entries() if e.run != "x"] == ["run-1", "run-2"]
    assert repeats(history.entries(), "n1").failed == 1

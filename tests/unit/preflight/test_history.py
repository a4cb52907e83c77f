from __future__ import annotations

import datetime as dt
import fcntl
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fairlead.base.nodeset import NodeSet
from fairlead.errors import NotPermitted
from fairlead.preflight import history as module
from fairlead.preflight.history import (
    Entry,
    History,
    entry_of,
    failed_before,
    judge_history,
    repeats,
    state_place,
)
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


def test_what_is_added_is_read_back_by_its_cluster_alone(tmp_path):
    ours, theirs = History(tmp_path / "new", "a"), History(tmp_path / "new", "b")
    assert ours.entries() == []
    assert ours.add(entry(1, cluster="a", n1="ib/count"))
    assert theirs.add(entry(2, cluster="b"))
    assert ours.add(entry(3, cluster="a"))
    assert [e.run for e in ours.entries()] == ["run-1", "run-3"]
    assert ours.entries()[0] == entry(1, cluster="a", n1="ib/count")


# ---- the place -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env", "uid", "place"),
    [
        ({"XDG_STATE_HOME": "/x", "HOME": "/home/ann"}, 7, "/x/fairlead"),
        ({"XDG_STATE_HOME": "relative", "HOME": "/home/ann"}, 7, "/home/ann/.local/state/fairlead"),
        ({"HOME": "/home/ann"}, 7, "/home/ann/.local/state/fairlead"),
        ({"HOME": "/root"}, 0, "/root/.local/state/fairlead"),
        ({}, 0, "/var/lib/fairlead"),
        ({"HOME": "/"}, 0, "/var/lib/fairlead"),
        ({"HOME": ""}, 7, "/var/tmp/fairlead-7"),
    ],
)
def test_state_lives_where_it_can_without_a_home_too(env, uid, place):
    assert state_place(env, uid) == Path(place)


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


# ---- the file under stress -------------------------------------------------------------------------------------------


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
    with history.path.open("ab") as file:
        file.write(rubbish)
    assert history.add(entry(2))
    assert [e.run for e in history.entries() if e.run != "x"] == ["run-1", "run-2"]
    assert repeats(history.entries(), "n1").failed == 1


def test_the_file_is_bounded_in_lines_and_keeps_the_newest(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "KEEP_LINES", 10)
    history = History(tmp_path)
    for number in range(1, 24):
        history.add(entry(number))
        assert len(history.entries()) <= 10
    runs = [e.run for e in history.entries()]
    assert runs == [f"run-{n}" for n in range(24 - len(runs), 24)]
    assert len(runs) >= 5


def test_the_file_is_bounded_in_bytes_and_one_long_entry_is_still_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "KEEP_BYTES", 2000)
    history = History(tmp_path)
    for number in range(1, 25):
        history.add(entry(number, n1="ib/" + "x" * 300))
        assert history.path.stat().st_size <= 2000
    history.add(entry(25, n1="ib/" + "x" * 5000))
    assert [e.run for e in history.entries()] == ["run-25"]


_WRITER = """
import sys
from pathlib import Path
from fairlead.preflight.history import Entry, History
history = History(Path(sys.argv[1]))
print("ready", flush=True)
for number in range(int(sys.argv[3])):
    entry = Entry(run=f"{sys.argv[2]}-{number}", time="2026-11-21T00:00:00Z", nodes="n[1-500]",
                  failed={f"n{i}": ("ib/port-rate",) * 3 for i in range(200)})
    assert history.add(entry)
"""


def writer(place, name, count):
    argv = [sys.executable, "-c", _WRITER, str(place), name, str(count)]
    child = subprocess.Popen(argv, stdout=subprocess.PIPE)
    child.stdout.readline()
    return child


def test_two_writers_at_once_lose_nothing(tmp_path):
    children = [writer(tmp_path, name, 30) for name in ("a", "b")]
    assert [child.wait(60) for child in children] == [0, 0]
    for child in children:
        child.stdout.close()
    runs = [e.run for e in History(tmp_path).entries()]
    assert len(runs) == 60
    for name in ("a", "b"):
        assert [r for r in runs if r[0] == name] == [f"{name}-{i}" for i in range(30)]


def test_two_writers_that_prune_lose_only_the_oldest(tmp_path, monkeypatch):
    source = _WRITER.replace("history = ", "import fairlead.preflight.history as m; m.KEEP_LINES = 20\nhistory = ")
    monkeypatch.setitem(globals(), "_WRITER", source)
    children = [writer(tmp_path, name, 30) for name in ("a", "b")]
    assert [child.wait(60) for child in children] == [0, 0]
    for child in children:
        child.stdout.close()
    runs = [e.run for e in History(tmp_path).entries()]
    assert 10 <= len(runs) <= 20
    for name in ("a", "b"):
        mine = [int(r[2:]) for r in runs if r[0] == name]
        assert mine == list(range(30 - len(mine), 30))
    assert {"a-29", "b-29"} & set(runs)


def test_a_killed_writer_leaves_the_others_working(tmp_path):
    for delay_s in (0.0, 0.005, 0.02):
        child = writer(tmp_path, "a", 100_000)
        time.sleep(delay_s)
        child.send_signal(signal.SIGKILL)
        child.wait(10)
        child.stdout.close()
    history = History(tmp_path)
    assert history.add(entry(1))
    *theirs, ours = history.entries()
    assert ours == entry(1)
    # a kill between two pages of a write tears that line: at most one for each writer, and no other is lost to it
    assert len(theirs) >= len(history.path.read_bytes().splitlines()) - 1 - 3
    assert all(e.run.startswith("a-") and len(e.failed) == 200 for e in theirs)


def test_a_lock_that_is_held_too_long_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LOCK_LIMIT_S", 0.05)
    history = History(tmp_path)
    with (tmp_path / "history.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert not history.add(entry(1))
    assert history.add(entry(2))
    assert [e.run for e in history.entries()] == ["run-2"]


def test_a_disk_that_takes_half_a_line_is_left_with_none_of_it(tmp_path):
    history = History(tmp_path)
    history.add(entry(1))
    before = history.path.read_bytes()
    script = """
import resource, sys
from pathlib import Path
from fairlead.errors import DiskFull
from fairlead.preflight.history import Entry, History
size = int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, size + 20))
try:
    History(Path(sys.argv[1])).add(Entry(run="x", time="2026-11-21T00:00:00Z", nodes="n[1-4]"))
except DiskFull:
    print("full")
"""
    argv = [sys.executable, "-c", script, str(tmp_path), str(len(before))]
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == "full\n"
    assert history.path.read_bytes() == before


def test_a_place_that_cannot_be_is_said(tmp_path):
    (tmp_path / "sub").write_text("a file, not a directory")
    with pytest.raises(NotPermitted):
        History(tmp_path / "sub").add(entry(1))

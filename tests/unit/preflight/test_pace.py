from __future__ import annotations

import fcntl
import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fairlead.preflight.nodes import pace as module
from fairlead.preflight.nodes.pace import (
    MAX_FINDINGS,
    PERIOD,
    Look,
    boot_id,
    is_due,
    next_s,
    pace_place,
    paced,
    place_of,
)
from fairlead.records.finding import Finding, node
from fairlead.records.verdict import Verdict

FAIL = Finding(code="gpu/count", verdict=Verdict.FAIL, subject=node("n1"), message="7 of 8")
PASS = Finding(code="ib/count", verdict=Verdict.PASS, subject=node("n1"), message="8")


class Node:
    """A node that is looked at: its clock, its file, and how often somebody looked."""

    def __init__(self, place, every_s=300.0, name="n1"):
        self.place, self.every_s, self.name = place, every_s, name
        self.now_s, self.num_looks = 1000.0, 0
        self.findings = (PASS,)

    def look(self):
        self.num_looks += 1
        worst = Verdict.FAIL if FAIL in self.findings else Verdict.PASS
        return worst, self.findings

    def sleep(self, seconds):
        self.now_s += seconds

    def ask(self, **more):
        return paced(self.look, self.name, self.every_s, self.place, now=lambda: self.now_s, sleep=self.sleep, **more)


@pytest.fixture
def n1(tmp_path):
    return Node(tmp_path / "pace")


# ---- deciding --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["n0", "n1", "h200-017", "x" * 60])
def test_never_closer_than_the_interval_and_steadily_once_a_period(name):
    now_s, gaps = 12_345.6, []
    for _ in range(20):
        then_s = next_s(name, now_s + 0.3, 300.0)  # a look starts a little after it was due
        gaps.append(then_s - now_s)
        now_s = then_s
    assert all(gap >= 300.0 for gap in gaps)
    assert gaps[0] <= 300.3 + PERIOD * 300.0
    assert gaps[1:] == pytest.approx([PERIOD * 300.0] * 19)


def test_a_fleet_that_boots_together_spreads():
    """Slurm asks every node at the same moment, once a minute; each is due at its own place in the period."""
    names = [f"h200-{i:03}" for i in range(1000)]
    booted_s, every_s, tick_s = 60.0, 600.0, 60.0
    ticks = [next_s(n, next_s(n, booted_s, every_s), every_s) // tick_s for n in names]
    share = [ticks.count(t) / len(names) for t in set(ticks)]
    assert len(share) >= PERIOD * every_s / tick_s
    assert max(share) < 2 * tick_s / (PERIOD * every_s)


def test_places_are_spread_evenly_and_stay():
    places = sorted(place_of(f"n{i}") for i in range(2000))
    assert 0 <= places[0] < places[-1] < 1
    assert max(abs(p - i / 2000) for i, p in enumerate(places)) < 0.05
    assert place_of("n1") == pytest.approx(0.56152, abs=1e-5)


LAST = Look(node="n1", verdict=Verdict.PASS, started_s=1000.0, boot="b")


@pytest.mark.parametrize(
    ("last", "now_s", "boot", "expected"),
    [
        (None, 1001.0, "b", True),
        (LAST, 1001.0, "b", False),
        (LAST, 1299.9, "b", False),
        (LAST, 1000.0 + 300.0 + PERIOD * 300.0, "b", True),
        (LAST, 1001.0, "another boot", True),
        (LAST, 999.0, "b", True),
        (Look(node="n2", verdict=Verdict.PASS, started_s=1000.0, boot="b"), 1001.0, "b", True),
        (Look(node="n1", verdict=Verdict.PASS, started_s=1000.0, boot="b", version="0"), 1001.0, "b", True),
    ],
)
def test_when_it_is_due(last, now_s, boot, expected):
    assert is_due(last, "n1", 300.0, now_s=now_s, boot=boot) is expected


def test_without_an_interval_it_is_always_due():
    assert is_due(LAST, "n1", 0.0, now_s=1000.0, boot="b")


# ---- the file --------------------------------------------------------------------------------------------------------


def test_between_looks_the_last_verdict_stands(n1):
    n1.findings = (FAIL, PASS)
    first = n1.ask()
    assert (first.is_fresh, first.look.verdict, first.findings) == (True, Verdict.FAIL, (FAIL, PASS))
    n1.findings = (PASS,)
    n1.now_s += 120
    again = n1.ask()
    assert (again.is_fresh, again.look.verdict, again.findings, again.age_s) == (False, Verdict.FAIL, (FAIL,), 120.0)
    n1.now_s += 700
    assert n1.ask().look.verdict is Verdict.PASS
    assert n1.num_looks == 2


def test_what_was_found_is_bounded(n1):
    n1.findings = (FAIL,) * 500
    assert len(n1.ask().findings) == 500
    assert len(n1.ask().findings) == MAX_FINDINGS


def test_a_look_that_failed_leaves_the_last_verdict_and_the_lock(n1):
    n1.every_s = 0
    n1.ask()
    before = (n1.place / "here.json").read_bytes()

    def broken():
        raise RuntimeError

    with pytest.raises(RuntimeError):
        paced(broken, "n1", 0.0, n1.place)
    assert (n1.place / "here.json").read_bytes() == before
    assert n1.ask().is_fresh


@pytest.mark.parametrize("text", ["", "{", "[]", '{"node":"n1"}', "\x00"])
def test_a_file_that_is_no_look_is_as_none(n1, text):
    n1.place.mkdir()
    (n1.place / "here.json").write_text(text)
    assert n1.ask().is_fresh


def test_another_boot_counts_for_nothing(n1, monkeypatch):
    n1.ask()
    monkeypatch.setattr(module, "boot_id", lambda: "another")
    assert n1.ask().is_fresh


class Held:
    """Somebody else who looks, and may end while one waits."""

    def __init__(self, node):
        self.node = node
        node.place.mkdir(exist_ok=True)
        self.lock = (node.place / "here.lock").open("a")
        fcntl.flock(self.lock, fcntl.LOCK_EX)

    def ends(self, after_s, verdict=None):
        """A sleep under which the other ends after some time, with a verdict or without."""
        start_s = self.node.now_s

        def sleep(seconds):
            self.node.now_s += seconds
            if self.node.now_s - start_s >= after_s and not self.lock.closed:
                if verdict:
                    found = Look(node="n1", verdict=verdict, started_s=start_s, boot=boot_id())
                    (self.node.place / "here.json").write_bytes(module.to_json(found).encode())
                self.lock.close()

        self.node.sleep = sleep


def test_while_another_looks_the_last_verdict_stands_at_once(n1):
    n1.ask()
    n1.now_s += 100_000
    held = Held(n1)
    found = n1.ask(wait_s=60)
    assert (found.is_fresh, found.age_s, n1.num_looks) == (False, 100_000.0, 1)
    held.lock.close()


def test_the_first_verdict_is_waited_for(n1):
    Held(n1).ends(5.0, Verdict.WARN)
    found = n1.ask(wait_s=60)
    assert (found.look.verdict, found.is_fresh, n1.num_looks) == (Verdict.WARN, False, 0)


def test_a_look_that_died_is_taken_over(n1):
    Held(n1).ends(5.0)
    assert n1.ask(wait_s=60).is_fresh


def test_nobody_waits_for_ever(n1):
    held = Held(n1)
    found = n1.ask(wait_s=2.0)
    assert (found.look, found.is_fresh) == (None, False)
    assert n1.now_s == pytest.approx(1002.0, abs=0.1)
    held.lock.close()


def test_a_place_that_cannot_be_written_is_no_reason_not_to_look(tmp_path):
    (tmp_path / "file").write_text("")
    n1 = Node(tmp_path / "file" / "pace")
    assert n1.ask().is_fresh
    assert n1.ask().is_fresh
    assert n1.num_looks == 2


def test_many_at_once_look_once(n1):
    inside, results, gate = [], [], threading.Barrier(8)

    def look():
        inside.append(1)
        started.wait(60)
        return Verdict.PASS, (PASS,)

    started = threading.Event()

    def ask():
        gate.wait(60)
        results.append(paced(look, "n1", 300.0, n1.place, wait_s=20.0))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    started.set()
    for thread in threads:
        thread.join(60)
    assert len(inside) == 1
    assert sorted(r.is_fresh for r in results) == [False] * 7 + [True]
    assert all(r.look.verdict is Verdict.PASS for r in results)


def test_a_killed_look_frees_the_lock(n1):
    script = """
import sys, time
from pathlib import Path
from fairlead.preflight.nodes.pace import paced
def look():
    print("looking", flush=True)
    time.sleep(60)
paced(look, "n1", 300.0, Path(sys.argv[1]))
"""
    child = subprocess.Popen([sys.executable, "-c", script, str(n1.place)], stdout=subprocess.PIPE)
    assert child.stdout.readline() == b"looking\n"
    assert n1.ask().look is None
    child.kill()
    child.wait(60)
    child.stdout.close()
    assert n1.ask().is_fresh


def test_the_place_of_root_needs_no_home_and_others_have_their_own(monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", "/x")
    assert pace_place(0) == Path("/run/fairlead/preflight")
    assert pace_place(7) == Path("/x/fairlead/preflight")


def test_the_file_holds_one_whole_record(n1):
    n1.findings = (FAIL,)
    n1.ask()
    said = json.loads((n1.place / "here.json").read_text())
    assert said["verdict"] == "fail"
    assert said["boot"] == boot_id() != ""


def test_a_place_that_a_neighbour_laid_out_is_not_used_and_no_reason_not_to_look(tmp_path):
    n1 = Node(tmp_path / "pace")
    n1.ask()
    (tmp_path / "pace").chmod(0o777)
    before = (tmp_path / "pace" / "here.json").read_text()
    n1.now_s += 1
    assert n1.ask().is_fresh, "what it says could be anybody's"
    assert (tmp_path / "pace" / "here.json").read_text() == before

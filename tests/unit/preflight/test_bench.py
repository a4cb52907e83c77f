"""The scripts that measure preflight: they go on where they were stopped, and end a peer that hangs whole."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import scorer
from support.scorer import Trial

BENCH = Path(__file__).parents[3] / "bench"
NAMES = ["port down", "missing HCA", "node dead", "clock skew"]


@pytest.fixture
def faults(monkeypatch):
    """The script, with a lab and trials that need no machine; `faults.broken` names trials that raise."""
    monkeypatch.syspath_prepend(BENCH)
    import preflight_faults as module

    @contextlib.contextmanager
    def world(**shape) -> Iterator[object]:
        module.labs.append(shape)
        yield None

    def trial(world_, drawn, *, suite, name, seed) -> Trial:
        module.tried.append(name)
        if name in module.broken:
            raise TimeoutError(name)
        fields = {"verdict": "fail", "first": "", "named": [True], "is_first": True, "accused": [], "truths": []}
        return Trial(suite=suite, name=name, seed=seed, hosts=4, gpus=2, rate_mbps=250, wall_s=1.0, **fields)

    for name, value in {"world": world, "trial": trial, "draw": lambda *_: [], "show": lambda *_: None}.items():
        monkeypatch.setattr(module, name, value)
    for name, value in {"labs": [], "tried": [], "broken": set()}.items():
        monkeypatch.setattr(module, name, value, raising=False)
    monkeypatch.setattr(module, "KINDS", {name: module.KINDS[name] for name in NAMES})
    return module


def args(results: Path, **more) -> argparse.Namespace:
    fields = {"suite": "single", "seed": 1, "hosts": 4, "gpus": 2, "rate": 250, "num": 2, "most": 1000, "only": ""}
    return argparse.Namespace(**fields | {"keep": True, "results": results, "folders": None, "commit": "abc"} | more)


def test_what_was_measured_at_this_commit_is_left_out_and_the_rest_goes_on(faults, tmp_path):
    results = tmp_path / "results.jsonl"
    faults.run(args(results, most=2))
    first = list(faults.tried)
    faults.run(args(results))
    assert len(first) == 2
    assert sorted(faults.tried) == sorted(NAMES)
    assert {t.commit for t in scorer.read(results)} == {"abc"}
    faults.run(args(results))
    assert len(faults.tried) == len(NAMES)
    assert len(faults.labs) == 2, "no lab is brought up for nothing"
    faults.run(args(results, commit="def"))
    assert len(faults.tried) == 2 * len(NAMES)
    assert {t.commit for t in scorer.read(results)} == {"def"}


def test_a_trial_that_cannot_be_run_costs_only_itself(faults, tmp_path, capsys):
    results = tmp_path / "results.jsonl"
    faults.broken = {"missing HCA"}
    done = faults.run(args(results))
    assert done.count(None) == 1
    assert {t.name for t in scorer.read(results)} == set(NAMES) - {"missing HCA"}
    assert "BROKEN missing HCA" in capsys.readouterr().out
    faults.broken = set()
    faults.run(args(results))
    assert {t.name for t in scorer.read(results)} == set(NAMES)


def test_where_nothing_can_be_run_it_gives_up(faults, tmp_path, monkeypatch):
    monkeypatch.setattr(faults, "MOST_FAILURES", 1)
    faults.broken = set(NAMES)
    assert faults.run(args(tmp_path / "results.jsonl")) == [None, None]


@pytest.fixture
def peers(monkeypatch):
    """The script; `peers.marks` are those of the peers it has run."""
    monkeypatch.syspath_prepend(BENCH)
    import preflight_peers as module

    kill, marks = module._kill, []
    monkeypatch.setattr(module, "marks", marks, raising=False)
    monkeypatch.setattr(module, "_kill", lambda mark: (marks.append(mark), kill(mark)))
    return module


def test_a_peer_that_hangs_is_killed_whole_and_what_it_said_is_kept(peers):
    """Also what it started in a session of its own, which holds its output open and ignores every other signal."""
    script = "trap '' TERM INT; echo begun; setsid sh -c \"trap '' TERM; sleep 600\" & exec sleep 600"
    said, wall_s = peers._run(["sh", "-c", script], limit_s=3.0)
    assert said == "begun\n\nkilled after 3 s"
    assert wall_s >= 3.0
    assert [peers.marked(mark) for mark in peers.marks] == [[]]


def test_a_peer_that_ends_leaves_nothing_behind_either(peers):
    said, _ = peers._run(["sh", "-c", "setsid sleep 600 & echo over"])
    assert said == "over\n\nexit 0"
    assert [peers.marked(mark) for mark in peers.marks] == [[]]

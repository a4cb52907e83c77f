from __future__ import annotations

import fcntl
import sys
import time

import pytest

from fairlead.base.process import start_ticks
from fairlead.preflight.nodes import here as module
from fairlead.preflight.nodes.here import Pace, look_here
from fairlead.preflight.nodes.pace import Look, boot_id, place_of, since_boot_s
from fairlead.preflight.slurm.inside import here_spec
from fairlead.records.codec import to_json
from fairlead.records.verdict import Verdict


@pytest.fixture
def spec():
    return here_spec({"SLURMD_NODENAME": "n7"}, None)[1]


@pytest.fixture
def python(tmp_path, monkeypatch):
    """Another program in the place of Python."""

    def set_to(script):
        path = tmp_path / "python"
        path.write_text("#!/bin/sh\n" + script)
        path.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(path))

    return set_to


def test_a_probe_that_hangs_is_ended_and_not_judged(spec, tmp_path, python, monkeypatch):
    monkeypatch.setattr(module, "GRACE_S", 0.1)
    python("sleep 60 & echo $! >" + str(tmp_path / "pid") + "\nsleep 60\n")
    began = time.monotonic()
    found = look_here("n7", spec, tmp_path / "pace", Pace(limit_s=2.0))
    assert time.monotonic() - began < 30
    assert found.verdict is Verdict.UNKNOWN
    assert [(f.code, f.subject.nodes) for f in found.findings] == [("probe/no-answer", ("n7",))]
    assert "did not end within" in found.findings[0].message
    left = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and start_ticks(left):
        time.sleep(0.02)
    assert start_ticks(left) is None


@pytest.mark.parametrize(
    ("script", "code"), [("exit 3", "probe/no-answer"), ("cat >/dev/null; echo nonsense", "probe/bad-answer")]
)
def test_a_probe_that_says_nothing_is_no_pass(spec, tmp_path, python, script, code):
    python(script)
    found = look_here("n7", spec, tmp_path / "pace")
    assert (found.verdict, [f.code for f in found.findings]) == (Verdict.UNKNOWN, [code])


def test_a_node_waits_its_own_jitter_before_a_look_and_not_before_an_answer(spec, tmp_path, python):
    python("exit 3")
    slept = []
    for _ in range(2):
        look_here("n7", spec, tmp_path / "pace", Pace(every_s=300.0, jitter_s=10.0), sleep=slept.append)
    assert slept == [10.0 * place_of("n7")]


def test_an_old_verdict_under_a_look_that_does_not_end_is_none(spec, tmp_path):
    place = tmp_path / "pace"
    place.mkdir()
    last = Look(node="n7", verdict=Verdict.PASS, started_s=since_boot_s(), boot=boot_id())
    (place / "here.json").write_text(to_json(last))
    with (place / "here.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        pace = Pace(every_s=300.0)
        assert look_here("n7", spec, place, pace).verdict is Verdict.PASS
        later = since_boot_s() + 4 * 1.25 * 300 + 1
        found = look_here("n7", spec, place, pace, now=lambda: later)
        assert (found.verdict, found.findings[0].code) == (Verdict.UNKNOWN, "preflight/no-verdict")
        (place / "here.json").unlink()
        found = look_here("n7", spec, place, Pace(limit_s=-5.0))
        assert (found.verdict, found.findings[0].code) == (Verdict.UNKNOWN, "preflight/no-verdict")
        assert "no earlier verdict" in found.findings[0].message

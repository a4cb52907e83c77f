"""A run that is asked to end: after the step under way nothing is lost, whatever the signal and where the state is."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from fairlead.errors import Exit
from support.runs import opened, prepare, steps_told

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("one_thread")]

SLOW = """
import sys, time
from pathlib import Path
from fairlead.cli.app import main
from fairlead.train.engine import Engine
step = Engine.step
def slow(self, *args, **words):
    if Path(sys.argv[-1]).with_name("slow").exists():
        Path(sys.argv[-1]).with_name("asleep").touch()
        time.sleep(120)
    return step(self, *args, **words)
Engine.step = slow
main()
"""


def begun(toml, steps=3, code="from fairlead.cli.app import main; main()"):
    """A run in a program of its own, after some steps."""
    words = [sys.executable, "-c", code, "train", "run", toml]
    run = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: (toml.parent / "metrics.jsonl").exists() and len(steps_told(toml.parent)) >= steps, run)
    return run


def wait_for(is_so, run):
    deadline = time.monotonic() + 240
    while not is_so():
        assert run.poll() is None, run.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def ended(run):
    """What it said, and how it ended."""
    try:
        _, said = run.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        run.kill()
        run.communicate()
        pytest.fail("it does not end")
    return said, run.returncode


@pytest.mark.parametrize(
    ("number", "keep"),
    [(signal.SIGINT, "memory"), (signal.SIGTERM, "disk"), (signal.SIGUSR1, "memory"), (signal.SIGHUP, "disk")],
)
def test_a_signal_ends_a_run_after_its_step_and_nothing_is_lost(number, keep, tmp_path) -> None:
    toml = prepare(tmp_path, run_keep=keep, run_steps=100_000)
    run = begun(toml)
    run.send_signal(number)
    said, status = ended(run)
    assert status == Exit.INTERRUPTED, said
    assert "all of them kept" in said
    told = steps_told(tmp_path)
    with opened(toml, resume=True) as again:
        assert again.done == len(told)
    assert f"after {len(told)} of 100000 steps" in said


def test_a_second_one_ends_it_at_once_and_says_what_is_lost(tmp_path) -> None:
    toml = prepare(tmp_path, run_keep="memory", run_steps=100_000, run_save_every=1000)
    run = begun(toml, code=SLOW)
    (tmp_path / "slow").touch()
    wait_for((tmp_path / "asleep").exists, run)
    run.send_signal(signal.SIGTERM)
    time.sleep(1)
    assert run.poll() is None, "it did not wait for its step"
    run.send_signal(signal.SIGTERM)
    said, status = ended(run)
    assert status == Exit.INTERRUPTED
    assert "stopped by SIGTERM: ends after the step under way; once more: at once" in said
    lost = len(steps_told(tmp_path)) % 1000
    assert f"stopped by SIGTERM: {lost} steps since the last snapshot are lost" in said

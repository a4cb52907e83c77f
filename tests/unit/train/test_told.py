"""What a run tells on a terminal: the loss and what binds a step, however narrow it is."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from fairlead.cli.progress import live
from fairlead.cli.train_run import _BOUND, _told
from fairlead.train.pace import reached
from unit.train.test_session import STEPS, prepare


def drawn_at(columns, command, folder):
    """All that a command draws on a terminal of so many columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    env = {key: value for key, value in os.environ.items() if key != "COLUMNS"} | {"TERM": "xterm"}
    with subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=theirs) as child:
        os.close(theirs)
        found = b""
        try:
            while more := os.read(ours, 65536):
                found += more
        except OSError:  # so Linux says that nobody writes any more
            pass
        os.close(ours)
    assert child.returncode == 0, found.decode()
    return found.decode()


@pytest.mark.parametrize("columns", [80, 60])
def test_a_run_tells_loss_bound_and_rest_on_a_terminal(columns, tmp_path) -> None:
    prepare(tmp_path)
    said = drawn_at(columns, [sys.executable, "-m", "fairlead", "train", "run", "train.toml"], tmp_path)
    lines = [line for line in re.split(r"[\r\n]|\x1b\[2K", said) if line.startswith("steps")]
    assert lines[-1].startswith(f"steps {STEPS}/{STEPS}  ")
    for line in lines:
        assert len(line) < columns
        assert re.search(r"  loss \d\.\d+  (compute|disk|update)-bound \d+%  \d:\d\d left", line), line
    assert ("tokens/s" in lines[-1]) is (columns == 80)


@pytest.mark.parametrize(("step", "of", "left_s"), [(87, 200, 500.0), (870, 2000, 59_000.0), (12_345, 99_999, 9e5)])
@pytest.mark.parametrize("name", _BOUND)
def test_long_runs_fit_too(step, of, left_s, name) -> None:
    """Whatever binds them, the loss and that stand in 60 columns, and in 80 when it will end."""
    said = _told(10.2468, (name, 1.0), left_s, 123_456.0)
    assert f"{_BOUND[name]} 100%" in live("steps", step, of, said, 59)
    assert " left" in live("steps", step, of, said, 79)


def test_every_resource_has_a_short_word() -> None:
    seconds = dict.fromkeys(("forward", "backward", "waited", "loading", "writing", "update"), 0.0)
    busiest = [("loading", True), ("update", False), ("forward", True), ("forward", False)]
    found = {reached(seconds | {name: 1.0}, 2.0, on_disk=on_disk, is_host=True)[0] for name, on_disk in busiest}
    assert found == set(_BOUND)


@pytest.mark.parametrize("said", [None, "2.3", float("nan"), 1e300, [1]])
def test_what_a_rank_says_of_itself_may_be_anything(said) -> None:
    assert all(len(part) < 30 for part in _told(said, None, 5.0, said))

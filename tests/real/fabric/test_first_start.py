"""The first start of the compiled transport: one program of many compiles, and later starts take what it has made."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numba")
pytestmark = pytest.mark.real

LIMIT_S = 60
WORKER = """
import os, sys, time
from pathlib import Path
from fairlead.fabric.transport.fast.start import once
folder, seconds = Path(sys.argv[1]), float(sys.argv[2])
def work():
    made = folder / "made"
    if made.exists():
        return
    (folder / f"by-{os.getpid()}").touch()
    print("at work", flush=True)
    time.sleep(seconds)
    made.touch()
print("new" if once(folder, "here", work, lambda text: print(text, flush=True)) else "was there", flush=True)
"""
CONTEXT = """
from fairlead.fabric.transport.context import Context
with Context(addresses=["::1"]) as context:
    print(type(context.engine).__name__)
"""


def started(folder: Path, seconds: float) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, str(folder), str(seconds)], stdout=subprocess.PIPE, text=True
    )


def test_of_programs_that_start_at_once_one_compiles_and_the_others_wait(tmp_path: Path) -> None:
    workers = [started(tmp_path / "kept", 0.5) for _ in range(3)]
    said = [worker.communicate(timeout=LIMIT_S)[0].split("\n") for worker in workers]
    assert sorted(lines[-2] for lines in said) == ["new", "was there", "was there"]
    assert len(list((tmp_path / "kept").glob("by-*"))) == 1
    assert sum("compiling the transport for this processor" in "\n".join(lines) for lines in said) == 1


def test_a_program_killed_while_it_compiles_leaves_it_to_the_next(tmp_path: Path) -> None:
    with started(tmp_path / "kept", LIMIT_S) as first:
        while first.stdout.readline() != "at work\n":
            assert first.poll() is None
        with started(tmp_path / "kept", 0) as second:
            assert second.stdout.readline() == "another program is compiling the transport: waiting for it\n"
            first.send_signal(signal.SIGKILL)
            rest, _ = second.communicate(timeout=LIMIT_S)
    assert rest.split("\n")[-3:] == ["at work", "new", ""]
    assert len(list((tmp_path / "kept").glob("by-*"))) == 2


def test_where_others_could_have_put_code_nothing_is_kept_or_taken(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with started(shared, 0) as worker:
        said, _ = worker.communicate(timeout=LIMIT_S)
    assert "at every start" in said
    assert said.endswith("new\n")
    assert not list(shared.glob("whole-*"))
    assert not (shared / "lock").exists()


def start() -> tuple[float, str]:
    """CPU seconds of a program that makes a context, and what it said."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", CONTEXT], capture_output=True, text=True, timeout=300, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.stdout == "FastEngine\n", done.stderr
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stderr


@pytest.mark.slow  # the first compiles: a minute
def test_a_second_start_takes_less_than_three_seconds() -> None:
    """Of CPU time: it uses one core and waits for nothing, so on a quiet machine that is the time it takes."""
    start()
    used_s, said = start()
    assert said == ""
    assert used_s < 3

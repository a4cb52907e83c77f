"""The probe as a node runs it: a process of its own, under real trouble."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fairlead.probe import local, parse, program
from fairlead.records.facts import is_unread
from support import trees
from support.judging import small

pytestmark = pytest.mark.real


def _pythons() -> dict[str, str]:
    """Version -> path of every Python from 3.9 on that starts; a shim for one that is not installed does not."""
    places = [sys.executable, *map(str, Path.home().glob(".pyenv/versions/3.*/bin/python3"))]
    places += [found for minor in range(9, 20) if (found := shutil.which(f"python3.{minor}"))]
    found = {}
    for place in places:
        code = "import sys; print('%d.%d' % sys.version_info[:2])"
        done = subprocess.run([place, "-I", "-c", code], capture_output=True, text=True, check=False)
        if done.returncode == 0 and tuple(map(int, done.stdout.split("."))) >= (3, 9):
            found[done.stdout.strip()] = place
    return found


PYTHONS = _pythons()


@pytest.mark.parametrize("version", sorted(PYTHONS))
def test_every_python_there_is_reads_this_machine(version: str) -> None:
    """Python 3.9 to the newest, with warnings as errors."""
    argv = [PYTHONS[version], "-I", "-W", "error", "-", "--limit", "20"]
    done = subprocess.run(argv, input=program(), capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    record = parse(done.stdout, "here")
    assert record.facts["host"]["identity"]["hostname"] == os.uname().nodename
    assert record.facts["host"]["os"]["kernel"] == os.uname().release
    assert abs(record.taken_at_ns / 1e9 - time.time()) < 60
    assert [name for name, facts in record.facts.items() if is_unread(facts)] in ([], ["kernel_log"])
    assert len(done.stdout.splitlines()) == 1


def test_this_machine_by_the_library() -> None:
    record = parse(local(), "here")
    assert record.facts["host"]["memory"]["MemTotal"] > 0
    assert "lo" in record.facts["net"]["links"]


# ---- commands that hang, flood, or vanish --------------------------------------------------------------------------


def _with_shim(
    tmp_path: Path, script: str, *words: str, limit: str = "20"
) -> tuple[subprocess.CompletedProcess[str], float]:
    """Run the program with an nvidia-smi of our own first in PATH."""
    shim = tmp_path / "bin" / "nvidia-smi"
    shim.parent.mkdir()
    shim.write_text(f"#!/bin/sh\n{script}\n")
    shim.chmod(0o755)
    env = {**os.environ, "PATH": f"{shim.parent}:{os.environ['PATH']}"}
    started = time.monotonic()
    argv = [sys.executable, "-I", "-", "--limit", limit, *words]
    done = subprocess.run(argv, input=program(), capture_output=True, text=True, timeout=60, check=False, env=env)
    return done, time.monotonic() - started


def test_a_stuck_command_costs_one_answer(tmp_path: Path) -> None:
    """nvidia-smi that never answers, and started something that does not either: everything else is read, in time."""
    done, took = _with_shim(tmp_path, f"sleep 987 & echo $! > {tmp_path}/pid; wait", limit="6")
    assert done.returncode == 0
    facts = json.loads(done.stdout)["facts"]
    assert facts["nvidia"]["smi"]["unread"].startswith("no answer within")
    assert facts["host"]["os"]["kernel"] == os.uname().release
    assert took < 30
    # nothing is left of it
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 30
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().split(")")[1][:3]


def test_a_command_that_floods(tmp_path: Path) -> None:
    done, took = _with_shim(tmp_path, "exec yes", "--only", "nvidia.smi")
    assert json.loads(done.stdout)["facts"]["nvidia"]["smi"]["unread"] == "prints more than 8388608 bytes"
    assert took < 40


def test_a_command_that_fails(tmp_path: Path) -> None:
    done, _ = _with_shim(
        tmp_path, 'echo "Failed to initialize NVML: Driver/library version mismatch"; exit 18', "--only", "nvidia.smi"
    )
    why = json.loads(done.stdout)["facts"]["nvidia"]["smi"]["unread"]
    assert why == "exit status 18: Failed to initialize NVML: Driver/library version mismatch"


def test_a_command_is_killed_with_its_reader(tmp_path: Path) -> None:
    done, _ = _with_shim(tmp_path, "kill -9 $PPID; sleep 1", "--only", "nvidia.smi")
    assert json.loads(done.stdout)["facts"]["nvidia"]["smi"]["unread"] == "its process ended without an answer"


def test_what_the_probe_started_ends_when_the_probe_is_killed(tmp_path: Path) -> None:
    """SIGKILL to the probe: its children carry alarms of their own."""
    shim = tmp_path / "bin" / "nvidia-smi"
    shim.parent.mkdir()
    shim.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 986\n")
    shim.chmod(0o755)
    text = program().replace("SMI_LIMIT_S = 12.0", "SMI_LIMIT_S = 1.0")
    env = {**os.environ, "PATH": f"{shim.parent}:{os.environ['PATH']}"}
    probe = subprocess.Popen(
        [sys.executable, "-I", "-", "--only", "nvidia.smi"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=env
    )
    assert probe.stdin is not None
    probe.stdin.write(text.encode())
    probe.stdin.close()
    pid_file = tmp_path / "pid"
    deadline = time.monotonic() + 60
    while not (pid_file.exists() and pid_file.read_text().strip()) and time.monotonic() < deadline:
        time.sleep(0.02)
    probe.send_signal(signal.SIGKILL)
    probe.wait()
    pid = int(pid_file.read_text())
    deadline = time.monotonic() + 30
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        if "Z" in Path(f"/proc/{pid}/stat").read_text().split(")")[1][:3]:
            break
        time.sleep(0.05)
    assert time.monotonic() < deadline, "nvidia-smi outlived the probe"


# ---- readers that hang ---------------------------------------------------------------------------------------------


def test_a_reader_that_hangs_costs_only_its_device(tmp_path: Path) -> None:
    """One HCA whose attribute never returns: the other HCAs and the rest of the node are read."""
    root = small().write(tmp_path / "tree")
    hang = 'if name == "mlx5_ib0":\n        time.sleep(980)\n    base = SYS_IB + "/" + name'
    text = program().replace('base = SYS_IB + "/" + name', hang, 1)
    assert text != program()
    started = time.monotonic()
    argv = [sys.executable, "-I", "-", "--root", str(root), "--limit", "6"]
    done = subprocess.run(argv, input=text, capture_output=True, text=True, timeout=60, check=True)
    facts = json.loads(done.stdout)["facts"]
    assert time.monotonic() - started < 40
    assert facts["ib"]["devices"]["mlx5_ib0"]["unread"].startswith("no answer within")
    assert facts["ib"]["devices"]["mlx5_ib1"]["ports"]["1"]["rate"] == "400 Gb/sec (4X NDR)"
    assert facts["host"]["memory"]["MemTotal"] > 0


def test_a_child_that_cannot_be_killed_does_not_hold_the_pipe(tmp_path: Path) -> None:
    """A stuck child may outlive the probe (uninterruptible sleep). It must not keep ssh waiting for its pipe."""
    root = small().write(tmp_path / "tree")
    text = program().replace(
        'base = SYS_IB + "/" + name', 'time.sleep(40) if name == "mlx5_ib0" else None; base = SYS_IB + "/" + name', 1
    )
    text = text.replace("os.killpg(job.pid, signal.SIGKILL)", "pass")
    started = time.monotonic()
    argv = [sys.executable, "-I", "-", "--root", str(root), "--limit", "1", "--only", "ib"]
    subprocess.run(argv, input=text, capture_output=True, text=True, timeout=60, check=True)
    assert time.monotonic() - started < 20


def test_a_reader_with_a_bug_is_named(tmp_path: Path) -> None:
    root = small().write(tmp_path / "tree")
    text = program().replace('base = SYS_IB + "/" + name', "base = 1 / 0", 1)
    done = subprocess.run(
        [sys.executable, "-I", "-", "--root", str(root)],
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    facts = json.loads(done.stdout)["facts"]
    assert facts["ib"]["devices"]["mlx5_ib0"] == {
        "unread": "the reader failed: ZeroDivisionError: division by zero",
        "source": "reader ib.devices mlx5_ib0",
    }
    assert not is_unread(facts["host"])


def test_the_joined_program_reads_what_the_readers_read(tmp_path: Path) -> None:
    root = trees.nd_h100_v5().write(tmp_path / "tree")
    apart, joined = trees.read_root(root).facts, trees.run_program(root, "--imds")["facts"]
    for facts in (apart, joined):
        facts["nvidia"]["smi"].pop("took_s")
        facts.pop("imds", None)
    assert joined == apart

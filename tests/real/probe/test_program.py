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
from fairlead.probe.readers import crew
from fairlead.probe.readers.processes import read_processes
from fairlead.probe.readers.tree import Tree
from fairlead.records.facts import is_unread
from support import trees
from support.judging import small
from support.processes import is_gone, until

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
    done = subprocess.run(
        argv, input=program().source.decode(), capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    record = parse(done.stdout, "here")
    assert record.facts["host"]["identity"]["hostname"] == os.uname().nodename
    assert record.facts["host"]["os"]["kernel"] == os.uname().release
    assert abs(record.taken_at_ns / 1e9 - time.time()) < 60
    # the kernel's log takes a right, and the network's services a journal
    assert {name for name, facts in record.facts.items() if is_unread(facts)} <= {"kernel_log", "netlog"}
    assert len(done.stdout.splitlines()) == 1


def test_the_packages_of_the_nodes_python_are_found() -> None:
    """The program runs without site-packages in its path; what is installed there is a fact all the same."""
    import importlib.metadata

    found = parse(local(), "here").facts["versions"]["packages"]
    assert found["numpy"] == importlib.metadata.version("numpy")


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
    done = subprocess.run(
        argv, input=program().source.decode(), capture_output=True, text=True, timeout=120, check=False, env=env
    )
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
    assert is_gone(int((tmp_path / "pid").read_text()))


def test_a_command_that_floods(tmp_path: Path) -> None:
    done, took = _with_shim(tmp_path, "exec yes", "--only", "nvidia.smi")
    assert json.loads(done.stdout)["facts"]["nvidia"]["smi"]["unread"] == "prints more than 8388608 bytes"
    assert took < 40


def test_a_command_that_fails(tmp_path: Path) -> None:
    done, _ = _with_shim(
        tmp_path, 'echo "Failed to initialize NVML: Driver/library version mismatch"; exit 18', "--only", "nvidia.smi"
    )
    why = json.loads(done.stdout)["facts"]["nvidia"]["smi"]["unread"]
    assert why == "says: Failed to initialize NVML: Driver/library version mismatch"


def test_a_command_is_killed_with_its_reader(tmp_path: Path) -> None:
    done, _ = _with_shim(tmp_path, "kill -9 $PPID; sleep 1", "--only", "nvidia.smi")
    assert json.loads(done.stdout)["facts"]["nvidia"]["smi"]["unread"] == "its process ended without an answer"


def test_what_the_probe_started_ends_when_the_probe_is_killed(tmp_path: Path) -> None:
    """SIGKILL to the probe: its children carry alarms of their own."""
    shim = tmp_path / "bin" / "nvidia-smi"
    shim.parent.mkdir()
    shim.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 986\n")
    shim.chmod(0o755)
    text = program().source.decode().replace("SMI_LIMIT_S = 12.0", "SMI_LIMIT_S = 1.0")
    env = {**os.environ, "PATH": f"{shim.parent}:{os.environ['PATH']}"}
    probe = subprocess.Popen(
        [sys.executable, "-I", "-", "--only", "nvidia.smi"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=env
    )
    assert probe.stdin is not None
    probe.stdin.write(text.encode())
    probe.stdin.close()
    pid_file = tmp_path / "pid"
    assert until(lambda: pid_file.exists() and pid_file.read_text().strip())
    probe.send_signal(signal.SIGKILL)
    probe.wait()
    assert is_gone(int(pid_file.read_text())), "nvidia-smi outlived the probe"


# ---- a busy machine -------------------------------------------------------------------------------------------------

ASLEEP = """
import ctypes, os, sys, time
CLONE_VFORK, SIGCHLD = 0x4000, 17
clone = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
# whoever starts a program so sleeps uninterruptibly until the new one runs: clone(2); this one takes its time
if ctypes.CDLL(None).syscall(clone, CLONE_VFORK | SIGCHLD, 0, 0, 0, 0) == 0:
    time.sleep(float(sys.argv[1]))
    os._exit(0)
os.wait()
"""


@pytest.mark.parametrize(("seconds", "is_stuck"), [(0.5, False), (60, True)])
def test_a_moment_in_the_kernel_is_not_stuck(seconds: float, is_stuck: bool) -> None:
    with subprocess.Popen([sys.executable, "-c", ASLEEP, str(seconds)], start_new_session=True) as program:
        assert until(lambda: Path(f"/proc/{program.pid}/stat").read_text().rpartition(")")[2].split()[0] == "D")
        blocked = [pid for pid, _ in read_processes(Tree())["blocked"]]
        os.killpg(program.pid, signal.SIGKILL)
    assert (program.pid in blocked) == is_stuck


@pytest.mark.parametrize(("crowd", "answer"), [(1.0, {}), (8.0, {"n": 1})])
def test_a_reader_that_waits_for_a_processor_is_given_time(monkeypatch, crowd: float, answer: dict[str, int]) -> None:
    """With eight programs to a processor all takes eight times as long."""
    monkeypatch.setattr(crew, "crowd", lambda: crowd)

    def read(tree: Tree) -> dict[str, int]:
        time.sleep(1.5)
        return {"n": 1}

    job = crew.Job(crew.Reader("slow", read, 1.0, at=("slow",)), ("slow",), ())
    [(_, found, _)] = crew.gather(Tree(), [job], 60.0)
    assert found.get("facts", {}) == answer
    assert ("hole" in found) == (not answer)


def test_how_crowded_this_machine_is() -> None:
    assert 1.0 <= crew.crowd() < 10_000


# ---- readers that hang ---------------------------------------------------------------------------------------------


def test_a_reader_that_hangs_costs_only_its_device(tmp_path: Path) -> None:
    """One HCA whose attribute never returns: the other HCAs and the rest of the node are read."""
    root = small().write(tmp_path / "tree")
    hang = 'if name == "mlx5_ib0":\n        time.sleep(980)\n    base = SYS_IB + "/" + name'
    text = program().source.decode().replace('base = SYS_IB + "/" + name', hang, 1)
    assert text != program().source.decode()
    started = time.monotonic()
    argv = [sys.executable, "-I", "-", "--root", str(root), "--limit", "6"]
    done = subprocess.run(argv, input=text, capture_output=True, text=True, timeout=120, check=True)
    facts = json.loads(done.stdout)["facts"]
    assert time.monotonic() - started < 40
    assert facts["ib"]["devices"]["mlx5_ib0"]["unread"].startswith("no answer within")
    assert facts["ib"]["devices"]["mlx5_ib1"]["ports"]["1"]["rate"] == "400 Gb/sec (4X NDR)"
    assert facts["host"]["memory"]["MemTotal"] > 0


def test_a_child_that_cannot_be_killed_does_not_hold_the_pipe(tmp_path: Path) -> None:
    """A stuck child may outlive the probe (uninterruptible sleep). It must not keep ssh waiting for its pipe."""
    root = small().write(tmp_path / "tree")
    text = (
        program()
        .source.decode()
        .replace(
            'base = SYS_IB + "/" + name',
            'time.sleep(40) if name == "mlx5_ib0" else None; base = SYS_IB + "/" + name',
            1,
        )
    )
    text = text.replace("os.killpg(job.pid, signal.SIGKILL)", "pass")
    started = time.monotonic()
    argv = [sys.executable, "-I", "-", "--root", str(root), "--limit", "1", "--only", "ib"]
    subprocess.run(argv, input=text, capture_output=True, text=True, timeout=120, check=True)
    assert time.monotonic() - started < 20


def test_a_reader_with_a_bug_is_named(tmp_path: Path) -> None:
    root = small().write(tmp_path / "tree")
    text = program().source.decode().replace('base = SYS_IB + "/" + name', "base = 1 / 0", 1)
    done = subprocess.run(
        [sys.executable, "-I", "-", "--root", str(root)],
        input=text,
        capture_output=True,
        text=True,
        timeout=120,
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
        facts.pop("imds", None)
    assert joined == apart


@pytest.mark.requires("root")
def test_what_an_ordinary_user_may_not_read_is_named(tmp_path: Path) -> None:
    """Run as nobody: the kernel's messages take a right, and a folder of PATH nobody may enter hides no command."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    env = {**os.environ, "PATH": f"{closed}:/usr/bin:/bin"}
    argv = ["/usr/bin/python3", "-I", "-", "--limit", "20"]
    done = subprocess.run(
        argv, input=program().source.decode(), capture_output=True, text=True,
        timeout=60, check=True, env=env, user=65534, group=65534,
        extra_groups=[], cwd="/",
    )  # fmt: skip
    facts = json.loads(done.stdout)["facts"]
    if Path("/proc/sys/kernel/dmesg_restrict").read_text().strip() == "1":
        assert facts["kernel_log"]["unread"] in ("operation not permitted", "permission denied")
        assert "group adm" in facts["kernel_log"]["needs"]
    else:
        assert facts["kernel_log"]["lines"] is not None
    assert facts["versions"]["ofed"] == ""


SERVICE = """
import http.server, json, sys
ANSWERS = {"/metadata/instance/compute": {"vmSize": "Standard_X", "name": "n0", "publicKeys": "no"},
           "/metadata/scheduledevents": {"DocumentIncarnation": 1,
                                         "Events": [{"EventId": "1", "EventType": "Freeze", "Secret": 1}]}}
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        ok = self.headers.get("Metadata") == "true"
        data = json.dumps(ANSWERS[self.path.split("?")[0]]).encode()
        self.send_response(200 if ok else 400); self.end_headers(); self.wfile.write(data if ok else b"")
    def log_message(self, *_): pass
http.server.HTTPServer(("169.254.169.254", 80), Handler).serve_forever()
"""


@pytest.mark.requires("root", "netns")
def test_the_metadata_service_is_asked_without_a_proxy(tmp_path: Path) -> None:
    """A service of its own at the well-known address, in a network that has nothing else."""
    (tmp_path / "service.py").write_text(SERVICE)
    (tmp_path / "probe.py").write_bytes(program().source)
    script = f"""
    ip link set lo up; ip addr add 169.254.169.254/32 dev lo
    {sys.executable} {tmp_path}/service.py & service=$!
    trap 'kill $service' EXIT
    for _ in $(seq 200); do (exec 3<>/dev/tcp/169.254.169.254/80) 2>/dev/null && break; sleep 0.05; done
    http_proxy=http://127.0.0.1:1 {sys.executable} -I - --only imds --imds < {tmp_path}/probe.py
    """
    done = subprocess.run(
        ["unshare", "-n", "bash", "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert json.loads(done.stdout)["facts"]["imds"] == {
        "compute": {"vmSize": "Standard_X", "name": "n0"},
        "events": [{"EventId": "1", "EventType": "Freeze"}],
    }


@pytest.mark.requires("root", "netns")
def test_a_metadata_service_out_of_reach_costs_seconds_and_is_named(tmp_path: Path) -> None:
    started = time.monotonic()
    argv = ["unshare", "-n", sys.executable, "-I", "-", "--only", "imds", "--imds"]
    done = subprocess.run(argv, input=program().source.decode(), capture_output=True, text=True, timeout=60, check=True)
    found = json.loads(done.stdout)["facts"]["imds"]["compute"]
    assert found["unread"].startswith("no answer: ")
    assert "firewall" in found["needs"]
    assert time.monotonic() - started < 30


def test_elsewhere_the_metadata_service_is_not_asked() -> None:
    tag = Path("/sys/class/dmi/id/chassis_asset_tag")
    done = subprocess.run(
        [sys.executable, "-I", "-", "--only", "imds"],
        input=program().source.decode(), capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    found = json.loads(done.stdout)["facts"]["imds"]
    is_azure = tag.exists() and tag.read_text().strip() == "7783-7084-3265-9085-8269-3286-77"
    assert ("not_asked" in found) is not is_azure

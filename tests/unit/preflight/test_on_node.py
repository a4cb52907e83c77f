"""Programs for nodes: joined into one file that any Python 3.9 reads; what they reckon by themselves."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from fairlead.preflight.onnode import place
from fairlead.preflight.onnode.wire import rate_of
from fairlead.preflight.pipe import AGENT, RANK, boot, program

MB = 1_000_000


@pytest.mark.parametrize("parts", [AGENT, RANK])
def test_a_program_is_one_file_of_old_python_that_needs_nothing_of_ours(parts):
    tree = ast.parse(program(parts), feature_version=(3, 9))
    names = [
        alias.name if isinstance(n, ast.Import) else n.module
        for n in ast.walk(tree)
        if isinstance(n, (ast.Import, ast.ImportFrom))
        for alias in n.names
    ]
    assert not [name for name in names if name.startswith("fairlead")]
    assert {n.split(".")[0] for n in names} - sys.stdlib_module_names <= {"torch"}


def test_it_is_read_from_standard_input_and_the_rest_is_left_to_it():
    source = b"import sys\nprint(sys.stdin.readline().strip() + '!')\n"
    argv = [sys.executable, *boot(source, "fairlead-test")]
    done = subprocess.run(argv, input=source + b"more\n", capture_output=True, check=True, timeout=30)
    assert done.stdout == b"more!\n"


def test_a_program_that_came_in_part_does_not_run():
    source = b"print('never')\n"
    argv = [sys.executable, *boot(source, "fairlead-test")]
    done = subprocess.run(argv, input=source[:-4], capture_output=True, timeout=30)
    assert done.returncode == 1
    assert b"did not arrive whole" in done.stderr
    assert done.stdout == b""


# ---- rates -----------------------------------------------------------------------------------------------------------


def arrivals(rate_bps, num_bytes, *, size=9000, pauses=()):
    at, out = 0, []
    for i in range(num_bytes // size):
        at += int(size * 8e9 / rate_bps) + (5_000_000 if i in pauses else 0)
        out.append((at, size))
    return out


def test_a_steady_rate():
    rate_bps, total = rate_of(arrivals(250e6, MB), 96 << 10, 112 << 10)
    assert rate_bps == pytest.approx(250e6, rel=0.01)
    assert total == 999_000


def test_a_pause_of_a_busy_machine_spoils_only_where_it_falls():
    assert rate_of(arrivals(250e6, MB, pauses=(40, 60, 80)), 96 << 10, 112 << 10)[0] == pytest.approx(250e6, rel=0.02)


def test_what_a_shaper_lets_through_at_first_is_not_timed():
    burst = [(i, 9000) for i in range(10)]
    slow = [(10 + at, size) for at, size in arrivals(12e6, MB)]
    assert rate_of(burst + slow, 96 << 10, 112 << 10)[0] == pytest.approx(12e6, rel=0.02)


def test_too_little_for_a_stretch_is_timed_whole_and_nothing_is_no_rate():
    assert rate_of(arrivals(12e6, 150_000), 96 << 10, 112 << 10)[0] == pytest.approx(12e6, rel=0.05)
    assert rate_of([], 96 << 10, 112 << 10) == (0, 0)


# ---- who a rank is ---------------------------------------------------------------------------------------------------

GPUS = [{"index": i, "uuid": f"GPU-{i}aaaaaaa", "pci": f"000{i}:00:00.0"} for i in range(4)]


@pytest.mark.parametrize(
    ("visible", "local", "index"),
    [(None, 2, 2), ("3,1", 0, 3), ("3,1", 1, 1), ("2", 1, 2), ("GPU-1aaa", 0, 1), ("", 0, None), ("0,1", 2, None)],
)
def test_the_gpu_that_settings_and_local_rank_point_at(monkeypatch, visible, local, index):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert place.gpu_of_rank(GPUS, local).get("index") == index


def test_the_users_choice_of_interface_comes_first(monkeypatch):
    found = {"fab0": {"addresses": ["fd00::1"]}, "eth0": {"addresses": ["10.0.0.1"]}}
    monkeypatch.setenv("FAIRLEAD_RANKS", '{"addresses": {"n0": "fd00::1"}}')
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        monkeypatch.delenv(name, raising=False)
    assert place.choose_interface(found, "n0") == ("fab0", "the fabric address")
    assert place.choose_interface(found, "n7") == ("", "")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth0")
    assert place.choose_interface(found, "n0") == ("eth0", "NCCL_SOCKET_IFNAME")


@pytest.mark.parametrize(("numbers", "text"), [({0, 1, 2, 8}, "0-2,8"), ({5}, "5"), (set(), "")])
def test_cpus_are_folded(numbers, text):
    assert place.folded(numbers) == text

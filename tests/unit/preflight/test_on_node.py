"""Programs for nodes: joined into one file that any Python 3.9 reads; what they reckon by themselves."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from fairlead.preflight.limits import DEFAULT
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


KIB = 1 << 10
BURST, WINDOW = DEFAULT.skip_bytes, DEFAULT.window_bytes


def shaped(rate_bps, num_bytes, *, size=8888, pauses=(), bucket=32 * KIB, queue=24):
    """Arrivals behind a token bucket: the sender offers `queue` packets at once, and is away before those in `pauses`.

    `pauses`: number of the packet before which it is away -> how long, ns.
    """
    per_ns = rate_bps / 8e9
    at, tokens, since, offered = 0.0, float(bucket), 0.0, 0.0
    out = []
    for i in range(num_bytes // size):
        if i in pauses:
            offered = at + pauses[i]
        at = max(at, offered) + 15_000  # a packet's time on the wire
        tokens = min(bucket, tokens + (at - since) * per_ns)
        if tokens < size:
            at += (size - tokens) / per_ns
            tokens = size
        tokens, since = tokens - size, at
        out.append((round(at), size))
    return out


def measured(arrivals):
    return rate_of(arrivals, BURST, WINDOW)[0]


@pytest.mark.parametrize("rate_bps", [5e6, 100e6, 250e6, 1e9])
def test_the_bucket_of_a_shaper_is_not_counted_in(rate_bps):
    assert measured(shaped(rate_bps, MB)) == pytest.approx(rate_bps, rel=0.03)


@pytest.mark.parametrize("bucket", [0, 9_000, 32 * KIB, 60 * KIB])
def test_whatever_the_size_of_the_bucket(bucket):
    assert measured(shaped(250e6, MB, bucket=max(bucket, 8888))) == pytest.approx(250e6, rel=0.03)


@pytest.mark.parametrize("away_ns", [300_000, 1_000_000, 2_000_000, 20_000_000])
def test_what_is_saved_up_while_the_sender_is_away_is_not_counted_in_either(away_ns):
    found = measured(shaped(250e6, MB, pauses=dict.fromkeys((24, 48, 72, 96), away_ns)))
    assert 0.9 * 250e6 < found < 1.03 * 250e6


def test_a_sender_that_is_away_at_every_turn_still_shows_most_of_the_rate():
    """Bursts of sixteen packets, each less than a whole stretch."""
    found = measured(shaped(250e6, MB, pauses=dict.fromkeys(range(16, 112, 16), 1_000_000)))
    assert 0.8 * 250e6 < found < 1.03 * 250e6


def test_where_packets_are_stamped_in_batches_the_rate_is_of_the_right_size():
    """A fast NIC hands packets over every 20 us, many at a time: the rate is not that of the hand-over."""
    steady = [(i * 2_880, 9_000) for i in range(115)]  # 25 Gb/s
    batched = [(-(-at // 20_000) * 20_000 + i % 8 * 100, size) for i, (at, size) in enumerate(steady)]
    assert 0.6 * 25e9 < measured(batched) < 1.7 * 25e9


def test_too_little_for_a_stretch_is_timed_whole_and_nothing_is_no_rate():
    assert measured(shaped(12e6, 140_000)) == pytest.approx(12e6, rel=0.05)
    assert rate_of([], BURST, WINDOW) == (0, 0)
    assert rate_of([(5, 9000)], BURST, WINDOW) == (0, 9000)
    assert rate_of([(5, 9000)] * 100, BURST, WINDOW) == (0, 900_000)


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

"""Audit records: what tampering, a kill, a full disk and a restart do to the chain."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.watch.onnode.chain import FIRST_HASH, Chain, check, files_in, hash_of
from support.depth import cases


def written(folder, num=20, **more):
    chain = Chain(str(folder), **more)
    for i in range(num):
        chain.append([{"kind": "bytes", "t": i, "ports": {"mlx5_0/1": [i, i]}}])
    return chain


def test_a_chain_that_nobody_touched_holds_and_goes_on_after_a_restart(tmp_path):
    written(tmp_path).close()
    chain = Chain(str(tmp_path))
    assert chain.torn == 0
    chain.append([{"kind": "start", "t": 1}])
    assert check(str(tmp_path)) == {"num": 21, "first": 0, "last": 20, "head": chain.head[1]}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    written(folder, num=12).close()
    return (folder / "audit.jsonl").read_bytes()


@given(st.data())
@settings(max_examples=cases(150))
def test_any_change_of_any_byte_shows_and_names_a_line_no_later_than_the_next(whole, data):
    lines = whole.split(b"\n")[:-1]
    at = data.draw(st.integers(0, len(whole) - 1))
    new = data.draw(st.integers(0, 255).filter(lambda b: b != whole[at]))
    changed = whole[:at] + bytes([new]) + whole[at + 1 :]
    line = whole[:at].count(b"\n") + 1
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "audit.jsonl").write_bytes(changed)
        found = check(folder, {len(lines) - 1: hash_of(lines[-1])})
    if "torn" in found:
        assert at == len(whole) - 1, "only the very end can look torn"
        return
    assert found["broken"]["line"] in (line, line + 1, 0)


@given(st.data())
@settings(max_examples=cases(60))
def test_lines_taken_out_put_in_or_exchanged_show(whole, data):
    lines = whole.split(b"\n")[:-1]
    how = data.draw(st.sampled_from(["out", "twice", "swap"]))
    i = data.draw(st.integers(1, len(lines) - 2))
    if how == "out":
        changed = lines[:i] + lines[i + 1 :]
    elif how == "twice":
        changed = [*lines[:i], lines[i], *lines[i:]]
    else:
        changed = [*lines[:i], lines[i + 1], lines[i], *lines[i + 2 :]]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "audit.jsonl").write_bytes(b"\n".join(changed) + b"\n")
        found = check(folder)
    assert found["broken"]["line"] in (i + 1, i + 2)


def test_an_end_that_was_cut_off_shows_by_a_head_noted_elsewhere_alone(tmp_path):
    chain = written(tmp_path)
    number, head = chain.head
    chain.close()
    path = tmp_path / "audit.jsonl"
    path.write_bytes(b"\n".join(path.read_bytes().split(b"\n")[:10]) + b"\n")
    assert "broken" not in check(str(tmp_path))
    broken = check(str(tmp_path), {number: head})["broken"]
    assert (broken["n"], "ends before it" in broken["why"]) == (19, True)


def test_all_written_anew_shows_by_a_head_noted_elsewhere(tmp_path):
    chain = written(tmp_path)
    number, head = chain.head
    (tmp_path / "audit.jsonl").unlink()
    other = Chain(str(tmp_path))
    other.append([{"kind": "bytes", "t": i} for i in range(30)])
    assert "not the one that was noted" in check(str(tmp_path), {number: head})["broken"]["why"]


def test_files_are_rotated_few_are_kept_and_the_chain_holds_over_them(tmp_path):
    chain = written(tmp_path, num=400, rotate_bytes=4000, keep_files=3)
    found = check(str(tmp_path))
    assert (found["last"], found["head"]) == chain.head
    assert "broken" not in found
    assert 0 < found["first"] < 399
    assert len(files_in(str(tmp_path))) <= 4
    assert sum(f.stat().st_size for f in tmp_path.iterdir()) < 4 * 4300
    chain.close()
    again = Chain(str(tmp_path), rotate_bytes=4000, keep_files=3)
    assert again.head == chain.head
    # stopped between the rename and the first record of the new file
    again.close()
    os.truncate(tmp_path / "audit.jsonl", 0)
    oldest = Chain(str(tmp_path))
    oldest.append([{"kind": "start", "t": 0}])
    assert "broken" not in check(str(tmp_path))


@given(st.integers(1, 2000))
@settings(max_examples=cases(60))
def test_a_line_torn_at_any_byte_is_mended(whole, cut):
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "audit.jsonl").write_bytes(whole[: max(0, len(whole) - cut)])
        chain = Chain(folder)
        chain.append([{"kind": "start", "t": 1, "torn": chain.torn}])
        found = check(folder)
        assert "broken" not in found
        assert "torn" not in found
        assert (found["last"], found["head"]) == chain.head


WRITER = """
import os, sys
from fairlead.watch.onnode.chain import Chain
chain, i = Chain(sys.argv[1]), 0
while True:
    chain.append([{"kind": "bytes", "t": i, "filling": "x" * 20000}] * 3)
    i += 1
    os.write(1, b".")
"""


def test_killed_outright_in_the_middle_of_writing_file_and_chain_are_whole_at_the_next_start(tmp_path):
    torn = last = 0
    for round_ in range(12):
        process = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE)
        assert process.stdout.read(3)
        time.sleep(0.001 * round_)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        chain = Chain(str(tmp_path))
        torn += chain.torn > 0
        chain.append([{"kind": "start", "t": 1}])
        chain.close()
        found = check(str(tmp_path))
        assert "broken" not in found
        assert found["last"] > last
        last = found["last"]


FULL = """
import json, resource, signal, sys
from fairlead.watch.onnode.chain import Chain, check
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
chain = Chain(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
done = refused = 0
for i in range(100):
    try:
        chain.append([{"kind": "bytes", "t": i, "filling": "x" * 100}])
        done += 1
    except OSError:
        refused += 1
print(json.dumps([done, refused, check(sys.argv[1])]))
"""


def test_what_a_full_disk_takes_half_of_is_taken_back(tmp_path):
    done = subprocess.run([sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, check=True)
    written_, refused, found = json.loads(done.stdout)
    assert refused > 0
    assert (found["num"], "broken" in found, "torn" in found) == (written_, False, False)
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 5000


def test_a_record_that_is_too_long_is_left_out_by_name_and_the_chain_holds(tmp_path):
    chain = Chain(str(tmp_path))
    chain.append([{"kind": "qps", "t": 1, "new": ["x" * 70_000]}])
    assert "left_out" in json.loads((tmp_path / "audit.jsonl").read_text())
    assert check(str(tmp_path))["last"] == 0


@pytest.mark.parametrize(
    "junk", [b"\0" * 100 + b"\n", b"[]\n", b'{"n":"0"}\n', b"{" * 50_000 + b"\n", b"[" * 60_000 + b"\n", b"\xff\xfe\n"]
)
def test_junk_in_the_file_is_named_and_never_a_traceback(tmp_path, junk):
    (tmp_path / "audit.jsonl").write_bytes(junk)
    assert check(str(tmp_path))["broken"]["line"] == 1
    with contextlib.closing(Chain(str(tmp_path))) as chain:
        chain.append([{"kind": "start", "t": 1}])
    assert check(str(tmp_path))["broken"]["line"] == 1


def test_a_first_record_with_another_before_it_shows(tmp_path):
    line = json.dumps({"n": 0, "prev": hash_of(b"x"), "kind": "start"})
    (tmp_path / "audit.jsonl").write_text(line + "\n")
    assert FIRST_HASH not in line
    assert "has one before it" in check(str(tmp_path))["broken"]["why"]


def test_records_are_for_their_owner_alone(tmp_path):
    written(tmp_path, num=1)
    assert (tmp_path / "audit.jsonl").stat().st_mode & 0o777 == 0o600

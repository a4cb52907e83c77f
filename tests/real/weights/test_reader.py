"""A command that reads a model while it still comes: it gets every byte, keeps nobody waiting, and its end is told."""

from __future__ import annotations

import json
import os
import random
import shlex
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from support.injector import FAIRLEAD
from support.origins import RANGE, Request, refused, serving

pytestmark = pytest.mark.real
MIB = 1 << 20
SIZES = {"z/config.json": 700, "empty": 0, "a.safetensors": 5 * MIB + 77, "b.bin": 300 << 10, "größe.txt": 3}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    made, rng = tmp_path / "model", random.Random(7)
    for name, size in SIZES.items():
        path = made / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(rng.randbytes(size))
    return made


def pulled(tmp_path: Path, source: str, command: str, *words: str) -> tuple[int, dict]:
    argv = [*FAIRLEAD, "weights", "pull", source, str(tmp_path / "dest"), "--stream-to", command, *words,
            "--runs", str(tmp_path / "runs"), "--json"]  # fmt: skip
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_a_reader_gets_every_file_those_that_were_asked_for_first(model: Path, tmp_path: Path) -> None:
    for _ in range(2):  # the second time everything is there already
        status, said = pulled(tmp_path, str(model), f"cat > {tmp_path}/got.tar", "--ready-when", "*.json")
        assert status == 0, said
        with tarfile.open(tmp_path / "got.tar") as archive:
            names = archive.getnames()
            assert {name: archive.extractfile(name).read() for name in names} == {  # type: ignore[union-attr]
                name: (model / name).read_bytes() for name in SIZES
            }
        assert names[0] == "z/config.json"


def test_gnu_tar_reads_it_to_its_end(model: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    status, said = pulled(tmp_path, str(model), 'tar xf - -C "$FAIRLEAD_DEST/../out"')
    assert status == 0, said
    assert all((tmp_path / "out" / name).read_bytes() == (model / name).read_bytes() for name in SIZES)


def test_it_reads_before_the_rest_has_come(model: Path, tmp_path: Path) -> None:
    """The server keeps the end of the file until the reader has its beginning."""
    size, begun = (model / "a.safetensors").stat().st_size, tmp_path / "begun"

    def keeps(request: Request) -> bool:
        found = RANGE.match(request.headers.get("Range", ""))
        deadline = time.monotonic() + 30
        while found and int(found[1]) >= size // 2 and not begun.exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        return False

    program = f"import sys; sys.stdin.buffer.read({MIB}); open({str(begun)!r}, 'w').close(); sys.stdin.buffer.read()"
    with serving(model) as origin:
        origin.fault = keeps
        command = shlex.join([sys.executable, "-c", program])
        status, said = pulled(tmp_path, f"{origin.url}/a.safetensors", command)
    assert status == 0, said
    assert begun.exists()


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("head -c 5000 > /dev/null; echo no memory >&2; exit 7", "before the end with exit 7: no memory"),
        ("cat > /dev/null; exit 3", "it ended with exit 3"),
        ("kill -9 $$", "before the end with signal 9"),
        ("/no/such/loader", "exit 127"),
    ],
)
def test_how_a_reader_failed_is_told_and_the_files_are_there(
    model: Path, tmp_path: Path, command: str, told: str
) -> None:
    status, said = pulled(tmp_path, str(model), command)
    assert status == 3
    (finding,) = (f for f in said["findings"] if f["code"] == "weights/reader")
    assert told in finding["message"]
    assert all((tmp_path / "dest" / name).read_bytes() == (model / name).read_bytes() for name in SIZES)


def test_a_run_that_fails_ends_its_reader(model: Path, tmp_path: Path) -> None:
    """What it got is not all, and it is not left waiting for more."""
    with serving(model) as origin:
        origin.fault = refused(403)
        command = f"echo $$ > {tmp_path}/pid; cat > /dev/null; touch {tmp_path}/ended"
        status, said = pulled(tmp_path, f"{origin.url}/a.safetensors", command)
    assert status != 0, said
    assert not (tmp_path / "ended").exists()
    if (tmp_path / "pid").exists():
        pid = int((tmp_path / "pid").read_text())
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_nothing_is_read_before_it_is_compared_with_the_store(model: Path, tmp_path: Path) -> None:
    status, said = pulled(tmp_path, str(model), f"cat > {tmp_path}/got.tar", "--verify")
    assert status == 0, said
    with tarfile.open(tmp_path / "got.tar") as archive:
        assert len(archive.getnames()) == len(SIZES)

"""Writing where there really is no room: a small tmpfs that is full, one that is read-only."""

from __future__ import annotations

import contextlib
import subprocess

import pytest

from fairlead.base.files import write_atomic
from fairlead.errors import DiskFull, NotPermitted, RunError
from fairlead.records.runs import RunFolder, list_runs

pytestmark = [pytest.mark.real, pytest.mark.requires("root")]


@pytest.fixture
def small(tmp_path):
    """A file system of 64 KiB."""
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=700,size=64k,nr_inodes=64", "none", str(place)], check=True)
    yield place
    subprocess.run(["umount", str(place)], check=True)


def fill(place):
    with (place / "ballast").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"x" * 4096):
            pass


def test_a_file_that_does_not_fit_leaves_the_old_one(small):
    write_atomic(small / "file", "old")
    with pytest.raises(DiskFull):
        write_atomic(small / "file", "x" * 200_000)
    assert (small / "file").read_text() == "old"
    assert [p.name for p in small.iterdir()] == ["file"]


def test_a_run_is_not_begun_where_there_is_no_room_and_no_half_folder_stays(small):
    fill(small)
    with pytest.raises(DiskFull):
        RunFolder.create(small / "runs", "probe", ["fairlead", "probe"])
    assert list_runs(small / "runs") == []


def test_lines_stay_whole_when_the_disk_fills_up(small):
    folder = RunFolder.create(small, "probe", ["fairlead", "probe"])

    def log_forever():
        for i in range(10_000):
            folder.append("log.jsonl", {"number": i, "text": "x" * 100})

    with pytest.raises(DiskFull):
        log_forever()
    lines = (folder.path / "log.jsonl").read_bytes()
    assert lines.endswith(b"}\n")
    assert len(lines) > 1000


def test_without_inodes_it_is_the_same_fault(small):
    def write_many():
        for i in range(100):
            write_atomic(small / f"file{i}", "x")

    with pytest.raises(DiskFull):
        write_many()


def test_a_read_only_place_is_named(small):
    subprocess.run(["mount", "-o", "remount,ro", str(small)], check=True)
    with pytest.raises(NotPermitted, match="Read-only file system"):
        write_atomic(small / "file", "x")
    with pytest.raises((NotPermitted, RunError), match="Read-only file system"):
        RunFolder.create(small / "runs", "probe", [])

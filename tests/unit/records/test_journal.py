"""A file of records that outlives runs: whole lines, two writers at once, killed writers, full disks, a bound."""

from __future__ import annotations

import fcntl
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from fairlead.errors import NotPermitted
from fairlead.records.journal import Journal, state_place


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    ballast: tuple[str, ...] = ()


def journal(place, **bounds):
    return Journal(place / "j.jsonl", Entry, **bounds)


def names(of):
    return [e.name for e in of.entries()]


@pytest.mark.parametrize(
    ("env", "uid", "place"),
    [
        ({"XDG_STATE_HOME": "/x", "HOME": "/home/ann"}, 7, "/x/fairlead"),
        ({"XDG_STATE_HOME": "relative", "HOME": "/home/ann"}, 7, "/home/ann/.local/state/fairlead"),
        ({"HOME": "/root"}, 0, "/root/.local/state/fairlead"),
        ({}, 0, "/var/lib/fairlead"),
        ({"HOME": "/"}, 0, "/var/lib/fairlead"),
        ({"HOME": ""}, 7, "/var/tmp/fairlead-7"),
    ],
)
def test_state_lives_where_it_can_without_a_home_too(env, uid, place):
    assert state_place(env, uid) == Path(place)


@pytest.mark.parametrize("rubbish", [b'{"name":"torn', b"\x00\xff\xfe", b"[]\n\n{}\n", b'{"name":1}\n'])
def test_what_is_no_record_is_skipped_and_the_next_stands_whole(tmp_path, rubbish):
    of = journal(tmp_path / "new")
    assert of.entries() == []
    assert of.add(Entry("1"))
    with of.path.open("ab") as file:
        file.write(rubbish)
    assert of.add(Entry("2", ("x",)))
    assert of.entries() == [Entry("1"), Entry("2", ("x",))]


def test_it_is_bounded_in_lines_and_keeps_the_newest(tmp_path):
    of = journal(tmp_path, keep_lines=10)
    for number in range(1, 24):
        of.add(Entry(str(number)))
        assert len(of.entries()) <= 10
    assert names(of) == [str(n) for n in range(24 - len(names(of)), 24)]
    assert len(names(of)) >= 5


def test_it_is_bounded_in_bytes_and_one_long_record_is_still_kept(tmp_path):
    of = journal(tmp_path, keep_bytes=2000)
    for number in range(1, 25):
        of.add(Entry(str(number), ("x" * 300,)))
        assert of.path.stat().st_size <= 2000
    of.add(Entry("long", ("x" * 5000,)))
    assert names(of) == ["long"]


_WRITER = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_journal import Entry, Journal
of = Journal(Path(sys.argv[1]) / "j.jsonl", Entry, keep_lines=int(sys.argv[4]))
print("ready", flush=True)
for number in range(int(sys.argv[3])):
    assert of.add(Entry(f"{{sys.argv[2]}}-{{number}}", ("ib/port-rate",) * 600))
"""


def writer(place, name, count, keep=1000):
    argv = [sys.executable, "-c", _WRITER, str(place), name, str(count), str(keep)]
    child = subprocess.Popen(argv, stdout=subprocess.PIPE)
    child.stdout.readline()
    return child


def two_writers(place, keep=1000):
    children = [writer(place, name, 30, keep) for name in ("a", "b")]
    assert [child.wait(60) for child in children] == [0, 0]
    for child in children:
        child.stdout.close()
    return names(journal(place))


def test_two_writers_at_once_lose_nothing(tmp_path):
    found = two_writers(tmp_path)
    assert len(found) == 60
    for name in ("a", "b"):
        assert [n for n in found if n[0] == name] == [f"{name}-{i}" for i in range(30)]


def test_two_writers_that_prune_lose_only_the_oldest(tmp_path):
    found = two_writers(tmp_path, keep=20)
    assert 10 <= len(found) <= 20
    for name in ("a", "b"):
        mine = [int(n[2:]) for n in found if n[0] == name]
        assert mine == list(range(30 - len(mine), 30))
    assert {"a-29", "b-29"} & set(found)


def test_a_killed_writer_leaves_the_others_working(tmp_path):
    for delay_s in (0.0, 0.005, 0.02):
        child = writer(tmp_path, "a", 100_000, 100_000)
        time.sleep(delay_s)
        child.send_signal(signal.SIGKILL)
        child.wait(60)
        child.stdout.close()
    of = journal(tmp_path)
    assert of.add(Entry("mine"))
    *theirs, ours = of.entries()
    assert ours == Entry("mine")
    # a kill between two pages of a write tears that line: at most one for each writer, and no other is lost to it
    assert len(theirs) >= len(of.path.read_bytes().splitlines()) - 1 - 3
    assert all(e.name.startswith("a-") and len(e.ballast) == 600 for e in theirs)


def test_a_lock_that_is_held_too_long_is_given_up(tmp_path):
    of = journal(tmp_path)
    with (tmp_path / "j.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert not of.add(Entry("1"), limit_s=0.05)
    assert of.add(Entry("2"))
    assert names(of) == ["2"]


def test_a_disk_that_takes_half_a_line_is_left_with_none_of_it(tmp_path):
    of = journal(tmp_path)
    of.add(Entry("1"))
    before = of.path.read_bytes()
    script = f"""
import resource, sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent)!r})
from fairlead.errors import DiskFull
from test_journal import Entry, Journal
size = int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 4, size + 4))
try:
    Journal(Path(sys.argv[1]), Entry).add(Entry("a longer one"))
except DiskFull:
    print("full")
"""
    argv = [sys.executable, "-c", script, str(of.path), str(len(before))]
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == "full\n"
    assert of.path.read_bytes() == before


def test_a_place_that_cannot_be_is_said(tmp_path):
    (tmp_path / "sub").write_text("a file, not a directory")
    with pytest.raises(NotPermitted):
        journal(tmp_path / "sub").add(Entry("1"))


@pytest.mark.parametrize("what", ["folder", "file", "link"])
def test_what_a_neighbour_laid_out_is_neither_read_nor_written(tmp_path, what):
    place, precious = tmp_path / "fairlead-7", tmp_path / "precious"
    precious.write_text("")
    journal(place).add(Entry("mine"))
    if what == "folder":
        place.chmod(0o777)
    elif what == "file":
        (place / "j.jsonl").chmod(0o666)
    else:
        (place / "j.jsonl").unlink()
        (place / "j.jsonl").symlink_to(precious)
    if what == "link":
        with pytest.raises(NotPermitted):
            journal(place).add(Entry("more"))
    else:
        with pytest.raises(NotPermitted) as caught:
            journal(place).entries()
        assert caught.value.code == "disk/not-ours"
    if what == "folder":
        with pytest.raises(NotPermitted):
            journal(place).add(Entry("more"))
    assert precious.read_text() == ""


def test_it_is_for_its_owner_alone_also_where_an_earlier_version_let_all_read(tmp_path):
    journal(tmp_path / "state").add(Entry("one"))
    (tmp_path / "state" / "j.jsonl").chmod(0o644)
    journal(tmp_path / "state").add(Entry("two"))
    assert {p.stat().st_mode & 0o077 for p in (tmp_path / "state").iterdir()} == {0}

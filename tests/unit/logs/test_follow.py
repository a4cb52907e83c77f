"""Files that were renamed, copied or written before the collector looked: what of them is read, from real files."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import resource
import shutil
import subprocess
import sys
import time
import zlib
from pathlib import Path

import pytest

from fairlead.logs.batch import unpacked
from fairlead.logs.onnode.follow import Follower
from fairlead.logs.onnode.ship import batch
from fairlead.logs.onnode.sources import Sources
from fairlead.logs.onnode.streams import Journal


class Node:
    """A folder of logs and collectors of it, one after the other."""

    def __init__(self, place: Path) -> None:
        self.logs, self.state = place / "logs", place / "state"
        self.logs.mkdir()
        self.state.mkdir()
        self.looked_ns = 0
        self.begin()

    def begin(self) -> None:
        """A collector starts; what it knows lies on the disk."""
        self.sources = Sources(str(self.state), 1 << 24)
        self.files = Follower(self.sources, [str(self.logs / "*.log")])
        self.files.looked_ns = self.looked_ns
        self.look()

    def look(self) -> None:
        self.files.scan()
        self.files.poll()
        self.looked_ns = self.files.looked_ns
        time.sleep(0.02)  # the clock of file times ticks every 10 ms at most (Linux, CONFIG_HZ=100)

    def end(self) -> None:
        self.files.close()

    def said(self) -> list[str]:
        """Lines of the collector's own, as its owner gets them."""
        spool, number = self.sources.spool, self.sources.own.number
        return spool.read(number, 0, 1 << 24)[1].decode().splitlines() if number in spool.segments else []

    def lines(self) -> list[str]:
        spool = self.sources.spool
        found = [spool.read(number, 0, 1 << 24)[1].decode() for number in spool.segments]
        return sorted("".join(found).split())


def test_a_log_that_came_and_was_rotated_while_no_collector_ran_is_read(tmp_path: Path):
    node = Node(tmp_path)
    log = node.logs / "a.log"
    log.write_text("one\n")
    node.look()
    node.end()
    with log.open("a") as file:
        file.write("two\n")
    log.rename(node.logs / "a.log.1")
    log.write_text("three\n")
    log.rename(node.logs / "a.log-20261120")
    log.write_text("four\n")
    node.begin()
    node.look()
    assert node.lines() == ["four", "one", "three", "two"]


def test_a_log_that_came_and_was_rotated_between_two_looks_is_read_and_goes_on(tmp_path: Path):
    node = Node(tmp_path)
    (node.logs / "a.log").write_text("one\n")
    old = node.logs / "a.log.1"
    (node.logs / "a.log").rename(old)
    node.look()
    with old.open("a") as file:
        file.write("late\n")
    node.look()
    node.look()
    assert node.lines() == ["late", "one"]


def test_older_parts_of_before_the_first_look_and_copies_are_not_read(tmp_path: Path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "a.log.1").write_text("old\n")
    (tmp_path / "logs").rename(tmp_path / "kept")
    node = Node(tmp_path)
    node.end()
    node.logs.rmdir()
    (tmp_path / "kept").rename(node.logs)
    node.looked_ns = 0
    node.begin()
    log = node.logs / "a.log"
    log.write_text("one\n")
    node.look()
    shutil.copy(log, node.logs / "a.log.2")
    os.truncate(log, 0)
    node.look()
    log.write_text("two\n")
    node.look()
    shutil.copy(log, node.logs / "a.log.3")
    node.end()
    os.truncate(log, 0)
    node.begin()
    node.look()
    assert node.lines() == ["one", "two"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a link that belongs to another user")
def test_a_user_who_lays_links_among_the_logs_has_nothing_of_others_sent(tmp_path: Path):
    """As root's collector reads /home/*/logs: a link to a file of root's, plain, as an older part, and packed."""
    node = Node(tmp_path)
    secret = tmp_path / "shadow"
    secret.write_text("precious\n")
    packed = tmp_path / "shadow.gz"
    packed.write_bytes(gzip.compress(b"one\nprecious\n"))
    (node.logs / "own.log").write_text("one\n")
    node.look()
    for name, target in (("a.log", secret), ("own.log.1", secret), ("own.log.2.gz", packed), ("d.log", "/dev/zero")):
        (node.logs / name).symlink_to(target)
        os.chown(node.logs / name, 65534, 65534, follow_symlinks=False)
    (node.logs / "own.log").unlink()
    node.look()
    node.look()
    (node.logs / "b.log").symlink_to(secret)
    node.look()
    node.end()
    assert node.lines() == ["one", "precious"], "by the link of root's own, once"
    followed = [Path(each.path).name for each in node.sources.all.values() if each.kind == "file"]
    assert followed == ["own.log", "b.log"]


def test_a_log_of_two_names_is_read_once(tmp_path: Path):
    """A rotation by link, and one by rename between two steps of one look: both names lead to one file."""
    node = Node(tmp_path)
    log = node.logs / "a.log"
    log.write_text("one\n")
    os.link(log, node.logs / "a.log.1")
    (node.logs / "current.log").symlink_to(log)
    node.look()
    node.look()
    assert node.lines() == ["one"]


@pytest.mark.requires("root")
def test_files_of_one_inode_number_on_two_disks_are_both_read(tmp_path: Path):
    """Every file system counts its own inodes: the first file of two fresh ones has the same number."""
    node = Node(tmp_path)
    node.files.patterns.append(str(node.logs / "*" / "*.log"))
    disks = [node.logs / name for name in ("var", "shared")]
    for disk in disks:
        disk.mkdir()
    with contextlib.ExitStack() as mounted:
        for disk in disks:
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(disk)], check=True)
            mounted.callback(subprocess.run, ["umount", str(disk)], check=True)
        mounted.callback(node.end)
        for disk in disks:
            (disk / "a.log").write_text(f"of-{disk.name}\n")
            node.look()
            node.look()
        assert len({(disk / "a.log").stat().st_ino for disk in disks}) == 1
        assert node.lines() == ["of-shared", "of-var"]


def test_more_files_than_a_process_may_have_open_leave_room_to_send(tmp_path: Path):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = len(list(Path("/proc/self/fd").iterdir())) + 64  # tests that ran before in this process keep some
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(few, hard), hard))
    try:
        node = Node(tmp_path)
        assert node.files.most_open > few or hard <= few, "what the limit may be raised to is used"
        node.files.most_open = 5
        for number in range(8):
            (node.logs / f"{number}.log").write_text(f"{number}\n")
        node.look()
        assert (len(node.files.open), node.files.left_out) == (5, 3)
        node.look()
        said = node.said()
        assert len(said) == 1, "once, not at each look"
        assert "error: does not follow" in said[0]
        assert "5 files are open, of 5 at most (ulimit -n)" in said[0]
        node.files.most_open = 8
        node.look()
        assert (len(node.files.open), node.files.left_out) == (8, 0)
        assert node.said()[1].endswith("warning: follows all files again")
        node.end()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    ("name", "written_ns", "inode"),
    [(b"\xff.log", 0, 7), (b"job#1.out", -5, 7), (b"lustre.out", 1 << 63, (1 << 64) - 9)],
)
def test_no_name_and_no_number_of_a_file_stops_what_the_others_send(
    tmp_path: Path, name: bytes, written_ns: int, inode: int
):
    sources = Sources(str(tmp_path), 1 << 20)
    path = os.fsdecode(b"/var/log/" + name)
    source = sources.new("file", path)
    source.written_ns, source.inode = written_ns, inode
    sources.take(source, b"one\n")
    (sent,) = batch(sources, time.monotonic())
    packed = zlib.compress(json.dumps({"node": "n", "lost": 0, "sources": [sent[1]]}).encode() + b"\n" + sent[2])
    header, parts = unpacked(packed)
    assert parts == [b"one\n"]
    assert header.sources[0].path == path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def lose_power(node: Node, *, keep: tuple[int, ...] = ()) -> None:
    """What waits was not synced: it is gone, but for some of its segments in the order of their places."""
    parts = [path for path in node.state.glob("*.seg") if int(path.name.partition(".")[0]) != node.sources.own.number]
    for num, part in enumerate(sorted(parts, key=lambda path: int(path.name.split(".")[1]))):
        if num not in keep:
            part.unlink()


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("is_finished", [False, True])
def test_a_rotated_log_that_waited_when_the_power_went_is_read_again(
    tmp_path: Path, is_packed: bool, is_finished: bool
) -> None:
    """What the owner had of it is not; all else is."""
    node = Node(tmp_path)
    log = node.logs / "a.log"
    lines = [f"{num:0200}" for num in range(100)]
    log.write_text("\n".join(lines) + "\n")
    node.look()
    (source,) = (each for each in node.sources.all.values() if each.kind == "file")
    assert source.pos == 201 * 100
    node.sources.acknowledge(source, 201 * 40)
    source.finished = is_finished
    node.sources.save(source)
    log.rename(node.logs / "a.log.1")
    if is_packed:
        (node.logs / "a.log.1.gz").write_bytes(gzip.compress((node.logs / "a.log.1").read_bytes()))
        (node.logs / "a.log.1").unlink()
    log.write_text("new\n")
    node.end()
    lose_power(node)
    node.begin()
    node.look()
    assert node.lines() == sorted([*lines[40:], "new"])
    assert node.said() == []


def test_what_waits_behind_a_hole_is_read_again_and_in_order(tmp_path: Path) -> None:
    node = Node(tmp_path)
    lines = [f"{num:01000}" for num in range(4000)]
    (node.logs / "a.log").write_text("\n".join(lines) + "\n")
    node.look()
    node.end()
    assert len(list(node.state.glob("*.seg"))) > 3
    lose_power(node, keep=(0, 2))
    node.begin()
    node.look()
    assert node.lines() == lines


def test_records_of_the_journal_that_waited_when_the_power_went_are_asked_for_again(tmp_path: Path) -> None:
    """`journalctl --after-cursor` gives what stands behind a cursor (journalctl(1)); so does this stand-in of it."""
    (tmp_path / "journalctl").write_text(
        "import json, sys\n"
        "after = [int(word.partition('=')[2][1:]) for word in sys.argv if word.startswith('--after-cursor=')]\n"
        "for number in range(*[each + 1 for each in after], 50):\n"
        "    print(json.dumps({'__CURSOR': 's%d' % number, 'MESSAGE': 'x' * 2000}), flush=True)\n"
    )
    words = [sys.executable, str(tmp_path / "journalctl")]
    state = tmp_path / "state"
    state.mkdir()
    read: list[list[str]] = []
    for _ in range(2):
        sources = Sources(str(state), 1 << 24)
        journal = Journal(sources, words)
        deadline = time.monotonic() + 30
        while journal.source.key != "s49":
            assert time.monotonic() < deadline
            journal.poll()
        journal.close()
        data = sources.spool.read(journal.source.number, journal.source.acked, 1 << 24)[1]
        read.append([json.loads(line)["__CURSOR"] for line in data.splitlines()])
        ends = [place for place, byte in enumerate(data, 1) if byte == 10]
        sources.acknowledge(journal.source, ends[19])
        sources.save(journal.source)
        for part in state.glob("*.seg"):
            part.unlink()
    assert read == [[f"s{number}" for number in range(50)], [f"s{number}" for number in range(20, 50)]]

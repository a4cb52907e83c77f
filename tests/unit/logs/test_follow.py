"""Files that were renamed, copied or written before the collector looked: what of them is read, from real files."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from fairlead.logs.onnode.follow import Follower
from fairlead.logs.onnode.sources import Sources


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

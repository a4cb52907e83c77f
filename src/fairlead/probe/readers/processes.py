"""Processes that cannot go on: zombies, and programs that sleep uninterruptibly at every look of a second.

Only /proc/PID/stat is read: the files that show a command line can hang on the very process one looks for.
"""

from __future__ import annotations

import time
from typing import Any

from fairlead.probe.readers.tree import Hole, Tree

BETWEEN_S = 0.1
LOOKS = 10
"""A second in all: for moments, whoever reads a disk sleeps so too, or starts a program where processors are busy."""

MAX_SHOWN = 32


def read_processes(tree: Tree) -> dict[str, Any]:
    """`zombies` and `blocked` are lists of [pid, name]. Kernel threads sleep so by design and are left out."""
    tree.source((), "/proc/*/stat")
    found = {pid: _stat(tree, pid) for pid in tree.names("/proc") if pid.isdigit()}
    asleep = {pid: stat for pid, stat in found.items() if stat and stat[1] == "D" and stat[2] not in (0, 2)}
    looks = LOOKS if tree.live else 0
    while asleep and looks:
        time.sleep(BETWEEN_S)
        looks -= 1
        again = {pid: _stat(tree, pid) for pid in asleep}
        asleep = {pid: stat for pid, stat in again.items() if stat and stat[1] == "D"}
    blocked = [[int(pid), stat[0]] for pid, stat in asleep.items()]
    zombies = [[int(pid), stat[0]] for pid, stat in found.items() if stat and stat[1] == "Z"]
    if not any(found.values()):
        raise Hole("shows no process", "/proc/*/stat")
    return {
        "num": len(found),
        "zombies": zombies[:MAX_SHOWN],
        "num_zombies": len(zombies),
        "blocked": blocked[:MAX_SHOWN],
    }


def _stat(tree: Tree, pid: str) -> tuple[str, str, int] | None:
    """(name, state, parent) from `pid (name) state ppid ...`; a name may hold brackets. None: it ended meanwhile."""
    try:
        text = tree.read_bytes("/proc/" + pid + "/stat", 4096).decode("utf-8", "backslashreplace")
        name, rest = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 1 :].split()
        return name, rest[0], int(rest[1])
    except (Hole, ValueError, IndexError):
        return None

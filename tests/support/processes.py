"""Finding processes by a mark in their command line, to see whether anything was left behind."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from fairlead.base.process import start_ticks

DIES_WITH_US = ("setpriv", "--pdeathsig", "KILL", "--")
"""Before the words of a daemon: it does not outlive a worker that was killed. See prctl(2), PR_SET_PDEATHSIG."""


def marked(mark: str) -> dict[int, str]:
    """Every live process whose command line or environment holds the mark, except this one and its ancestors."""
    mine = {os.getpid()}
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) in mine:
            continue
        try:
            line = (entry / "cmdline").read_bytes()
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            if state not in "ZX" and mark.encode() in line:
                found[int(entry.name)] = line.replace(b"\0", b" ").decode(errors="replace")[:200]
        except OSError:
            continue
    return found


def parent(pid: int) -> int:
    """The parent's number."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def left_after(mark: str, limit_s: float) -> dict[int, str]:
    """The marked processes that still live after the limit; empty as soon as none does."""
    deadline = time.monotonic() + limit_s
    while (found := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


def until_marked(mark: str, number: int, limit_s: float = 20) -> dict[int, str]:
    """Wait until that many marked processes live."""
    deadline = time.monotonic() + limit_s
    while len(found := marked(mark)) < number:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(found)} of {number} processes marked {mark}: {found}")
        time.sleep(0.02)
    return found


def is_gone(pid: int, limit_s: float = 60) -> bool:
    """Whether a process ends within the limit, be it killed a moment ago; one that waits to be collected has ended."""
    return until(lambda: start_ticks(pid) is None, limit_s)


def until(is_so: Callable[[], object], limit_s: float = 60) -> bool:
    """Whether something comes about within a limit, which only a failure reaches: a busy machine takes its time."""
    deadline = time.monotonic() + limit_s
    while not is_so():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True

"""Finding processes by a mark in their command line, to see whether anything was left behind."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path


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


def quickest_s(call: Callable[[], object], enough_s: float, tries: int = 3) -> float:
    """How long a call takes: again where that was too long, as a busy machine is slow now and then, not every time."""
    best_s = float("inf")
    for _ in range(tries):
        started = time.monotonic()
        call()
        best_s = min(best_s, time.monotonic() - started)
        if best_s < enough_s:
            break
    return best_s

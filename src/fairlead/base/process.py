"""Telling one process from another that later had the same number."""

from __future__ import annotations

from pathlib import Path


def start_ticks(pid: int) -> int | None:
    """When a process began, in clock ticks since boot: with the pid, an identity that is never used again.

    None if it is gone; a zombie counts as gone.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat[stat.rindex(")") + 2 :].split()
    return None if fields[0] in "ZX" else int(fields[19])

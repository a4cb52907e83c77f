"""A service to look at: it writes when it began, and has a child of its own; and ways to find what it left."""

from __future__ import annotations

import os
import time
from pathlib import Path

TALKER = """
import os, subprocess, sys, time
print("began", os.getpid(), sys.argv[1:], os.environ.get("TONE", ""), flush=True)
subprocess.Popen(["sleep", "%s"], start_new_session=True)
while True:
    time.sleep(3600)
"""
FAILS = "import sys\nprint('no luck')\nsys.exit(3)\n"


def until(what, limit_s: float = 20.0):
    """Wait until it holds; its value."""
    deadline = time.monotonic() + limit_s
    while not (found := what()):
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.02)
    return found


def with_mark(folder: str) -> dict[int, str]:
    """Processes that a service of this folder started."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if f"FAIRLEAD_SERVICE={folder}".encode() in (entry / "environ").read_bytes():
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
    return found


def is_alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def kill(pid: int) -> None:
    """SIGKILL."""
    os.kill(pid, 9)

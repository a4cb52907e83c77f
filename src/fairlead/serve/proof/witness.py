"""Who called whom: system calls and names asked for become attempts, each with its process.

A Unix socket counts as the server's own where one of its processes bound that path, and nothing was there before.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from fairlead.serve.proof.destination import OF_LIBRARIES, Destination, Leads, destination
from fairlead.serve.proof.record import Attempt
from fairlead.serve.proof.seccomp import Call, group_of

MAX_KEPT = 2_000
_MAX_SHOWN = 200
_MAX_OWN = 100_000


class Witness:
    """Hears of calls in one thread and of names in others."""

    def __init__(self, allowed: Sequence[str] = ()) -> None:
        """`allowed` are patterns of Unix sockets that may be reached; a network leads nowhere anyway."""
        self._allowed = allowed
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._found: dict[tuple[str, int, str], Attempt] = {}
        self._left_out = 0
        self._own: set[str] = set()
        self._resolvers: dict[int, None] = {}

    def begin(self, began: float) -> None:
        """The server is started about now."""
        self._began = began

    def attempts(self) -> tuple[tuple[Attempt, ...], int]:
        """What was kept, and how many were not."""
        with self._lock:
            return tuple(self._found.values()), self._left_out

    def call(self, call: Call) -> bool:
        """A system call, while whoever makes it waits: whether it may go on."""
        to = destination(call.address, call.type)
        if call.name == "bind":
            self._bound(call, to)
        elif to.leads is Leads.OUTSIDE:
            self._keep(call.tid, call.name, to.shown)
        elif to.leads is Leads.DNS:
            self._resolvers[group_of(call.tid)] = None
        elif to.leads is Leads.UNIX:
            place = _seen_by(call.tid, to.path)
            is_there = os.path.lexists(place)
            if (to.path in OF_LIBRARIES and not is_there) or _real(place) in self._own:
                return True
            self._keep(call.tid, call.name, to.shown)
            return any(fnmatchcase(to.shown, pattern) for pattern in self._allowed)
        return True

    def query(self, name: str, kind: str, port: int) -> None:
        """A question for a name, from a port of this namespace."""
        pid = next((p for p in reversed(self._resolvers) if _holds(p, port)), 0)
        pid = pid or next(reversed(self._resolvers), 0)
        self._keep(pid, "query", f"dns:{name}")

    def _bound(self, call: Call, to: Destination) -> None:
        if to.leads is Leads.UNIX and len(self._own) < _MAX_OWN:
            place = _seen_by(call.tid, to.path)
            if not os.path.lexists(place):  # else the call will fail: who listens there is somebody else
                self._own.add(_real(place))

    def _keep(self, tid: int, how: str, to: str) -> None:
        pid = group_of(tid)
        with self._lock:
            key = (how, pid, to)
            known = self._found.get(key)
            if known is not None:
                self._found[key] = Attempt(
                    how=how, to=to, pid=pid, process=known.process, thread=known.thread, at_s=known.at_s,
                    num=known.num + 1,
                )  # fmt: skip
            elif len(self._found) >= MAX_KEPT:
                self._left_out += 1
            else:
                name, thread = _name_of(pid), _comm(tid)
                at_s = round(time.monotonic() - self._began, 3)
                is_own = tid == pid or thread == _comm(pid)
                self._found[key] = Attempt(
                    how=how, to=to, pid=pid, process=name, thread="" if is_own else thread, at_s=at_s
                )


def _seen_by(tid: int, path: str) -> str:
    """A path as that process means it, for us."""
    if path.startswith("/"):
        return f"/proc/{tid}/root{path}"
    return f"/proc/{tid}/cwd/{path}"


def _real(place: str) -> str:
    """One name for a path that two processes may write differently: its real folder, and its last part."""
    folder, _, name = place.rpartition("/")
    with contextlib.suppress(OSError):
        found = os.stat(folder)  # noqa: PTH116 - through /proc, where a path has no other name
        return f"{found.st_dev}:{found.st_ino}/{name}"
    return place


def _name_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes()[: 4 * _MAX_SHOWN].split(b"\0")
        text = b" ".join(words).decode("utf-8", "backslashreplace").strip()
        if text:
            return text[:_MAX_SHOWN]
    return _comm(pid) or "a process that has ended"


def _comm(tid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{tid}/comm").read_text("utf-8", "backslashreplace").strip()
    return ""


def _holds(pid: int, port: int) -> bool:
    """Whether a process has a socket at this local port."""
    inodes = set[str]()
    for table in ("udp", "udp6", "tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
                row = line.split()
                if int(row[1].rpartition(":")[2], 16) == port:
                    inodes.add(f"socket:[{row[9]}]")
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(entry.path) in inodes:  # noqa: PTH115
                    return True
    return False

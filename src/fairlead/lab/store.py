"""Writing labs' records: one folder a lab, one writer at a time. Reading them is cluster/enter.py's.

    DIR/<name>/state.json    the LabState, replaced whole
    DIR/<name>/next.json     what the keeper makes the LabState when it commits
    DIR/<name>/lock          held while somebody builds, changes or takes down the lab
    DIR/<name>/life          held by the lab's own processes for as long as any of them exists
    DIR/<name>/...           keys and configurations of the lab's services
    DIR/<name>.turn          held while somebody has the lab to itself, from before it is built until it is gone

A folder without a live keeper is what a killed `up` or a reboot left, and is swept by the next `up` or `down`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from fairlead.base.files import disk_errors, own_place, write_atomic
from fairlead.cluster.enter import RECORD, folder, is_alive, is_up, names, place, read, running
from fairlead.errors import LabError
from fairlead.records.codec import to_json
from fairlead.records.labstate import LabState

__all__ = [
    "NEXT",
    "RECORD",
    "await_death",
    "folder",
    "forget",
    "is_alive",
    "is_up",
    "locked",
    "names",
    "open_life",
    "place",
    "read",
    "running",
    "turn",
    "write",
]

NEXT = "next.json"
"""A record that is not in force yet; the keeper renames it to RECORD."""


@contextlib.contextmanager
def locked(name: str, *, limit_s: float = 60.0) -> Iterator[None]:
    """Be the only one who builds, changes or removes this lab. Raises LabError `lab/busy` after `limit_s`."""
    deadline = time.monotonic() + limit_s
    while (fd := _try_lock(folder(name) / "lock")) is None:
        if time.monotonic() > deadline:
            raise LabError("lab/busy", f"another command is changing the lab `{name}`", hint="try again later")
        time.sleep(0.02)
    try:
        yield
    finally:
        os.close(fd)


@contextlib.contextmanager
def turn(name: str, *, limit_s: float = 600.0, waits: Callable[[], None] = lambda: None) -> Iterator[Path]:
    """Have a lab to oneself for longer than one change; `waits` is called once where somebody else has it.

    Yields a file that a killed holder leaves to the next one, with what it wrote there. Raises LabError `lab/busy`
    after `limit_s`.
    """
    path, deadline = place() / f"{name}.turn", time.monotonic() + limit_s
    if (fd := _try_lock(path)) is None:
        waits()
    while fd is None:
        if time.monotonic() > deadline:
            raise LabError("lab/busy", f"another command works with the lab `{name}`", hint="try again later")
        time.sleep(0.1)
        fd = _try_lock(path)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)
        os.close(fd)
        _tidy()


def _try_lock(path: Path) -> int | None:
    """The lock's open file, or None where somebody else has it or just removed it."""
    own_place(path.parent, elsewhere="name another place with FAIRLEAD_LABS")
    with disk_errors(path):
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except FileNotFoundError:
            return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # a lock on a file that was removed meanwhile keeps nobody out
        if os.fstat(fd).st_ino == path.stat().st_ino:
            return fd
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(fd)
    return None


def open_life(name: str) -> int:
    """A file for the lab's first process to inherit: locked until it and all it hands it to are gone."""
    fd = os.open(folder(name) / "life", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return fd


def await_death(name: str, *, limit_s: float = 30.0) -> bool:
    """Wait until no process of a lab exists, also such as no record names; False if one still does."""
    try:
        fd = os.open(folder(name) / "life", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    deadline = time.monotonic() + limit_s
    try:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    return False
                time.sleep(0.002)
            else:
                return True
    finally:
        os.close(fd)


def write(state: LabState, record: str = RECORD) -> None:
    """Replace a lab's record, or the one that is to come (NEXT)."""
    write_atomic(folder(state.name) / record, to_json(state), mode=0o600)


def forget(name: str) -> None:
    """Remove a lab's folder, and the directories of labs if it was the last."""
    shutil.rmtree(folder(name), ignore_errors=True)
    _tidy()


def _tidy() -> None:
    """Remove the directories of labs if nothing is in them."""
    with contextlib.suppress(OSError):
        place().rmdir()
        if place().parent.name == "fairlead":
            place().parent.rmdir()

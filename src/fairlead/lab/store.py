"""Where labs keep their records: one folder a lab, one writer at a time, and who is still alive.

Knows: places, locks, the record's file. Must not know: what is in a lab beyond its record.

    DIR/<name>/state.json    the LabState, replaced whole
    DIR/<name>/lock          held while somebody builds, changes or takes down the lab

DIR is /run/fairlead/labs for root, otherwise below the user's run-time or state directory; FAIRLEAD_LABS names another.
A folder without a live keeper is what a killed `up` or a reboot left, and is swept by the next `up` or `down`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from fairlead.base.files import disk_errors, write_atomic
from fairlead.base.suggest import did_you_mean
from fairlead.errors import LabError
from fairlead.lab.syscalls import start_ticks
from fairlead.records.codec import from_json, to_json
from fairlead.records.labstate import LabState, Process


def place() -> Path:
    """The directory of all labs of this user."""
    if chosen := os.environ.get("FAIRLEAD_LABS"):
        return Path(chosen)
    if os.geteuid() == 0:
        return Path("/run/fairlead/labs")
    base = os.environ.get("XDG_RUNTIME_DIR") or os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local/state") / "fairlead/labs"


def folder(name: str) -> Path:
    """A lab's own directory."""
    return place() / name


@contextlib.contextmanager
def locked(name: str, *, limit_s: float = 60.0) -> Iterator[None]:
    """Be the only one who builds, changes or removes this lab. Raises LabError `lab/busy` after `limit_s`."""
    path = folder(name) / "lock"
    deadline = time.monotonic() + limit_s
    with disk_errors(path):
        while True:
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:
                continue  # another `down` removed the folder between the two lines above
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # a lock on a file that was removed meanwhile locks nobody out
                if path.exists() and os.fstat(fd).st_ino == path.stat().st_ino:
                    break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    os.close(fd)
                    raise LabError(
                        "lab/busy", f"another command is changing the lab `{name}`", hint="try again"
                    ) from None
                time.sleep(0.02)
            except FileNotFoundError:
                pass
            os.close(fd)
    try:
        yield
    finally:
        os.close(fd)


def write(state: LabState) -> None:
    """Replace a lab's record."""
    write_atomic(folder(state.name) / "state.json", to_json(state), mode=0o600)


def read(name: str) -> LabState | None:
    """A lab's record; None where there is none. Raises LabError `lab/bad-record` where it cannot be read."""
    path = folder(name) / "state.json"
    try:
        return from_json(path.read_bytes(), LabState)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (msgspec.DecodeError, OSError) as error:
        raise LabError(
            "lab/bad-record",
            f"the record of the lab `{name}` cannot be read: {error}",
            hint=f"fairlead lab down --name {name}",
        ) from error


def forget(name: str) -> None:
    """Remove a lab's folder, and the directory of labs if it was the last."""
    shutil.rmtree(folder(name), ignore_errors=True)
    with contextlib.suppress(OSError):
        place().rmdir()
        place().parent.rmdir()


def names() -> list[str]:
    """Every lab that has a folder."""
    with contextlib.suppress(FileNotFoundError):
        return sorted(p.name for p in place().iterdir() if p.is_dir())
    return []


def is_alive(process: Process | None) -> bool:
    """Whether a process is still the one that was meant."""
    return process is not None and start_ticks(process.pid) == process.start


def is_up(state: LabState | None) -> bool:
    """Whether a lab stands."""
    return state is not None and state.phase == "up" and is_alive(state.keeper)


def running(name: str) -> LabState:
    """The record of a lab that stands. Raises LabError `lab/not-up`."""
    state = read(name)
    if state is None or not is_up(state):
        up = [n for n in names() if is_up(read(n))]
        hint = f"{did_you_mean(name, up)} " if up else ""
        raise LabError("lab/not-up", f"the lab `{name}` is not up", hint=f"{hint}fairlead lab up")
    return state

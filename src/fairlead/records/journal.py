"""A small file of records that outlives runs: one a line, the oldest go first.

    NAME.jsonl     one record a line
    NAME.lock      held while a line is added

A line that a disk takes half of is taken back; one that a kill or a power cut tore is skipped, and the next starts on
a line of its own. The file is bounded by lines and bytes. It stands in a folder of one's own (base/trust.py), for the
caller alone.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Generic, TypeVar

from fairlead.base.files import disk_errors, not_ours, own_place, write_atomic
from fairlead.base.trust import PRIVATE_FILE, NotOurs, own_folder, private_opener, read_file
from fairlead.records.codec import from_json, to_json

T = TypeVar("T")

KEEP_LINES = 1000
KEEP_BYTES = 8 << 20
LOCK_LIMIT_S = 5.0


def state_place(env: Mapping[str, str] = os.environ, uid: int | None = None) -> Path:
    """Where fairlead keeps what outlives runs: `$XDG_STATE_HOME/fairlead`, else below the home directory.

    A daemon has neither; root then uses /var/lib/fairlead, anybody else a directory in /var/tmp, which others could
    have made before: who uses it looks whose it is.
    """
    if env.get("XDG_STATE_HOME", "").startswith("/"):
        return Path(env["XDG_STATE_HOME"]) / "fairlead"
    home = env.get("HOME", "")
    if home.startswith("/") and home != "/":
        return Path(home) / ".local" / "state" / "fairlead"
    number = os.getuid() if uid is None else uid
    return Path("/var/lib/fairlead") if number == 0 else Path(f"/var/tmp/fairlead-{number}")  # noqa: S108


def bringup_place() -> Path:
    """What bringups keep; hosts of a lab see it too, wherever it lies, as they read the model that was made there."""
    return state_place() / "bringup"


class Journal(Generic[T]):
    """Records of one kind in one file."""

    def __init__(
        self, path: Path, kind: type[T], *, keep_lines: int = KEEP_LINES, keep_bytes: int = KEEP_BYTES
    ) -> None:
        self.path = path
        self._kind, self._keep_lines, self._keep_bytes = kind, keep_lines, keep_bytes

    def entries(self) -> list[T]:
        """Every record, oldest first. No file, no records; a line that is none is skipped.

        Raises NotPermitted for a file that somebody else could have written.
        """
        return list(self._read())

    def add(self, entry: T, limit_s: float = LOCK_LIMIT_S) -> bool:
        """Add one; False where somebody holds the lock for longer than `limit_s`. Raises DiskFull or NotPermitted."""
        line = to_json(entry, indent=0).encode() + b"\n"
        own_place(self.path.parent)
        with disk_errors(self.path), locked(self.path.with_suffix(".lock"), limit_s) as is_mine:
            if is_mine:
                _append(self.path, line)
                self._prune()
        return is_mine

    def _read(self) -> Iterator[T]:
        try:
            if not os.path.lexists(self.path):
                return
            own_folder(self.path.parent, make=False)
            lines = read_file(self.path, 4 * self._keep_bytes, ours=True).split(b"\n")
        except NotOurs as error:
            raise not_ours(error) from error
        except OSError:
            return
        for line in lines:
            with contextlib.suppress(ValueError):
                yield from_json(line, self._kind)

    def _prune(self) -> None:
        """Halve the file once it is too long, so that this is seldom done."""
        data = self.path.read_bytes()
        if len(data) <= self._keep_bytes and data.count(b"\n") <= self._keep_lines:
            return
        kept: list[bytes] = []
        num_bytes = 0
        for line in reversed(data.splitlines(keepends=True)):
            num_bytes += len(line)
            if len(kept) >= self._keep_lines // 2 or (num_bytes > self._keep_bytes // 2 and kept):
                break
            kept.append(line)
        write_atomic(self.path, b"".join(reversed(kept)), mode=PRIVATE_FILE)


@contextlib.contextmanager
def locked(path: Path, limit_s: float) -> Iterator[bool]:
    """A lock, which its holder's death frees; says whether it was had in time."""
    deadline = time.monotonic() + limit_s
    with open(path, "a", opener=private_opener) as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    yield False
                    return
                time.sleep(0.02)
                continue
            yield True
            return


def _append(path: Path, line: bytes) -> None:
    """One line at the end, on a line of its own."""
    with open(path, "a+b", buffering=0, opener=private_opener) as file:
        os.fchmod(file.fileno(), PRIVATE_FILE)  # an earlier version let all read it
        size = file.seek(0, os.SEEK_END)
        if size:
            file.seek(-1, os.SEEK_END)
            line = line if file.read(1) == b"\n" else b"\n" + line
        if file.write(line) < len(line):
            file.truncate(size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(file.fileno())

"""Writing files so that a reader never sees half of one, and a full disk is told apart from other faults."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from fairlead.errors import DiskFull, NotPermitted

_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextlib.contextmanager
def disk_errors(path: Path, *, elsewhere: str = "choose another place") -> Iterator[None]:
    """Turn what the file system says into DiskFull (exit 5) or NotPermitted (exit 4): a user can mend both.

    `elsewhere` is the hint of the second: how to name another place.
    """
    try:
        yield
    except OSError as exc:
        if exc.errno in _FULL:
            raise DiskFull(
                "disk/full", f"no room left to write {path}", hint=f"free some space there: df -h {path.parent}"
            ) from exc
        why = exc.strerror or str(exc)
        raise NotPermitted("disk/not-writable", f"cannot write {path}: {why}", hint=elsewhere) from exc


def check_place(path: Path) -> None:
    """Raise now what `write_atomic` would raise at the end of a long run: a place that cannot be written to."""
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        with tempfile.TemporaryFile(dir=path.parent):
            pass


def write_atomic(path: Path, data: str | bytes, *, mode: int = 0o644) -> None:
    """Write a whole file or nothing: a temporary file beside it, fsync, rename.

    Raises DiskFull or NotPermitted; the old content, if any, is then untouched and no temporary file is left.
    Half a surrogate pair, as in file names that are not UTF-8, is written as `?`.
    """
    raw = data.encode("utf-8", "replace") if isinstance(data, str) else data
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(raw)
                file.flush()
                os.fchmod(file.fileno(), mode)
                os.fsync(file.fileno())
            Path(name).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(name).unlink()
            raise

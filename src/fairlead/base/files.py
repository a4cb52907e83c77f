"""Writing files so that a reader never sees half of one, and a full disk is told apart from other faults."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from fairlead.base.trust import NotOurs, own_folder
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
        if isinstance(exc, NotOurs):
            raise not_ours(exc, elsewhere=elsewhere) from exc
        why = exc.strerror or str(exc)
        raise NotPermitted("disk/not-writable", f"cannot write {path}: {why}", hint=elsewhere) from exc


def not_ours(error: NotOurs, *, elsewhere: str = "choose another place") -> NotPermitted:
    """The same for people: what is not used, and why."""
    text = f"{error.filename} is no place of your own: {error.strerror}"
    return NotPermitted("disk/not-ours", text, hint=f"{elsewhere}, or see who may write: ls -ld {error.filename}")


def own_place(path: Path, *, elsewhere: str = "choose another place") -> Path:
    """A folder in which nobody else can put or exchange anything, made for the caller alone where it is not there.

    What is kept between runs, or run from a file, stands in such a folder only. Raises DiskFull or NotPermitted.
    """
    with disk_errors(path, elsewhere=elsewhere):
        own_folder(path)
    return path


def check_place(path: Path) -> None:
    """Raise now what `write_atomic` would raise at the end of a long run: a place that cannot be written to."""
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        with tempfile.TemporaryFile(dir=path.parent):
            pass


def write_atomic(path: Path, data: str | bytes, *, mode: int = 0o666) -> None:
    """Write a whole file or nothing: a temporary file beside it, fsync, rename.

    The caller's umask takes its part of `mode`. A link at `path` is replaced, not followed.
    Raises DiskFull or NotPermitted; the old content, if any, is then untouched and no temporary file is left.
    Half a surrogate pair, as in file names that are not UTF-8, is written as `?`.
    """
    raw = data.encode("utf-8", "replace") if isinstance(data, str) else data
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        coming = path.with_name(f".{path.name[:200]}.{os.urandom(8).hex()}")
        handle = os.open(coming, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(raw)
                file.flush()
                os.fsync(file.fileno())
            coming.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                coming.unlink()
            raise

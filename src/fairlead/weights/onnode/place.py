"""The place on a node that a spread writes to: DEST, our own folder in it, the record of what was published, and what
disks refuse, in words. Python 3.9.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os

from fairlead.base.trust import read_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

OWN_FOLDER = ".fairlead"
RECORD, RECORD_SCHEMA = "record.json", "fairlead.weights-record/1"
MAX_RECORD_BYTES = 1 << 28
DIGEST_BYTES = 32


class Unusable(Exception):
    """This node cannot go on: a code, one sentence, and what to do."""

    def __init__(self, code: str, text: str, hint: str = "") -> None:
        super().__init__(text)
        self.code, self.text, self.hint = code, text, hint


def hasher(algorithm: str) -> Callable[[Any], bytes]:
    """The function that makes a digest of 32 bytes. Raises ImportError where it is not there."""
    if algorithm == "blake3":
        from blake3 import blake3

        return lambda data: blake3(data).digest()  # type: ignore[no-any-return,unused-ignore]
    import hashlib

    return lambda data: hashlib.sha256(data).digest()


def has_blake3() -> bool:
    """Whether this Python has the package."""
    try:
        hasher("blake3")(b"")
    except ImportError:
        return False
    return True


def open_dest(dest: str) -> int:
    """DEST itself, made if need be; it may be a link, as its owner says where it is. Raises Unusable."""
    try:
        os.makedirs(dest, exist_ok=True)
        return os.open(dest, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileExistsError, NotADirectoryError):
        raise Unusable("weights/not-a-folder", f"{dest} is not a folder", f"ls -ld {dest}") from None
    except OSError as error:
        raise disk_trouble(error, dest) from None


def open_own(top: int, dest: str, *, make: bool = True) -> int:
    """Our own folder in DEST: a folder of this user, and no link. Raises Unusable, or FileNotFoundError."""
    try:
        if make:
            with contextlib.suppress(FileExistsError):
                os.mkdir(OWN_FOLDER, 0o700, dir_fd=top)
        own = os.open(OWN_FOLDER, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=top)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise disk_trouble(error, f"{dest}/{OWN_FOLDER}") from None
    found = os.fstat(own)
    if found.st_uid not in (0, os.geteuid()) or found.st_mode & 0o022:
        os.close(own)
        text = f"{dest}/{OWN_FOLDER} is not a folder that only this user can write to"
        raise Unusable("weights/not-ours", text, f"ls -ld {dest}/{OWN_FOLDER}")
    return own


def read_record(own: int) -> dict[str, Any]:
    """What an earlier run published; empty where there is nothing that reads."""
    try:
        record = json.loads(read_file(RECORD, MAX_RECORD_BYTES, dir_fd=own, follow=False))
    except (OSError, ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) and record.get("schema") == RECORD_SCHEMA else {}


def write_record(own: int, record: dict[str, Any]) -> None:
    """Put it in the place of the one before. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(RECORD + ".new", flags, 0o644, dir_fd=own)
    try:
        write_all(fd, memoryview(json.dumps(record).encode()), None)
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(RECORD + ".new", RECORD, src_dir_fd=own, dst_dir_fd=own)


def stage_file(number: int) -> str:
    """The name of a file under way: nothing that came from outside."""
    return f"{number:07d}"


def write_all(fd: int, data: memoryview, at: int | None) -> None:
    """All of it, at an offset; None: at the end."""
    while data:
        num = os.write(fd, data) if at is None else os.pwrite(fd, data, at)
        data = data[num:]
        at = None if at is None else at + num


def sync_all(fd: int) -> None:
    """Everything of this file system is on the disk: one call for many small files."""
    import ctypes

    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.syncfs(fd):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
    except AttributeError:
        os.sync()


def disk_trouble(error: OSError, place: str) -> Unusable:
    """What a disk refuses, in words."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Unusable("weights/disk-full", f"{place} has no room left", f"df -h {place}")
    if error.errno == errno.EROFS:
        return Unusable("weights/read-only", f"{place} is on a read-only file system", f"findmnt -T {place}")
    if error.errno in (errno.EACCES, errno.EPERM):
        return Unusable("weights/not-permitted", f"no right to write to {place}", f"ls -ld {place}")
    return Unusable("weights/disk-error", f"{place}: {error.strerror or error}", "dmesg | tail")

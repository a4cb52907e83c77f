"""Files of flat arrays: read and written past the page cache where the file system allows it, in pieces, by threads.

Offsets and lengths are multiples of `PAGE`, buffers begin at one (`memory.arena`). Where O_DIRECT is refused (tmpfs,
some network file systems) the page cache is used, and told to forget.

Must not know: what the arrays are.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import numpy as np
import torch

from fairlead.errors import DiskFull, TrainError

PAGE = 4096
_FULL = (errno.ENOSPC, errno.EDQUOT)
_DIRECT = getattr(os, "O_DIRECT", 0)


def pages(size: int) -> int:
    """Bytes rounded up to whole pages."""
    return -(-size // PAGE) * PAGE


def memory_of(flat: torch.Tensor) -> memoryview:
    """The bytes of a flat tensor of the host."""
    return memoryview(flat.view(torch.uint8).numpy())


def digest(flat: torch.Tensor, begin: int) -> int:
    """A sum over 64-bit words, each page weighted by its place: stretches of one array that begin at pages add up.

    It sees what disks and drivers do (a flipped bit, a page of zeros, of something else, or from another place), and
    costs a tenth of what a CRC costs. It is no defence against anyone. `begin`: where the stretch lies, in bytes.
    """
    assert begin % PAGE == 0
    raw = flat.view(torch.uint8).numpy()
    first, num, words = begin // PAGE, len(raw) // PAGE, PAGE // 8
    grid = np.frombuffer(raw, np.uint64, num * words).reshape(num, words)
    sums = np.add.reduce(grid, axis=1, dtype=np.uint64)
    weights = np.arange(2 * first + 1, 2 * (first + num) + 1, 2, dtype=np.uint64)
    last = raw[num * PAGE :].tobytes()
    rest = int(np.frombuffer(last.ljust(PAGE, b"\0"), np.uint64).sum(dtype=np.uint64))
    return (int(np.dot(sums, weights)) + (2 * (first + num) + 1) * rest) % (1 << 64)


def digest_of_sums(flat: torch.Tensor, begin: int) -> int:
    """As earlier versions took it, whose stores go on with it: pages that change places within a stretch go unseen."""
    raw = flat.view(torch.uint8).numpy()
    words = np.frombuffer(raw, np.uint64, len(raw) // 8)
    rest = int.from_bytes(raw[len(words) * 8 :].tobytes(), "little")
    total = int(np.add.reduce(words, dtype=np.uint64)) + rest
    return total * (2 * (begin // PAGE) + 1) % (1 << 64)


def _past_the_cache(handle: int) -> bool:
    """Whether the file system takes O_DIRECT: asked of the open file, which nobody can exchange."""
    try:
        fcntl.fcntl(handle, fcntl.F_SETFL, fcntl.fcntl(handle, fcntl.F_GETFL) | _DIRECT)
    except OSError as exc:
        if exc.errno != errno.EINVAL:
            raise
        return False
    return bool(_DIRECT)


class BlobFile:
    """One file of fixed size."""

    def __init__(self, path: Path, size: int, *, create: bool) -> None:
        self.path = path
        self.size = pages(size)
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT | os.O_EXCL if create else 0)
        try:
            self.handle = os.open(path, flags, 0o600)
            self.direct = _past_the_cache(self.handle)
            if create:
                os.posix_fallocate(self.handle, 0, self.size)
        except OSError as exc:
            raise self._error("opened", exc) from exc
        found = os.fstat(self.handle).st_size
        if found != self.size:
            self.close()
            raise self._damaged(f"has {found:,} bytes instead of {self.size:,}")

    def read(self, into: memoryview, offset: int) -> None:
        """Fill the whole buffer."""
        done = 0
        try:
            while done < len(into):
                got = os.preadv(self.handle, [into[done:]], offset + done)
                if not got:
                    raise self._damaged(f"ends at {offset + done:,}")
                done += got
        except OSError as exc:
            raise self._error("read", exc) from exc
        self._forget(offset, len(into))

    def write(self, source: memoryview, offset: int) -> None:
        """All of it."""
        done = 0
        try:
            while done < len(source):
                done += os.pwritev(self.handle, [source[done:]], offset + done)
        except OSError as exc:
            raise self._error("written", exc) from exc

    def sync(self) -> None:
        """Return when everything written is on the device."""
        try:
            os.fdatasync(self.handle)
        except OSError as exc:
            raise self._error("written", exc) from exc

    def close(self) -> None:
        """Give the handle back."""
        os.close(self.handle)

    def _forget(self, offset: int, size: int) -> None:
        if not self.direct:
            os.posix_fadvise(self.handle, offset, size, os.POSIX_FADV_DONTNEED)

    def _error(self, done: str, exc: OSError) -> TrainError | DiskFull:
        if exc.errno in _FULL:
            text = f"no room left for {self.size / 1e9:.1f} GB of {self.path}"
            return DiskFull("train/disk-full", text, hint=f"free some space there: df -h {self.path.parent}")
        why = exc.strerror or str(exc)
        return TrainError(
            "train/io",
            f"{self.path} cannot be {done}: {why}",
            hint="look at the disk (dmesg), then resume: the state is whole",
        )

    def _damaged(self, what: str) -> TrainError:
        return damaged(self.path, what)


def damaged(path: Path, what: str) -> TrainError:
    """A state that is not what was written."""
    return TrainError(
        "train/damaged",
        f"{path} {what}: the state is damaged",
        hint="go back to a copy, or start afresh in another store",
    )

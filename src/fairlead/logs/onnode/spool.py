"""What a node has read and the owner does not have yet, on the node's disk: `ID.BASE.seg` holds bytes of one source.

BASE is where its first byte stands in the source, so names and sizes alone say how far a source was read, and a kill
between any two steps leaves nothing that could disagree. What a write did not finish is cut off again. Nothing is
synced: after a loss of power there may be less, and holes.

Must not know: what a source is, who is sent to.
"""

from __future__ import annotations

import contextlib
import os
import re

from fairlead.base.trust import private_opener

SEGMENT_BYTES = 1 << 20
_SEGMENT = re.compile(r"(\d{1,20})\.(\d{1,20})\.seg")


class Spool:
    """Bytes that wait, by source; `size` of them, at most `limit`."""

    def __init__(self, folder: str, limit: int) -> None:
        self.folder, self.limit = folder, limit
        self.segments: dict[int, list[list[int]]] = {}
        self.size = 0
        for name in os.listdir(folder):
            found = _SEGMENT.fullmatch(name)
            if found:
                size = os.stat(os.path.join(folder, name)).st_size
                self.segments.setdefault(int(found[1]), []).append([int(found[2]), size])
                self.size += size
        for parts in self.segments.values():
            parts.sort()

    def end(self, source: int) -> int:
        """Where the bytes end that wait; 0 for none."""
        parts = self.segments.get(source)
        return parts[-1][0] + parts[-1][1] if parts else 0

    def has_room(self, size: int) -> bool:
        """Whether so many bytes more are within the limit."""
        return self.size + size <= self.limit

    def append(self, source: int, at: int, data: bytes) -> None:
        """Add what stands `at` in the source. All of it, or OSError and nothing."""
        parts = self.segments.setdefault(source, [])
        if not parts or parts[-1][1] >= SEGMENT_BYTES or parts[-1][0] + parts[-1][1] != at:
            parts.append([at, 0])
        base, size = parts[-1]
        handle = -1
        try:
            handle = private_opener(self._path(source, base), os.O_WRONLY | os.O_CREAT)
            os.lseek(handle, size, os.SEEK_SET)
            left = memoryview(data)
            while left:
                left = left[os.write(handle, left) :]
        except BaseException:
            with contextlib.suppress(OSError):
                if handle >= 0:
                    os.ftruncate(handle, size)
            if not size:
                parts.pop()
                with contextlib.suppress(OSError):
                    os.unlink(self._path(source, base))
            raise
        finally:
            if handle >= 0:
                os.close(handle)
        parts[-1][1] += len(data)
        self.size += len(data)

    def read(self, source: int, at: int, limit: int) -> tuple[int, bytes]:
        """(where they begin, up to `limit` bytes) from `at` on, or from where there are bytes again."""
        found: list[bytes] = []
        start = at
        for base, size in self.segments.get(source, ()):
            if base + size <= at or limit <= 0:
                continue
            if base > at:
                if found:
                    break
                start = at = base
            with open(self._path(source, base), "rb") as file:
                file.seek(at - base)
                data = file.read(min(limit, size - (at - base)))
            found.append(data)
            at += len(data)
            limit -= len(data)
        return start, b"".join(found)

    def cut(self, source: int, end: int) -> None:
        """Forget what stands at `end` and behind it: the last record of a stream that a kill left unfinished."""
        for part in list(self.segments.get(source, ())):
            base, size = part
            if base + size > end:
                keep = max(0, end - base)
                if keep:
                    os.truncate(self._path(source, base), keep)
                    part[1] = keep
                    self.size -= size - keep
                else:
                    self._remove(source, part)

    def go_on(self, source: int, at: int) -> int:
        """Where the bytes end that go on from `at`. What stands behind a hole is forgotten:
        it is read again.
        """
        for part in list(self.segments.get(source, ())):
            if part[0] > at:
                self._remove(source, part)
            else:
                at = max(at, part[0] + part[1])
        return at

    def drop(self, source: int, end: int) -> None:
        """Remove what the owner has: the segments that lie before `end` as a whole."""
        for part in list(self.segments.get(source, ())):
            if part[0] + part[1] <= end:
                self._remove(source, part)

    def _remove(self, source: int, part: list[int]) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(source, part[0]))
        self.segments[source].remove(part)
        self.size -= part[1]
        if not self.segments[source]:
            del self.segments[source]

    def _path(self, source: int, base: int) -> str:
        return os.path.join(self.folder, "%d.%d.seg" % (source, base))

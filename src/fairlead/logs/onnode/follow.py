"""Files that grow: found by patterns, followed through rotation by rename, by copy and truncation, and compression.

An open file is read to its end, whatever its name has become. Who truncates a file leaves a copy first: what was not
read yet is taken from the file beside it that begins with the same bytes. Only where there is none, something is lost,
and that is said. A file that came and was renamed between two looks, or while no collector ran, is known by being an
older part of a followed name, younger than the last look, with a beginning that nobody has read.
"""

from __future__ import annotations

import bz2
import contextlib
import errno
import glob
import gzip
import lzma
import os
import re
import resource
import stat
import time
import zlib

from fairlead.base.trust import open_straight
from fairlead.logs.onnode.sources import HEAD_BYTES, Source, Sources

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO, Any, Iterator

READ_BYTES = 1 << 18
A_TURN_BYTES = 4 << 20
"""So much of one file, before the others have their turn."""
SURE_BYTES = 1024
"""A head of fewer bytes says little about which file it is."""
GONE_S, RENAMED_S = 10.0, 600.0
"""So long a file that was removed, or renamed, stays open after it last grew."""
COPY_S = 30.0
"""So long the copy of a truncated file is looked for: it may be compressed just now."""
REST_S, REST_EVERY_S = 60.0, 2.0
"""A file that rests is looked at less often."""
MAX_SOURCES = 10_000
SPARE_HANDLES = 64
"""Of those that a process may have open, for the owner's connection, the spool, and files that are looked into."""
_PACKERS: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_PACKED = re.compile(r"\.(?:gz|bz2|xz|zst|lz4|Z)$")
_OLDER = re.compile(r"(?:[-.]\d{8}(?:-\d+)?|\.\d{1,4})$")
_DAMAGED = (OSError, EOFError, zlib.error, lzma.LZMAError)


class Followed:
    """A source and its open file."""

    def __init__(self, source: Source, handle: int) -> None:
        self.source, self.handle = source, handle
        self.gone = 0.0
        """Since when its path leads elsewhere."""
        self.due = 0.0


class Follower:
    """All files of a node that patterns name."""

    def __init__(self, sources: Sources, patterns: list[str]) -> None:
        self.sources, self.patterns = sources, patterns
        self.open: dict[int, Followed] = {}
        self.orphans: dict[int, float] = {}
        """Sources whose file is not there, and until when it is looked for."""
        self.matched: dict[int, float] = {}
        self.left_out = 0
        """Files that the last look found no room for."""
        self._was_crowded = False
        self.most_open = max(_handles() - SPARE_HANDLES, 1)
        self.looked_ns = 0
        """When all of it was last looked at, by the clock that files have their times from; 0 for never."""
        now = time.monotonic()
        for source in sources.all.values():
            if source.kind == "file":
                self.matched[source.number] = now
                if not source.finished or source.pos < source.seen:  # or read to its end, and lost with the power
                    self.orphans[source.number] = now + COPY_S

    def scan(self) -> None:
        """Find files that are new, or that are there again."""
        now, begun_ns = time.monotonic(), time.time_ns()
        self._was_crowded, self.left_out = bool(self.left_out), 0
        by_inode: dict[int, list[Source]] = {}
        for source in self.sources.all.values():
            if source.kind == "file":
                by_inode.setdefault(source.inode, []).append(source)
        for path in self._paths():
            with contextlib.suppress(OSError):
                self._look(path, by_inode, now)
        for number in list(self.orphans):
            self._seek(self.sources.all[number], now)
        if self.looked_ns:
            for path in self._older():
                with contextlib.suppress(OSError):
                    self._look_older(path, by_inode, now)
        self.looked_ns = begun_ns
        if self._was_crowded and not self.left_out:
            self.sources.say("warning", "follows all files again")
        for number, at in list(self.matched.items()):
            known = self.sources.all.get(number)
            if known is None or (known.is_over() and now - at > REST_S):
                del self.matched[number]

    def _paths(self) -> Iterator[str]:
        seen = set()
        for pattern in self.patterns:
            for path in glob.iglob(pattern, recursive=True):
                if path not in seen and not _PACKED.search(path):
                    seen.add(path)
                    yield path

    def _older(self) -> Iterator[str]:
        """Older parts of the followed logs that are not compressed."""
        found = set()
        for pattern in self.patterns:
            for path in glob.iglob(pattern + "[-.]*", recursive=True):
                if _OLDER.search(path):
                    found.add(path)
        return iter(sorted(found))

    def _look_older(self, path: str, by_inode: dict[int, list[Source]], now: float) -> None:
        """Begin an older part that was a log of its own and gone before anybody looked; keep in mind the others."""
        found = os.stat(path)
        for source in by_inode.get(found.st_ino, ()):
            if self._is_elsewhere(source, found):
                continue
            is_as_read = found.st_size == source.pos and found.st_mtime_ns == source.written_ns
            if source.number in self.open or is_as_read or self._continues(source, path, found, now):
                self.matched[source.number] = now
                return
        if found.st_mtime_ns > self.looked_ns and found.st_size and not self._was_read(path):
            self._begin(path, by_inode, now)

    def _was_read(self, path: str) -> bool:
        """Whether a file begins like one that is known: a copy of it is made, and it will be truncated."""
        with open(open_straight(path), "rb") as file:
            head = file.read(HEAD_BYTES)
        known = (each.head for each in self.sources.all.values() if each.kind == "file" and each.head)
        return any(head.startswith(each) or each.startswith(head) for each in known)

    def _look(self, path: str, by_inode: dict[int, list[Source]], now: float) -> None:
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):
            return
        for source in by_inode.get(found.st_ino, ()):
            if self._is_elsewhere(source, found):
                continue
            if source.number in self.open:
                self.matched[source.number] = now
                return
            if self._continues(source, path, found, now):
                return
        older = _OLDER.search(path)
        if older and (os.path.exists(path[: older.start()]) or self._is_copy(path)):
            return  # an older part of a log that is followed under its own name
        if found.st_size:
            self._begin(path, by_inode, now)

    def _leave_out(self, path: str) -> None:
        """Count a file that there is no room for; of the first one the owner is told."""
        self.left_out += 1
        if self.left_out == 1 and not self._was_crowded:
            amounts = (len(self.open), self.most_open, len(self.sources.all), MAX_SOURCES)
            why = "%d files are open, of %d at most (ulimit -n); %d are known, of %d at most" % amounts
            self.sources.say("error", "does not follow %s, and perhaps others: %s" % (path, why))

    def _is_elsewhere(self, source: Source, found: os.stat_result) -> bool:
        """Whether a source is open and another file of the same inode number: each file system counts its own."""
        followed = self.open.get(source.number)
        return followed is not None and not os.path.samestat(os.fstat(followed.handle), found)

    def _begin(self, path: str, by_inode: dict[int, list[Source]], now: float) -> None:
        """Follow a file that nobody has read. It may have another name already, or soon: that is the same file."""
        if len(self.sources.all) >= MAX_SOURCES or len(self.open) >= self.most_open:
            self._leave_out(path)
            return
        handle = open_straight(path)
        source = self.sources.new("file", path)
        source.inode = os.fstat(handle).st_ino
        by_inode.setdefault(source.inode, []).append(source)
        self.matched[source.number] = now
        self._follow(source, handle)

    def _continues(self, source: Source, path: str, found: os.stat_result, now: float) -> bool:
        """Whether a file is one that was read before; it is open then, if there is anything to read."""
        if found.st_size < source.pos:
            return False
        if len(self.open) >= self.most_open:
            self._leave_out(path)
            return True
        handle = open_straight(path)
        if not source.head or not _holds(handle, source):
            os.close(handle)
            return False
        self.matched[source.number] = now
        if source.finished and found.st_size == source.pos:
            os.close(handle)
            return True
        source.finished = False
        self.orphans.pop(source.number, None)
        self._follow(source, handle)
        return True

    def _follow(self, source: Source, handle: int) -> None:
        self.open[source.number] = Followed(source, handle)

    def _is_copy(self, path: str) -> bool:
        """Whether a file begins like one that is followed: rotation made it, and its own name is not back yet."""
        with contextlib.suppress(OSError), open(open_straight(path), "rb") as file:
            head = file.read(HEAD_BYTES)
            return any(
                each.kind == "file" and len(each.head) >= SURE_BYTES and head.startswith(each.head)
                for each in self.sources.all.values()
            )
        return False

    # ---- reading -----------------------------------------------------------------------------------------------------

    def poll(self) -> bool:
        """Read what is new of every file. Whether anything was. Raises OSError where our own disk takes nothing."""
        now, any_read = time.monotonic(), False
        for number, followed in list(self.open.items()):
            if followed.due > now:
                continue
            if self._poll(followed, now):
                any_read = True
            if number in self.open:
                rests_s = now - followed.source.grew
                followed.due = now + min(REST_EVERY_S, rests_s / 10) if rests_s > 1 else now
        return any_read

    def _poll(self, followed: Followed, now: float) -> bool:
        source, handle = followed.source, followed.handle
        found = os.fstat(handle)
        if found.st_size < source.pos or not _holds(handle, source):
            self._truncated(followed, now)
            return True
        source.seen = max(source.seen, found.st_size)
        source.written_ns = found.st_mtime_ns
        if source.pos == source.begin and found.st_size > source.pos:
            with contextlib.suppress(OSError):  # a writer that goes on at its old place leaves a hole before it
                source.begin = source.pos = source.acked = os.lseek(handle, source.pos, os.SEEK_DATA)
        begin = source.pos
        while source.pos < found.st_size and source.pos - begin < A_TURN_BYTES:
            size = min(READ_BYTES, found.st_size - source.pos)
            if not self.sources.spool.has_room(size):
                break
            data = os.pread(handle, size, source.pos)
            if not data:
                break
            if len(source.head) < HEAD_BYTES and source.pos == source.begin + len(source.head):
                source.head += data[: HEAD_BYTES - len(source.head)]
                self.sources.save(source)
            self.sources.take(source, data)
        self._leave(followed, found, now)
        return source.pos > begin

    def _leave(self, followed: Followed, found: os.stat_result, now: float) -> None:
        """Close a file whose name leads elsewhere, once its writer has had the time to follow."""
        source = followed.source
        try:
            is_here = os.stat(source.path).st_ino == source.inode
        except OSError:
            is_here = False
        if is_here:
            followed.gone = 0.0
            return
        followed.gone = followed.gone or now
        limit_s = RENAMED_S if found.st_nlink else GONE_S
        if source.pos >= found.st_size and now - max(followed.gone, source.grew) > limit_s:
            self._close(followed)
            source.finished = True
            self.sources.save(source)

    def _close(self, followed: Followed) -> None:
        os.close(followed.handle)
        del self.open[followed.source.number]

    def close(self) -> None:
        """Close all files."""
        for followed in list(self.open.values()):
            self._close(followed)

    def _truncated(self, followed: Followed, now: float) -> None:
        """Somebody emptied it: the rest is in a copy, and the file is another one from now on."""
        source, handle = followed.source, followed.handle
        del self.open[source.number]
        self.orphans[source.number] = now + COPY_S
        fresh = self.sources.new("file", source.path)
        fresh.inode = source.inode
        source.inode = 0
        self.matched[fresh.number] = now
        self.sources.save(source)
        self.sources.save(fresh)
        self._follow(fresh, handle)
        self._seek(source, now)

    # ---- what is left of a file that is not there any more -----------------------------------------------------------

    def _seek(self, source: Source, now: float) -> None:
        """Read the rest of a source from where it lies now; give up in time, and say so."""
        for path in _beside(source.path):
            try:
                if self._rest_from(source, path):
                    break
            except _DAMAGED as error:
                if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EAGAIN):
                    return  # of our own disk: the copy is there later, too
        else:
            if now < self.orphans[source.number]:
                return
            lost = max(0, source.seen - source.pos)
            if lost:
                self.sources.lose(source, lost, "it was truncated or removed before it was read, and left no copy")
        self.orphans.pop(source.number, None)
        source.finished = source.number not in self.open
        self.sources.save(source)

    def _rest_from(self, source: Source, path: str) -> bool:
        """Whether a file holds what was read of a source; all behind that is taken then, or will be."""
        if not source.head:
            return False
        if not _PACKED.search(path):
            handle = open_straight(path)
            if not _holds(handle, source):
                os.close(handle)
                return False
            if os.fstat(handle).st_ino == source.inode:
                self._follow(source, handle)  # renamed: its writer may not be done with it
                return True
            with os.fdopen(handle, "rb") as file:
                file.seek(source.pos)
                return self._drain(source, file)
        opener = _PACKERS.get(os.path.splitext(path)[1])
        if opener is None:
            return False
        with open(open_straight(path), "rb") as packed, opener(packed, "rb") as file:
            file.seek(source.begin)
            if file.read(len(source.head)) != source.head:
                return False
            file.seek(source.pos - len(source.tail))
            return file.read(len(source.tail)) == source.tail and self._drain(source, file)

    def _drain(self, source: Source, file: IO[bytes]) -> bool:
        while True:
            data = file.read(READ_BYTES)
            if not data:
                return True
            if not self.sources.spool.has_room(len(data)):
                raise OSError(errno.EAGAIN, "the spool is full")
            self.sources.take(source, data)


def _handles() -> int:
    """How many files this process may have open: as many as whoever started it allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    want = hard if hard != resource.RLIM_INFINITY and hard < 2 * MAX_SOURCES else 2 * MAX_SOURCES
    if soft != resource.RLIM_INFINITY and soft < want:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (want, hard))
            soft = want
    return want if soft == resource.RLIM_INFINITY else soft


def _holds(handle: int, source: Source) -> bool:
    """Whether what was read from a source is what stands in an open file, at both ends of it."""
    if os.pread(handle, len(source.head), source.begin) != source.head:
        return False
    return os.pread(handle, len(source.tail), source.pos - len(source.tail)) == source.tail


def _beside(path: str) -> list[str]:
    """The files that rotation may have made of one, the youngest first."""
    folder, name = os.path.split(path)
    found = []
    for olddir in (folder, os.path.join(folder, "old"), os.path.join(folder, "archive")):
        with contextlib.suppress(OSError):
            for each in os.listdir(olddir):
                if each.startswith(name) and (olddir != folder or each != name):
                    with contextlib.suppress(OSError):
                        whole = os.path.join(olddir, each)
                        found.append((-os.stat(whole).st_mtime_ns, whole))
    return [path for _, path in sorted(found)]

"""What a node collects, and how far each source was read and received: `ID.json` beside its segments.

A number of a source is drawn once and never used again, so that (number, place in the source) names a byte for ever.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import random
import time

from fairlead.base.trust import private_opener, read_file
from fairlead.logs.onnode.spool import Spool

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Collection, Iterator

HEAD_BYTES, TAIL_BYTES = 4096, 64
STATE_BYTES = 1 << 16
KEY_BYTES = (1 << 16, 4 << 20)
"""The last record of a stream is looked for among so many bytes; where it is longer, among so many."""
OWN = "fairlead-collect"
"""The source that holds what the collector says of itself: what was lost, and where."""


class Source:
    """A file, or a stream such as the journal."""

    def __init__(self, number: int, kind: str, path: str) -> None:
        self.number, self.kind, self.path = number, kind, path
        self.inode = 0
        self.begin = 0
        """Where its first byte stands: behind the hole that a writer leaves who goes on at the old place."""
        self.head = b""
        """Its first bytes."""
        self.tail = b""
        """The bytes before `pos`."""
        self.pos = 0
        """How far it was read: what is before it lies in the spool or with the owner."""
        self.acked = 0
        self.seen = 0
        """How large it was when it was last looked at."""
        self.key = ""
        """Of a stream: what stands for the last record before `pos`, as the stream itself counts."""
        self.written_ns = 0
        self.boot_ns = 0
        self.finished = False
        """Nothing more will come."""
        self.grew = time.monotonic()
        self.head_sent = False
        self.saved_acked = -1
        self.saved_tail, self.saved_key = b"", ""
        self.key_of: Callable[[bytes], str] | None = None
        """Of a stream: the key that a line of it stands for."""

    def is_over(self) -> bool:
        """Whether the owner has all there will ever be."""
        return self.finished and self.acked >= self.pos


class Sources:
    """All sources of a node, on its disk."""

    def __init__(self, folder: str, limit: int) -> None:
        self.folder = folder
        self.spool = Spool(folder, limit)
        self.all: dict[int, Source] = {}
        self.lost_bytes = 0
        self.own: Source = self._load()

    def _load(self) -> Source:
        for name in os.listdir(self.folder):
            number, _, rest = name.partition(".")
            if rest != "json" or not number.isdigit():
                continue
            try:
                said = json.loads(read_file(os.path.join(self.folder, name), STATE_BYTES, ours=True))
                source = Source(int(number), str(said["kind"]), str(said["path"]))
                source.inode, source.acked, source.seen = int(said["inode"]), int(said["acked"]), int(said["seen"])
                source.head, source.key = base64.b64decode(said["head"]), str(said["key"])
                source.boot_ns, source.written_ns = int(said["boot_ns"]), int(said["written_ns"])
                source.begin, source.tail = int(said["begin"]), base64.b64decode(said["tail"])
                source.finished = bool(said["finished"])
            except (OSError, ValueError, KeyError, TypeError, RecursionError):
                continue  # damaged: its file is a new one, and read again from its beginning
            source.pos = self.spool.go_on(source.number, max(source.acked, source.begin))
            source.saved_tail, source.saved_key = source.tail, source.key
            if source.pos > source.acked:
                with contextlib.suppress(OSError):
                    source.tail = self._before(source, source.pos, TAIL_BYTES)
            self.all[source.number] = source
        for nameless in list(self.spool.segments):
            if nameless not in self.all:
                self.spool.drop(nameless, self.spool.end(nameless))
        own = next((each for each in self.all.values() if each.kind == "own"), None)
        return own or self.new("own", OWN)

    def new(self, kind: str, path: str) -> Source:
        """A source that was never seen before."""
        source = Source(random.SystemRandom().randrange(1, 1 << 62), kind, path)
        self.all[source.number] = source
        return source

    def take(self, source: Source, data: bytes) -> None:
        """Bytes that were read. Raises OSError where the disk takes none."""
        if source.saved_acked < 0 and not source.pos:
            self.save(source)  # a number that its segments can be known by comes first
        self.spool.append(source.number, source.pos, data)
        source.pos += len(data)
        source.tail = (source.tail + data)[-TAIL_BYTES:]
        source.seen = max(source.seen, source.pos)
        source.grew = time.monotonic()

    def lose(self, source: Source, num_bytes: int, why: str) -> None:
        """Say what is gone for good: in a line of its own, which is collected like any other."""
        self.lost_bytes += num_bytes
        self.say("error", "lost at least %d bytes of %s: %s" % (num_bytes, source.path, why))

    def say(self, level: str, text: str) -> None:
        """A line of the collector's own."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        line = "%s fairlead-collect %s: %s\n" % (stamp, level, text.encode("utf-8", "backslashreplace").decode())
        self.own.written_ns = time.time_ns()
        with contextlib.suppress(OSError):
            self.take(self.own, line.replace("\n", " ").rstrip().encode() + b"\n")

    def acknowledge(self, source: Source, end: int) -> None:
        """The owner has everything before `end`."""
        if not source.acked < end <= source.pos:
            return
        source.acked = end
        parts = self.spool.segments.get(source.number, [])
        if parts and (len(parts) > 1 or end - parts[0][0] >= SEGMENT_KEPT) and parts[0][0] + parts[0][1] <= end:
            self.forget(source)

    def forget(self, source: Source) -> None:
        """Remove from the disk what the owner has; how far that is stands there first."""
        with contextlib.suppress(OSError):
            self.save(source)
            self.spool.drop(source.number, source.acked)

    def tidy(self, idle_s: float, needed: Collection[int] = ()) -> None:
        """Remove what nobody needs: what was received of sources that rest; sources that are over and not `needed`."""
        for source in list(self.all.values()):
            if source.is_over() and source.number not in needed:
                with contextlib.suppress(OSError):
                    self.save(source)
                    self.spool.drop(source.number, source.pos)
                    os.unlink(self._path(source))
                    del self.all[source.number]
            elif source.acked != source.saved_acked and time.monotonic() - source.grew > idle_s:
                self.forget(source)

    def waiting(self) -> Iterator[Source]:
        """Sources of which the owner lacks something."""
        return (each for each in list(self.all.values()) if each.acked < each.pos)

    def save(self, source: Source) -> None:
        """Its state, whole and on the disk. Raises OSError.

        What waits is on the disk when the kernel likes, so the state is that of the last byte that the owner has.
        """
        if source.acked == source.pos:
            tail, key = source.tail, source.key
        else:
            tail = self._before(source, source.acked, TAIL_BYTES) or source.saved_tail
            key = self._key_before(source, source.acked) or source.saved_key
        said: dict[str, Any] = {
            "kind": source.kind, "path": source.path, "inode": source.inode, "begin": source.begin,
            "acked": source.acked, "seen": source.seen, "head": base64.b64encode(source.head).decode(),
            "tail": base64.b64encode(tail).decode(), "key": key, "boot_ns": source.boot_ns,
            "written_ns": source.written_ns, "finished": source.finished,
        }  # fmt: skip
        write_whole(self._path(source), json.dumps(said).encode())
        source.saved_acked, source.saved_tail, source.saved_key = source.acked, tail, key

    def _before(self, source: Source, end: int, limit: int) -> bytes:
        """Up to `limit` bytes that wait, or are kept, right before `end`."""
        begin = max(source.begin, end - limit)
        start, data = self.spool.read(source.number, begin, end - begin)
        return data if start + len(data) == end else b""

    def _key_before(self, source: Source, end: int) -> str:
        if source.key_of is None:
            return ""
        for limit in KEY_BYTES:
            for line in reversed((b"\n" + self._before(source, end, limit)).splitlines()):
                if key := source.key_of(line):
                    return key
        return ""

    def _path(self, source: Source) -> str:
        return os.path.join(self.folder, "%d.json" % source.number)


SEGMENT_KEPT = 1 << 16
"""A segment of fewer bytes stays though all of it was received: it is added to, until the source rests."""


def write_whole(path: str, data: bytes) -> None:
    """Whole or not at all, for the caller alone, and there after a loss of power, too. Raises OSError."""
    fresh = path + ".new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(fresh)
    handle = private_opener(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        while data:
            data = data[os.write(handle, data) :]
        os.fsync(handle)
    finally:
        os.close(handle)
    os.replace(fresh, path)
    folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)

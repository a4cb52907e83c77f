"""Sources that are no files: the systemd journal and the kernel's own log. Each counts its records by itself.

The journal's cursor and the kernel's sequence number stand in every record, so the last record that was kept says where
to go on.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import subprocess
import time

from fairlead.logs.onnode.sources import Source, Sources

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

RECORD_BYTES = 8192
"""The most that one read of /dev/kmsg gives (Linux, kernel/printk/printk.c: PRINTKRB_RECORD_MAX and its prefix)."""
PIPE_BYTES = 1 << 18
AGAIN_S = 5.0
LAST_BYTES = 4 << 20
_FIELDS = "MESSAGE,PRIORITY,_HOSTNAME,SYSLOG_IDENTIFIER,_PID,_SYSTEMD_UNIT,_BOOT_ID"


def last_lines(sources: Sources, source: Source) -> list[bytes]:
    """The last whole lines of a stream that wait; what a kill left unfinished is forgotten."""
    begin = max(source.acked, source.pos - LAST_BYTES)
    at, data = sources.spool.read(source.number, begin, LAST_BYTES)
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        sources.spool.cut(source.number, at + whole)
        source.pos = at + whole
    return data[:whole].splitlines()


def boot_ns() -> int:
    """When this machine started, by its clock of now."""
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/uptime") as file:
        return time.time_ns() - int(float(file.read().split()[0]) * 1e9)
    return 0


class Kmsg:
    """/dev/kmsg: `priority,sequence,microseconds,flags;text`, one a read (Documentation/ABI/testing/dev-kmsg)."""

    def __init__(self, sources: Sources, path: str, boot: str) -> None:
        """Raises OSError."""
        self.sources, self.num_lost = sources, 0
        self.handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        name = "%s#%s" % (path, boot)
        found = [each for each in sources.all.values() if each.kind == "kmsg" and each.path == name]
        for each in sources.all.values():
            each.finished = each.finished or (each.kind == "kmsg" and each.path != name)
        self.source = found[0] if found else sources.new("kmsg", name)
        self.source.boot_ns = self.source.boot_ns or boot_ns()
        self.source.key_of = _key_of
        lines = [line for line in last_lines(sources, self.source) if line[:1].isdigit()]
        self.last = _sequence(lines[-1]) if lines else int(self.source.key or -1)

    def poll(self) -> bool:
        """Read what is new. Raises OSError where our own disk takes nothing."""
        parts: list[bytes] = []
        last, overrun = self.last, False
        while len(parts) < 1000 and self.sources.spool.has_room(len(parts) * RECORD_BYTES + RECORD_BYTES):
            try:
                record = os.read(self.handle, RECORD_BYTES)
            except OSError as error:
                if error.errno == errno.EPIPE:  # the ring came round before we did
                    overrun = True
                    continue
                break
            number = _sequence(record)
            if number <= last:
                continue
            if (overrun or last >= 0) and number > last + 1:
                self.num_lost += number - last - 1
                self.sources.say("error", "lost %d records of the kernel: overwritten before they were read" % (
                    number - last - 1))  # fmt: skip
            last, overrun = number, False
            parts.append(record if record.endswith(b"\n") else record + b"\n")
        if parts:
            self.source.written_ns = time.time_ns()
            try:
                self.sources.take(self.source, b"".join(parts))
            except OSError:
                os.lseek(self.handle, 0, os.SEEK_SET)  # begins anew; what we have is known by its number
                raise
            self.last, self.source.key = last, str(last)
        return bool(parts)

    def close(self) -> None:
        """Read no more."""
        os.close(self.handle)


def _sequence(record: bytes) -> int:
    parts = record[:64].split(b",", 2)
    return int(parts[1]) if len(parts) > 2 and parts[1].isdigit() else -1


def _key_of(line: bytes) -> str:
    number = _sequence(line) if line[:1].isdigit() else -1
    return str(number) if number >= 0 else ""


class Journal:
    """`journalctl -o json -f`, from the cursor of the last record that was kept."""

    def __init__(self, sources: Sources, words: list[str]) -> None:
        self.sources, self.words = sources, words
        found = [each for each in sources.all.values() if each.kind == "journal"]
        self.source = found[0] if found else sources.new("journal", "journal.json")
        self.source.key_of = _cursor
        lines = last_lines(sources, self.source)
        if lines:
            self.source.key = _cursor(lines[-1]) or self.source.key
        self.rest = b""
        self.child: subprocess.Popen[bytes] | None = None
        self.due = 0.0

    def poll(self) -> bool:
        """Read what is new. Raises OSError where our own disk takes nothing."""
        if self.child is None and not self._begin():
            return False
        if not self.sources.spool.has_room(PIPE_BYTES + len(self.rest)):
            return False  # the pipe fills, and journalctl waits
        child: Any = self.child
        try:
            data = os.read(child.stdout.fileno(), PIPE_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self.close()
            return False
        self.rest += data
        whole = self.rest.rfind(b"\n") + 1
        if whole:
            taken, self.rest = self.rest[:whole], self.rest[whole:]
            self.source.written_ns = time.time_ns()
            try:
                self.sources.take(self.source, taken)
            except OSError:
                self.close()  # begins again behind the last record that is kept
                raise
            self.source.key = _cursor(taken[:-1].rpartition(b"\n")[2]) or self.source.key
        return True

    def _begin(self) -> bool:
        if time.monotonic() < self.due:
            return False
        self.due = time.monotonic() + AGAIN_S
        where = ["--after-cursor=" + self.source.key] if self.source.key else ["-b"]
        words = [*self.words, "-o", "json", "-f", "-n", "all", "--no-pager", "--output-fields=" + _FIELDS, *where]
        try:
            self.child = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                          stderr=subprocess.DEVNULL)  # fmt: skip
        except OSError:
            return False
        assert self.child.stdout is not None
        os.set_blocking(self.child.stdout.fileno(), False)
        return True

    def close(self) -> None:
        """End the reader; what it had said by halves comes again."""
        self.rest = b""
        child, self.child = self.child, None
        if child is not None:
            child.kill()
            assert child.stdout is not None
            child.stdout.close()
            child.wait()


def _cursor(line: bytes) -> str:
    try:
        found = json.loads(line)
        return str(found["__CURSOR"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""

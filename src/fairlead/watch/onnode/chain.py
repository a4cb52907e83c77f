"""Audit records: one JSON object a line, each with the SHA-256 of the line before it; appended, synced, rotated.

    audit.jsonl                  the newest records
    audit-000000000000.jsonl     older ones, by the number of their first record

A changed, removed or inserted line breaks the chain at the next one. What it cannot show by itself: that the end was
cut off, or that all of it was written anew by somebody with the rights to. For that, note the head (number and hash of
the last line) elsewhere; `check` compares. A kill in the middle of a line leaves a torn end: it is cut off at the next
start, and the next record says so.
"""

from __future__ import annotations

import hashlib
import json
import os
import re

from fairlead.base.trust import private_opener

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

NEWEST = "audit.jsonl"
OLDER = re.compile(r"audit-(\d{12})\.jsonl\Z")
FIRST_HASH = "0" * 64
MAX_RECORD = 1 << 16
ROTATE_BYTES, KEEP_FILES = 8 << 20, 16
"""At most 136 MiB."""


def hash_of(line: bytes) -> str:
    """Of a record: its line without the line end."""
    return hashlib.sha256(line).hexdigest()


def record_of(line: bytes) -> dict[str, Any]:
    """A line as a record. Raises ValueError for one that is none."""
    try:
        found = json.loads(line)
    except RecursionError:
        raise ValueError("it is too deep") from None
    if not (isinstance(found, dict) and type(found.get("n")) is int and isinstance(found.get("prev"), str)):
        raise ValueError("it has no number, or no hash of the one before")
    return found


def files_in(folder: str) -> list[str]:
    """Names of the chain's files, oldest first."""
    names = os.listdir(folder)
    return sorted(name for name in names if OLDER.match(name)) + [name for name in names if name == NEWEST]


class Chain:
    """The chain in a folder of our own, to write to."""

    def __init__(self, folder: str, *, rotate_bytes: int = ROTATE_BYTES, keep_files: int = KEEP_FILES) -> None:
        """Goes on where the last writer ended. Raises OSError."""
        self.folder, self.rotate_bytes, self.keep_files = folder, rotate_bytes, keep_files
        self.path = os.path.join(folder, NEWEST)
        self.next, self.prev = 0, FIRST_HASH
        self.torn = self._mend()
        """Bytes of a line without its end, which were cut off."""
        self.handle = private_opener(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.size = os.fstat(self.handle).st_size
        self.first = self.next if not self.size else _first_number(self.path, self.next)

    def close(self) -> None:
        """Let go of the file."""
        os.close(self.handle)

    @property
    def head(self) -> tuple[int, str]:
        """(number, hash) of the last record; (-1, zeros) where there is none."""
        return self.next - 1, self.prev

    def append(self, records: list[dict[str, Any]]) -> None:
        """Add records, each `{"kind": ..., ...}`; they are on the disk when this returns. Raises OSError.

        All or nothing: where the disk is full, what it took is taken back.
        """
        if not records:
            return
        number, prev, parts = self.next, self.prev, []
        for record in records:
            line = _line({"n": number, "prev": prev, **record})
            if len(line) > MAX_RECORD:
                line = _line({"n": number, "prev": prev, "kind": record["kind"], "t": record.get("t", 0),
                              "left_out": "the record has %d bytes" % len(line)})  # fmt: skip
            parts.append(line + b"\n")
            number, prev = number + 1, hash_of(line)
        data = b"".join(parts)
        done = 0
        try:
            while done < len(data):
                done += os.write(self.handle, data[done:])
            os.fsync(self.handle)
        except OSError:
            os.ftruncate(self.handle, self.size)
            raise
        self.size += len(data)
        self.next, self.prev = number, prev
        if self.size > self.rotate_bytes:
            self._rotate()

    def _rotate(self) -> None:
        os.close(self.handle)
        os.rename(self.path, os.path.join(self.folder, "audit-%012d.jsonl" % self.first))
        self.handle = private_opener(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.size, self.first = 0, self.next
        for name in files_in(self.folder)[: -self.keep_files - 1]:
            os.unlink(os.path.join(self.folder, name))
        folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(folder)
        os.close(folder)

    def _mend(self) -> int:
        """Find the end of the chain; cut off what a kill tore. Returns how many bytes that were."""
        torn = 0
        for name in reversed(files_in(self.folder)):
            path = os.path.join(self.folder, name)
            data = _tail(path)
            whole = data.rfind(b"\n") + 1
            if whole < len(data):
                torn += len(data) - whole
                with open(path, "r+b") as file:
                    file.truncate(os.path.getsize(path) - (len(data) - whole))
            lines = data[:whole].split(b"\n")[:-1]
            if lines:
                self.prev = hash_of(lines[-1])
                try:
                    self.next = record_of(lines[-1])["n"] + 1
                except ValueError:
                    self.next = 0  # somebody wrote here; `check` names the place
                break
            # an empty file: it was begun, and the machine stopped; the end of the chain is in the one before
        return torn


def _line(record: dict[str, Any]) -> bytes:
    return json.dumps(record, separators=(",", ":"), ensure_ascii=True).encode("ascii")


def _tail(path: str) -> bytes:
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 4 * MAX_RECORD))
        return file.read()


def _first_number(path: str, fallback: int) -> int:
    try:
        with open(path, "rb") as file:
            number = record_of(file.readline(MAX_RECORD + 1).rstrip(b"\n"))["n"]
            return int(number)
    except ValueError:
        return fallback


def check(folder: str, heads: dict[int, str] | None = None) -> dict[str, Any]:
    """Follow the chain: `first`, `last`, `head`, `num`, and where it breaks: `broken` {file, line, n, why}.

    `heads` are hashes of records noted elsewhere, by number: a chain that ends before one of them was cut.
    Raises OSError.
    """
    left = dict(heads or {})
    found: dict[str, Any] = {"num": 0, "first": -1, "last": -1, "head": FIRST_HASH}
    expected, prev = -1, ""
    for name, number, line, is_whole in _lines(folder):
        where = {"file": name, "line": number}
        why = ""
        try:
            record = record_of(line)
        except ValueError as error:
            is_end = not is_whole and name == NEWEST
            why = "a line without its end: a kill tore it" if is_end else "this is no record: %s" % error
            if is_end:
                found["torn"] = len(line)
                break
            found["broken"] = {**where, "n": expected, "why": why}
            return found
        n = record["n"]
        if expected >= 0 and n != expected:
            why = "record %d follows record %d" % (n, expected - 1)
        elif expected >= 0 and record["prev"] != prev:
            why = "record %d was changed after it was written, or this one was: their hashes do not fit" % (n - 1)
        elif expected < 0 and n == 0 and record["prev"] != FIRST_HASH:
            why = "the first record has one before it"
        hashed = hash_of(line)
        if not why and n in left and left.pop(n) != hashed:
            why = "record %d is not the one that was noted elsewhere" % n
        if why:
            found["broken"] = {**where, "n": n, "why": why}
            return found
        found["num"] += 1
        found["first"] = n if found["first"] < 0 else found["first"]
        found["last"], found["head"], expected, prev = n, hashed, n + 1, hashed
    missing = [n for n in left if n >= max(found["first"], 0) and n > found["last"]]
    if missing:
        why = "record %d was noted elsewhere, and the chain ends before it" % max(missing)
        found["broken"] = {"file": NEWEST, "line": 0, "n": max(missing), "why": why}
    return found


def _lines(folder: str) -> Iterator[tuple[str, int, bytes, bool]]:
    """(file, line number, line, whether it has its end) of all records."""
    for name in files_in(folder):
        with open(os.path.join(folder, name), "rb") as file:
            number = 0
            while True:
                line = file.readline(2 * MAX_RECORD)
                if not line:
                    break
                number += 1
                yield name, number, line.rstrip(b"\n"), line.endswith(b"\n")

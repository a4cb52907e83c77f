"""Which chunks a node has before anything moves: published by an earlier run and not touched since, or in the journal
of one that was stopped. Python 3.9.
"""

from __future__ import annotations

import os

from fairlead.weights.onnode.layout import bytes_of
from fairlead.weights.onnode.place import DIGEST_BYTES, read_record, stage_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from fairlead.weights.onnode.disk import Disk


def present(disk: Disk) -> bytearray:
    """Flags of the chunks that are here: published by an earlier run and not touched since, or in the journal.

    A file with `trust` is also left alone where it has the right size, whoever wrote it: its chunks are in `skips`.
    They are never passed on, as nobody knows what is in them. Of one with `again`, only the journal counts.
    """
    has = bytearray(len(disk.chunks))
    record = read_record(disk.own)
    same = record.get("algorithm") == disk.algorithm and record.get("chunk_bytes") == disk.chunk_bytes
    known = record.get("files", {}) if same else {}
    kept: dict[int, list[bytes]] = {}
    for number, file in enumerate(disk.files):
        found, was = disk.stat(file["path"]), known.get(file["path"])
        if found is None or found.st_size != file["size"] or file.get("again"):
            continue
        if was and was["mtime_ns"] == found.st_mtime_ns and is_same(file, was):
            digests = bytes.fromhex(was["digests"])
            kept[number] = [digests[i : i + DIGEST_BYTES] for i in range(0, len(digests), DIGEST_BYTES)]
            disk.published[number] = 1
    for number, chunk in enumerate(disk.chunks):
        if not all(file in kept for file, _, _ in chunk):
            continue
        if len(chunk) == 1:
            disk.known(number, kept[chunk[0][0]][disk.place_in_file[number]], None)
        else:
            parts = [kept[one][0] for one, _, _ in chunk]
            disk.known(number, disk.digest_of(b"".join(parts)), parts)
        has[number] = 1
    for number, file in enumerate(disk.files):
        found = disk.stat(file["path"]) if file.get("trust") else None
        if found is not None and found.st_size == file["size"]:
            disk.trusted[number] = disk.published[number] = 1
        elif not all(has[c] for c in disk.of_file[number]):  # of a pack with one new file, all are fetched
            disk.published[number] = 0
    for number, chunk in enumerate(disk.chunks):
        disk.skips[number] = not has[number] and all(disk.trusted[file] for file, _, _ in chunk)
    for number, digest, parts_of in _journaled(disk):
        if not has[number] and not disk.skips[number]:
            has[number] = 1
            disk.known(number, digest, parts_of)
    for number, flag in enumerate(has):
        if flag or disk.skips[number]:
            disk.written(number)
    return has


def _journaled(disk: Disk) -> Iterator[tuple[int, bytes, list[bytes] | None]]:
    """The chunks of the journal that are whole in their files."""
    for number, digest in disk.journal.latest(len(disk.chunks)).items():
        chunk = disk.chunks[number]
        try:
            if any(disk.published[file] for file, _, _ in chunk):  # it has its name already
                found = [os.stat(disk.files[f]["path"], dir_fd=disk.top, follow_symlinks=False) for f, _, _ in chunk]
            else:
                found = [os.stat(stage_file(file), dir_fd=disk.stage, follow_symlinks=False) for file, _, _ in chunk]
        except OSError:
            continue
        if any(stat.st_size < at_ + length for stat, (_, at_, length) in zip(found, chunk)):
            continue
        parts = None
        if len(chunk) > 1:  # the journal has the digest of all; what each file's is, is in the files
            data_of = bytearray(bytes_of(chunk))
            disk.read(number, memoryview(data_of))
            digest_now, parts = disk.digest_chunk(number, memoryview(data_of))
            if digest_now != digest:
                continue
        yield number, digest, parts


def is_same(file: dict[str, Any], was: dict[str, Any]) -> bool:
    """Whether what is wanted is what was published: by the digests that a manifest says, without one by its tag."""
    if file.get("lengths") != was.get("lengths"):
        return False
    if "digests" in file:
        return bool(file["digests"] == was["digests"])
    return bool(file["tag"]) and file["tag"] == was["tag"]

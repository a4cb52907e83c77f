"""Chunks that need not be moved: their digests are known beforehand, and the bytes lie on this node already, in an
older version of the file or in another file. Python 3.9.

Which digests a version will have is what its publisher's manifest says (`manifest.py`). Every chunk that is put
together here is hashed before it counts, so a file that somebody has touched costs a download and nothing else.
"""

from __future__ import annotations

import os
import time

from fairlead.base.trust import beneath
from fairlead.weights.onnode.buffers import Buffers
from fairlead.weights.onnode.layout import bytes_of
from fairlead.weights.onnode.place import DIGEST_BYTES, read_record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fairlead.weights.onnode.disk import Disk

    Place = tuple[str, int, int]

READING = 8
"""Chunks that are read, hashed and written at a time: each of the three leaves the other threads alone."""
BATCH_BYTES = 256 << 20
"""Between two lines in the journal."""
ALIVE_S = 1.0


def adopt(disk: Disk, has: bytearray, *, is_dry: bool, alive: Callable[[], None]) -> int:
    """Put together what can be, and set its flags in `has`; returns the bytes. `alive` is called now and then.

    A dry run writes nothing, and believes the record. Raises Unusable where the disk does not take it.
    """
    numbers = [n for n, digest in enumerate(disk.wanted) if digest and not has[n] and not disk.skips[n]]
    if not numbers:
        return 0
    places, known = _places(disk)
    there = {file["path"]: found for file in disk.files if (found := disk.stat(file["path"])) is not None}

    def candidates(number: int) -> Iterator[list[Place]]:
        """Where each piece of the chunk may lie: by its digest; where nobody knows a file's, at its own place."""
        for (file, at, length), digest in zip(disk.chunks[number], disk.wanted_parts(number)):
            path = disk.files[file]["path"]
            found = [places[digest]] if digest in places else []
            if path in there and path not in known and at + length <= there[path].st_size and not is_dry:
                found.append((path, at, length))
            yield found

    def put(number: int) -> None:
        (buffer,) = buffers.take()  # aligned, as direct writes want it
        try:
            data = memoryview(buffer)[: bytes_of(disk.chunks[number])]
            at = 0
            for (_, _, length), found in zip(disk.chunks[number], candidates(number)):
                if not any(_read(disk, place, data[at : at + length]) for place in found):
                    return
                at += length
            digest, parts = disk.digest_chunk(number, data)
            if digest == disk.wanted[number]:
                disk.write(number, data, digest, parts)
        finally:
            buffers.give(buffer)

    numbers = [n for n in numbers if all(candidates(n))]
    if is_dry:
        for number in numbers:
            has[number] = 1
        return sum(bytes_of(disk.chunks[n]) for n in numbers)
    told, adopted, buffers = time.monotonic(), 0, Buffers(READING, disk.chunk_bytes)
    batch = max(1, BATCH_BYTES // disk.chunk_bytes)
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(READING) as pool:
        for start in range(0, len(numbers), batch):
            for _ in pool.map(put, numbers[start : start + batch]):
                if time.monotonic() - told >= ALIVE_S:
                    told = time.monotonic()
                    alive()
            for number in disk.sync():
                has[number] = 1
                adopted += bytes_of(disk.chunks[number])
    return adopted


def _places(disk: Disk) -> tuple[dict[bytes, Place], set[str]]:
    """(digest -> where such bytes were published, names of files whose digests are all in it)."""
    record = read_record(disk.own)
    places: dict[bytes, Place] = {}
    known: set[str] = set()
    if record.get("algorithm") != disk.algorithm:
        return places, known
    for path, file in record["files"].items():
        found = disk.stat(path)
        if found is None or (found.st_size, found.st_mtime_ns) != (file["size"], file["mtime_ns"]):
            continue
        known.add(path)
        digests, at = bytes.fromhex(file["digests"]), 0
        for i in range(len(digests) // DIGEST_BYTES):
            length = file["lengths"][i] if "lengths" in file else min(record["chunk_bytes"], file["size"] - at)
            places[digests[i * DIGEST_BYTES : (i + 1) * DIGEST_BYTES]] = (path, at, length)
            at += length
    return places, known


def _read(disk: Disk, place: Place, into: memoryview) -> bool:
    """Whether so many bytes could be read there."""
    path, at, length = place
    if length != len(into):
        return False
    try:
        with beneath(disk.top, path) as (folder, name):
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            done = 0
            while done < length and (num := os.preadv(fd, [into[done:]], at + done)):
                done += num
        finally:
            os.close(fd)
    except (OSError, ValueError):
        return False
    return done == length

"""The journal of a stage: which chunks are on the disk, with their digests. Python 3.9.

An entry is written after its chunk is on the disk for good, and carries a CRC: one that a crash cut is left out.
"""

from __future__ import annotations

import os
import struct
import zlib

from fairlead.weights.onnode.place import DIGEST_BYTES, write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

ENTRY = struct.Struct(">I32sI")
"""Chunk, digest, CRC-32 of both."""
DROPPED = bytes(DIGEST_BYTES)
"""The digest of a chunk that is not here after all."""


class Journal:
    """One file, added to alone."""

    def __init__(self, folder: int) -> None:
        self.fd = os.open("journal", os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600, dir_fd=folder)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever written."""
        return not os.fstat(self.fd).st_size

    def add(self, entries: Iterable[tuple[int, bytes]]) -> None:
        """These chunks have these digests, for good. Raises OSError."""
        lines = []
        for number, digest in entries:
            head = ENTRY.pack(number, digest, 0)[:-4]
            lines.append(head + zlib.crc32(head).to_bytes(4, "big"))
        write_all(self.fd, memoryview(b"".join(lines)), None)
        os.fdatasync(self.fd)

    def latest(self, num_chunks: int) -> dict[int, bytes]:
        """Chunk -> digest, the last word on each."""
        data = os.pread(self.fd, ENTRY.size * (4 * num_chunks + 1024), 0)
        found: dict[int, bytes] = {}
        for at in range(0, len(data) - ENTRY.size + 1, ENTRY.size):
            number, digest, crc = ENTRY.unpack_from(data, at)
            if zlib.crc32(data[at : at + ENTRY.size - 4]) == crc and number < num_chunks:
                found[number] = digest
        return {number: digest for number, digest in found.items() if digest != DROPPED}

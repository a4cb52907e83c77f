"""A file of slots on disk, each with p|m|v of one block and a page that says which and of what version.

There is one slot more than blocks: what is written goes to the spare one, and counts once its first page does.

Must not know: what is computed, when.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import torch

from fairlead.train.blobs import PAGE, BlobFile, memory_of, pages
from fairlead.train.layout import Block
from fairlead.train.memory import arena

_HOST = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Header:
    """The first page of a slot."""

    block: int
    version: int
    digests: tuple[int, int, int]

    def page(self) -> bytes:
        """As it is written."""
        body = json.dumps([self.block, self.version, self.digests]).encode()
        return (zlib.crc32(body).to_bytes(4, "little") + body).ljust(PAGE, b"\0")

    @classmethod
    def read(cls, page: bytes) -> Header | None:
        """None where nothing whole was written."""
        body = page[4:].rstrip(b"\0")
        if not body or zlib.crc32(body).to_bytes(4, "little") != page[:4]:
            return None
        block, version, digests = json.loads(body)
        return cls(block, version, tuple(digests))


class Slots:
    """A file of slots of one size, one more than blocks."""

    def __init__(self, path: Path, blocks: Sequence[Block], dtype: torch.dtype, *, create: bool) -> None:
        widest = max((block.trained for block in blocks), default=0)
        self.dtypes = (dtype, torch.float32, torch.float32)
        """Of p, m and v."""
        strides = [pages(kind.itemsize * widest) for kind in self.dtypes]
        self.starts = [PAGE + sum(strides[:kind]) for kind in range(3)]
        self.size = PAGE + sum(strides)
        self.num = len(blocks) + 1
        self.file = BlobFile(path, self.size * self.num, create=create)
        self.spare = len(blocks)
        self.under_way: Future[None] | None = None
        """The end of the last update: until then there is no spare slot."""

    def free(self) -> int:
        """The spare slot, once there is one. Raises what went wrong with the last update."""
        if self.under_way is not None:
            self.under_way.result()
            self.under_way = None
        return self.spare

    def at(self, slot: int, kind: int, begin: int) -> int:
        """The offset of an element of p, m or v (0, 1, 2)."""
        return slot * self.size + self.starts[kind] + self.dtypes[kind].itemsize * begin

    def headers(self) -> Iterator[tuple[int, Header]]:
        """Slots that hold a block, and which."""
        page = arena(PAGE, torch.uint8, _HOST)
        for slot in range(self.num):
            self.file.read(memory_of(page), slot * self.size)
            header = Header.read(bytes(memory_of(page)))
            if header is not None:
                yield slot, header

    def seal(self, slot: int, header: Header) -> None:
        """The header goes after what it speaks of."""
        self.file.sync()
        page = arena(PAGE, torch.uint8, _HOST)
        memory_of(page)[:] = header.page()
        self.file.write(memory_of(page), slot * self.size)
        self.file.sync()

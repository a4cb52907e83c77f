"""A batch of a node, from bytes to records: typed and bounded here, once. Pure.

A batch is a line of JSON and the bytes of its sources one after the other, all of it packed with zlib. What a node says
is of itself alone: its sources are numbered under its own name, so no node can touch what another sent.

Must not know: stores, sockets.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from fairlead.logs import reading
from fairlead.logs.dcr import Rule, table_of
from fairlead.logs.eventtime import Clock
from fairlead.logs.format import Format, format_of
from fairlead.logs.parse import MAX_LINE, Context, Raw, Record, records
from fairlead.records.border import Border, Breach, Count, Text

PACKED_BYTES, BATCH_BYTES = 8 << 20, 12 << 20
"""The most that a request, and what is in it, may have: twice what a collector sends."""
HEADER_BYTES = 4 << 20
HEAD_LINES = 50
Number = Annotated[int, Meta(ge=1, lt=1 << 62)]


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """Some bytes of a source."""

    id: Number
    path: Text
    start: Count
    end: Count
    size: Annotated[int, Meta(ge=0, le=BATCH_BYTES)]
    cut: Count = 0
    """Bytes of its one line that were left out."""
    settled: bool = False
    """Whether its last record has no more lines."""
    whole: bool = False
    """Whether its last line has no more bytes."""
    written_ns: Annotated[int, Meta(ge=0, le=1 << 62)] = 0
    boot_ns: Annotated[int, Meta(ge=0, le=1 << 62)] = 0
    inode: Count = 0
    head: Annotated[str, Meta(max_length=8192)] = ""
    """Its first bytes, as base64."""


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """Who sends, and what follows."""

    node: Annotated[str, Meta(min_length=1, max_length=253)]
    sources: Annotated[list[Part], Meta(max_length=4096)]
    lost: Count = 0
    """Bytes that were gone before they could be read, since the collector was started."""


HEADER = Border(Header, "the head of a batch", max_bytes=HEADER_BYTES)


def unpacked(body: bytes) -> tuple[Header, list[bytes]]:
    """What a batch holds. Raises Breach."""
    unpack = zlib.decompressobj()
    try:
        data = unpack.decompress(body, BATCH_BYTES)
    except zlib.error as error:
        raise Breach(f"a batch that is not packed ({error})") from None
    if not unpack.eof:
        raise Breach(f"a batch that is cut off, or has more than {BATCH_BYTES} bytes")
    first, newline, rest = data.partition(b"\n")
    if not newline:
        raise Breach("a batch without a head", data[:100])
    header = HEADER(first)
    if sum(part.size for part in header.sources) != len(rest):
        raise Breach("a batch whose parts do not add up")
    found, at = [], 0
    for part in header.sources:
        over = part.end - part.start - part.size - part.cut
        if over not in ((0, 1) if part.cut else (0,)) or (part.cut and part.size != MAX_LINE):
            raise Breach("a part that does not stand where it says")
        found.append(rest[at : at + part.size])
        at += part.size
    return header, found


def file_number(node: str, number: int) -> int:
    """The number of a node's source in the store."""
    said = hashlib.blake2b(f"{number}:{node}".encode("utf-8", "surrogateescape"), digest_size=8).digest()
    return int.from_bytes(said, "big") >> 2


@dataclass(frozen=True, slots=True)
class Source:
    """What is known of a source."""

    path: str
    form: Format
    table: str
    head: bytes

    @classmethod
    def of(cls, part: Part, rules: tuple[Rule, ...]) -> Source:
        """By what its node says of it. Raises Breach."""
        try:
            head = base64.b64decode(part.head, validate=True)
        except binascii.Error:
            raise Breach("a head that is no base64", part.head) from None
        lines = [line for line in _texts(head) if line.strip()]
        form = format_of(Path(part.path), lines)
        return cls(part.path, form, table_of(Path(part.path), rules) or form.table, head)


def _texts(head: bytes) -> list[str]:
    return [line.decode("utf-8", "replace") for line in head.split(b"\n")[:HEAD_LINES]]


class Taken(NamedTuple):
    """The new records of a part, and how far its node needs to keep nothing."""

    records: list[Record]
    end: int


def taken(part: Part, data: bytes, source: Source, context: tuple[str, Clock], reached: tuple[int, int]) -> Taken:
    """What a part brings beyond what was `reached` (end, time of the last record that had one)."""
    node, clock = context
    end, last_ns = reached
    if part.end <= end:
        return Taken([], end)
    skip = 0 if part.cut else max(0, end - part.start)
    start = part.start + skip
    raws = [Raw(part.start, part.end, data, part.cut)] if part.cut else list(_raws(data[skip:], start, part.whole))
    heads = _texts(source.head)
    told = Context(clock, node, heads[0] if heads else "", last_ns)
    found = list(records(raws, source.form, told))
    reaches = raws[-1].end if raws else start
    if found and source.form.compiled.groups and not (part.settled or part.whole):
        reaches = found.pop().offset
    return Taken(found, reaches)


def as_of(node: str, found: list[Record]) -> None:
    """Make records the node's that sent them; the host that a line of syslog or the journal names stays beside it."""
    for record in found:
        if record.node != node:
            if record.node.partition(".")[0].lower() != node.partition(".")[0].lower():
                record.fields["SaidHost"] = record.node
            record.node = node


def _raws(data: bytes, start: int, whole: bool) -> Iterator[Raw]:  # noqa: FBT001
    for raw in reading.lines(io.BytesIO(data), 0, [], whole=whole):
        yield Raw(raw.offset + start, raw.end + start, raw.data, raw.cut)

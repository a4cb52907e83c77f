"""How a set of files is cut into chunks, alike on the control side and on every node. Pure; Python 3.9.

A chunk is what is hashed, sent, written and counted as one. A file of a chunk or more has chunks of its own, so that
any of them is read with one range; smaller files are packed, many to a chunk, so that 20,000 of them are a few hundred
messages. Runs are neighbouring chunks of one file: what one request asks the origin for.
"""

from __future__ import annotations

import itertools

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    Piece = tuple[int, int, int]
    Pieces = list[Piece]

KIB, MIB = 1 << 10, 1 << 20
MIN_CHUNK, USUAL_CHUNK, MAX_CHUNK = 256 * KIB, 4 * MIB, 64 * MIB
MAX_CHUNKS = 1 << 20
"""Of one run: what is known of each chunk on each node is a few bytes. At 64 MiB that is 64 TiB."""
REQUEST_BYTES = 16 * MIB
"""What one request asks the origin for at most."""
MAX_PACKED = 512
"""Files of one chunk."""


def chunk_bytes_for(total: int) -> int:
    """A power of two: about a thousand chunks, so that the last one's way over all nodes is short beside the whole;
    never so small that a message costs more than its bytes, 4 MiB where there is enough, more only where they would be
    too many.

    It depends on the data alone: a run that goes on with other nodes finds the chunks of the run before.

    >>> [chunk_bytes_for(n) // KIB for n in (0, 1 << 30, 1 << 40, 5 << 40)]
    [256, 1024, 4096, 8192]
    """
    size = MIN_CHUNK
    while size < USUAL_CHUNK and size * 1024 < total:
        size *= 2
    while size < MAX_CHUNK and size * MAX_CHUNKS < total:
        size *= 2
    return size


def cut(sizes: Sequence[int], chunk_bytes: int, lengths: Mapping[int, Sequence[int]] | None = None) -> list[Pieces]:
    """The chunks, each a list of (file, offset, bytes). Files of no bytes are in none. `lengths` says of files of a
    chunk or more how long their chunks are, where these are not all alike.

    >>> cut([5, 1, 0, 2, 9], 4)
    [[(0, 0, 4)], [(0, 4, 1)], [(1, 0, 1), (3, 0, 2)], [(4, 0, 4)], [(4, 4, 4)], [(4, 8, 1)]]
    >>> cut([5, 1], 4, {0: [2, 3]})
    [[(0, 0, 2)], [(0, 2, 3)], [(1, 0, 1)]]
    """
    chunks: list[Pieces] = []
    pack: Pieces = []
    packed = 0
    for number, size in enumerate(sizes):
        if 0 < size < chunk_bytes:
            if packed + size > chunk_bytes or len(pack) >= MAX_PACKED:
                pack, packed = [], 0
            if not pack:
                chunks.append(pack)
            pack.append((number, 0, size))
            packed += size
            continue
        if lengths and number in lengths:
            starts = itertools.accumulate(lengths[number], initial=0)
            chunks += [[(number, at, length)] for at, length in zip(starts, lengths[number])]
        else:
            chunks += [[(number, at, min(chunk_bytes, size - at))] for at in range(0, size, chunk_bytes)]
    return chunks


def bytes_of(chunk: Iterable[Piece]) -> int:
    """Bytes of a chunk."""
    return sum(length for _, _, length in chunk)


def runs(chunks: Sequence[Pieces], numbers: Iterable[int], most_bytes: int) -> list[tuple[int, int]]:
    """(first, how many) of neighbouring chunks of one file, in their order.

    >>> runs(cut([5, 1, 2, 9], 4), [0, 1, 2, 3, 5], 8)
    [(0, 2), (2, 1), (3, 1), (5, 1)]
    """
    out: list[tuple[int, int]] = []
    size = 0
    for number in numbers:
        chunk = chunks[number]
        if out and len(chunk) == 1:
            first, count = out[-1]
            before = chunks[number - 1] if first + count == number else []
            follows = len(before) == 1 and before[0][0] == chunk[0][0] and before[0][1] + before[0][2] == chunk[0][1]
            if follows and size + chunk[0][2] <= most_bytes:
                out[-1] = (first, count + 1)
                size += chunk[0][2]
                continue
        out.append((number, 1))
        size = bytes_of(chunk)
    return out


def to_bits(flags: bytes | bytearray) -> str:
    """Flags, a byte of 0 or 1 each, as hexadecimal digits: the first flag is the lowest bit.

    >>> to_bits(bytes([0, 1, 1, 0, 0, 1]))
    '26'
    """
    digits = bytes(flags)[::-1].translate(_DIGITS)
    return format(int(digits, 2), "x") if digits else ""


def to_flags(bits: str, count: int) -> bytearray:
    """The other way round. Raises ValueError for what is no such text, or has more flags than `count`.

    >>> list(to_flags("26", 7))
    [0, 1, 1, 0, 0, 1, 0]
    """
    number = int(bits, 16) if bits else 0
    if number < 0 or number.bit_length() > count:
        raise ValueError(f"flags of more than {count} chunks")
    digits = format(number, f"0{count}b").encode() if count else b""
    return bytearray(digits[::-1].translate(_FLAGS))


_DIGITS = bytes.maketrans(b"\x00\x01", b"01")
_FLAGS = bytes.maketrans(b"01", b"\x00\x01")

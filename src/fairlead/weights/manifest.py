"""A publisher's manifest: the digests of a model's pieces, written beside its files, so that nodes know before anything
moves which bytes of a new version they have already.

Pieces follow the tensors of safetensors files: one that changed, or a longer header before it, leaves the pieces of all
others as they are. A manifest comes from outside: it is held to its type, and to the sizes that were listed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from fairlead.base.tensors import ends_of_tensors
from fairlead.errors import FairleadError
from fairlead.records.border import Border, Breach, shown
from fairlead.weights.objects import MAX_SIZE, Object
from fairlead.weights.onnode.layout import MAX_CHUNK, MIN_CHUNK, chunk_bytes_for
from fairlead.weights.onnode.place import DIGEST_BYTES, OWN_FOLDER, has_blake3, hasher

NAME = "fairlead.manifest.json"
"""Of the object, below the source."""
MAX_BYTES = 1 << 28


class Pieces(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of one file."""

    size: Annotated[int, Meta(ge=0, le=MAX_SIZE)]
    digests: str
    """Of its pieces, one after the other, in hexadecimal digits."""
    lengths: tuple[Annotated[int, Meta(ge=1, le=MAX_CHUNK)], ...] = ()
    """Of its pieces; empty: all are as long as `piece_bytes`, but for the last."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Of one model."""

    schema: Literal["fairlead.weights-manifest/1"] = "fairlead.weights-manifest/1"
    algorithm: Literal["blake3", "sha256"]
    piece_bytes: Annotated[int, Meta(ge=MIN_CHUNK, le=MAX_CHUNK)]
    """A power of two, the most of a piece."""
    files: dict[str, Pieces]

    @property
    def key(self) -> str:
        """What it says, in 16 digits."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:16]

    def of(self, one: Object) -> Pieces | None:
        """What it says of an object; nothing where that is of another size now."""
        found = self.files.get(one.path)
        return found if found is not None and found.size == one.size else None


_manifest = Border(Manifest, "a manifest", max_bytes=MAX_BYTES)


def read_manifest(text: bytes, source: str) -> Manifest:
    """A manifest that holds together. Raises FairleadError."""
    try:
        made = _manifest(text)
        if made.piece_bytes & (made.piece_bytes - 1):
            raise Breach("a manifest whose pieces are no power of two")
        for path, file in made.files.items():
            num = len(file.lengths) or -(-file.size // made.piece_bytes)
            if len(file.digests) != 2 * DIGEST_BYTES * num:  # before as many are made as it says
                raise Breach(f"a manifest whose pieces of {shown(path)} are not the file")
            lengths = file.lengths or fixed(file.size, made.piece_bytes)
            bytes.fromhex(file.digests)
            if sum(lengths) != file.size:
                raise Breach(f"a manifest whose pieces of {shown(path)} are not the file")
            if max(lengths, default=0) > made.piece_bytes or (len(lengths) > 1 and file.size < made.piece_bytes):
                raise Breach(f"a manifest that cuts {shown(path)} otherwise than such files are cut")
    except ValueError as why:  # Breach is one
        hint = f"write it again (fairlead weights manifest FOLDER), or --leave-out {NAME}"
        raise FairleadError("weights/manifest", f"{source}/{NAME}: {why}", hint=hint) from None
    return made


def fixed(size: int, piece_bytes: int) -> tuple[int, ...]:
    """The lengths of pieces that are all alike, but for the last.

    >>> fixed(10, 4)
    (4, 4, 2)
    """
    return tuple(min(piece_bytes, size - at) for at in range(0, size, piece_bytes))


def along(ends: Sequence[int], piece_bytes: int) -> tuple[int, ...]:
    """The lengths of pieces where something ends at each of `ends`: the header first, the last tensor at the end.

    The header, which is another in every version, and what is large have pieces of their own; small neighbours share.

    >>> along([2, 12, 13, 15, 16], 4)
    (2, 3, 3, 4, 4)
    >>> along([3, 5, 7, 9], 5)
    (3, 4, 2)
    """
    lengths: list[int] = []
    at = shared = 0
    for end in ends:
        size, at = end - at, end
        has_own = end == ends[0] or size * 4 > piece_bytes * 3
        if shared and (has_own or shared + size > piece_bytes):
            lengths.append(shared)
            shared = 0
        if not has_own:
            shared += size
            continue
        parts = -(-size // piece_bytes)
        lengths += [size * (i + 1) // parts - size * i // parts for i in range(parts)]
    return (*lengths, shared) if shared else tuple(lengths)


def manifest_of(top: Path, *, progress: Callable[[int, int], None] = lambda *_: None) -> Manifest:
    """The manifest of a folder; every file in it is read. Raises OSError."""
    found = sorted(Path(folder) / name for folder, _, names in os.walk(top) for name in names)
    paths = [p for p in found if p != top / NAME and OWN_FOLDER not in p.relative_to(top).parts]
    sizes = {p: p.stat().st_size for p in paths}
    total, done = sum(sizes.values()), 0
    piece_bytes = chunk_bytes_for(total)
    algorithm: Literal["blake3", "sha256"] = "blake3" if has_blake3() else "sha256"
    digest_of = hasher(algorithm)
    files = {}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for path in paths:
            with path.open("rb") as file:
                fd, size = file.fileno(), sizes[path]
                lengths: tuple[int, ...] = ()
                if size >= piece_bytes and path.suffix == ".safetensors":
                    ends = ends_of_tensors(size, partial(_pread, fd))
                    lengths = along(ends, piece_bytes)
                spans = _spans(lengths or fixed(size, piece_bytes))
                digests = pool.map(_digest_of_span, repeat(digest_of), repeat(fd), spans)
                files[path.relative_to(top).as_posix()] = Pieces(size, b"".join(digests).hex(), lengths)
            done += size
            progress(done, total)
    return Manifest(algorithm=algorithm, piece_bytes=piece_bytes, files=files)


def _spans(lengths: Sequence[int]) -> list[tuple[int, int]]:
    out, at = [], 0
    for length in lengths:
        out.append((at, length))
        at += length
    return out


def _pread(fd: int, at: int, length: int) -> bytes:
    return os.pread(fd, length, at)


def _digest_of_span(digest_of: Callable[[bytearray], bytes], fd: int, span: tuple[int, int]) -> bytes:
    at, length = span
    data, done = bytearray(length), 0
    while done < length:
        num = os.preadv(fd, [memoryview(data)[done:]], at + done)
        if not num:
            raise OSError("a file became shorter while it was read")
        done += num
    return digest_of(data)


def encoded(manifest: Manifest) -> bytes:
    """As it is written."""
    return msgspec.json.encode(manifest)


def outdated(manifest: Manifest, objects: Sequence[Object]) -> list[str]:
    """Objects that have another size than it says: it was written before them."""
    return sorted(o.path for o in objects if o.path in manifest.files and manifest.of(o) is None)


def lengths_of(manifest: Manifest | None, objects: Sequence[Object]) -> Mapping[int, Sequence[int]]:
    """File -> the lengths of its pieces, of those that are not all alike."""
    if manifest is None:
        return {}
    found = ((i, manifest.of(o)) for i, o in enumerate(objects))
    return {i: pieces.lengths for i, pieces in found if pieces is not None and pieces.lengths}

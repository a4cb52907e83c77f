"""Whether files of tensors are what their names say: headers of safetensors, and indexes that name their files. Pure
but for the reading it is handed; Python 3.9.

The format: 8 bytes with the length of the header, the header as JSON, then the tensors' bytes without a hole
(huggingface.co/docs/safetensors, "Format"; the package's limits). A loader would refuse such a file too, but an hour
later and on every rank. What is in the tensors is what digests are for.
"""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from typing import Any

    Read = Callable[[int, int], bytes]

MAX_HEADER_BYTES = 100_000_000
"""What the package's loader takes."""
MAX_READ_BYTES = 16 << 20
"""Longer headers and indexes are left to the loader: a node's memory is not for them."""
_TYPES = {
    4: "F4",
    6: "F6_E2M3 F6_E3M2",
    8: "BOOL U8 I8 F8_E5M2 F8_E4M3 F8_E8M0",
    16: "I16 U16 F16 BF16",
    32: "I32 U32 F32",
    64: "I64 U64 F64 C64",
}
BITS = {name: bits for bits, names in _TYPES.items() for name in names.split()}
"""Bits of an element. A type that is not here is new: its offsets are looked at, its shape is not."""
INDEX = ".safetensors.index.json"
LFS = b"version https://git-lfs"


def odd(path: str, size: int, read: Read, paths: Collection[str]) -> str:
    """Why a loader would refuse this file; empty where nothing is odd, or it is no file of tensors.

    `read(offset, length)` gives bytes of it, `paths` are the names of all files.
    """
    if path.endswith(".safetensors"):
        return odd_tensors(size, read)
    if path.endswith(INDEX) and size <= MAX_READ_BYTES:
        return odd_index(path, read(0, size), paths)
    return ""


def odd_tensors(size: int, read: Read) -> str:
    """The same for a safetensors file.

    >>> odd_tensors(3, lambda at, num: b"abc"[at : at + num])
    'it is shorter than the length of a header'
    """
    return _looked_at(size, read)[0]


def ends_of_tensors(size: int, read: Read) -> list[int]:
    """Where the header of a safetensors file and each of its tensors end, in their order, the file's own end last. Only
    that where it is no such file.
    """
    return _looked_at(size, read)[1] or [size]


def _looked_at(size: int, read: Read) -> tuple[str, list[int]]:
    """(why a loader would refuse it, or where its parts end)."""
    if size < 8:
        return "it is shorter than the length of a header", []
    first = read(0, min(size, 32))
    if first.startswith(LFS):
        return "it is a pointer of Git LFS: the file itself was never uploaded", []
    length = int.from_bytes(first[:8], "little")
    if length > MAX_HEADER_BYTES or length + 8 > size:
        return "its header is longer than the file", []
    if length > MAX_READ_BYTES:
        return "", []
    try:
        header = json.loads(read(8, length).decode(), object_pairs_hook=_once)
    except (ValueError, RecursionError):
        return "its header is no JSON, or names a tensor twice", []
    if not isinstance(header, dict):
        return "its header is no JSON object", []
    header.pop("__metadata__", None)
    try:
        spans = sorted(_span(name, tensor) for name, tensor in header.items())
    except (KeyError, TypeError, ValueError) as why:
        return f"a tensor has no type, shape and offsets that fit: {str(why)[:80]}", []
    at = 0
    for begin, end, name in spans:
        if begin != at:
            return f"its tensors overlap or leave a hole before {name[:80]}", []
        at = end
    if 8 + length + at != size:
        return f"its tensors end at {8 + length + at}, the file at {size}", []
    return "", [8 + length, *(8 + length + end for begin, end, _ in spans if end > begin)]


def _span(name: str, tensor: Any) -> tuple[int, int, str]:
    begin, end = tensor["data_offsets"]
    shape, bits = tensor["shape"], BITS.get(tensor["dtype"])
    if not all(type(n) is int and n >= 0 for n in (begin, end, *shape)) or end < begin:
        raise ValueError(name)
    count = 1
    for n in shape:
        count *= n
    if bits is not None and (end - begin) * 8 != count * bits:
        raise ValueError(name)
    return begin, end, name


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError
    return made


def odd_index(path: str, data: bytes, paths: Collection[str]) -> str:
    """The same for an index of shards: each file that it names must be there."""
    folder = path.rpartition("/")[0]
    try:
        named = {str(name) for name in json.loads(data)["weight_map"].values()}
        missing = sorted(n for n in named if (f"{folder}/{n}" if folder else n) not in paths)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return "it is no index of tensors"
    return f"it names {missing[0][:80]}, which is not among the files" if missing else ""

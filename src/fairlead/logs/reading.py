"""Files of logs, as they lie on a disk: plain or compressed, growing, rotated, with lines of any length.

Memory is bounded by CHUNK and MAX_LINE, whatever the file holds.

Must not know: formats, stores.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import lzma
import os
import re
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from fairlead.base.trust import open_straight
from fairlead.logs.parse import MAX_LINE, Raw
from fairlead.logs.zstd import ZstdFile

CHUNK = 1 << 20
MAX_RATIO, FREE = 1000, 256 << 20
"""How many times its length a file may unpack to, and how many bytes in any case. gzip makes 1,032 of 1 at most."""
HEAD = 4096
"""Bytes at the beginning, and before the place where reading stopped, by which a file is known again."""
_OPENERS: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\x00": lzma.open,
                            b"\x28\xb5\x2f\xfd": ZstdFile}  # fmt: skip
_ROTATED = re.compile(r"(?:[-.]\d{8}(?:-\d+)?|\.\d{1,4})?(?:\.(?:gz|bz2|xz|zst))?$")
BROKEN = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile)
"""What a compressed file says that is cut off or damaged."""


class Found(NamedTuple):
    """A file as it is now."""

    path: Path
    inode: str
    """Device and number."""
    written_ns: int
    head: bytes
    at: Path
    """Where its bytes are: elsewhere than its name says, for what was in an archive."""


class Member(NamedTuple):
    """A file of an archive."""

    path: Path
    """What it is called."""
    at: Path


def files_below(places: list[Path]) -> Iterator[Path]:
    """The regular files that are named, or lie below a folder that is; no link inside of a folder is followed."""
    for place in places:
        if not place.is_dir():
            yield place
            continue
        for folder, below, names in os.walk(place):
            below.sort()
            for name in sorted(names):
                path = Path(folder, name)
                if stat.S_ISREG(path.lstat().st_mode):
                    yield path


def look(path: Path | Member) -> Found:
    """A file and its first bytes. Raises OSError, or one of BROKEN."""
    name, at = path if isinstance(path, Member) else (path, path)
    with opened(at) as file:
        status = os.fstat(file.fileno())
        inode = f"{status.st_dev}:{status.st_ino}" if at == name else "0:0"
        return Found(name, inode, min(max(status.st_mtime_ns, 0), 1 << 62), file.read(HEAD), at)


def opened(path: Path) -> IO[bytes]:
    """The contents, unpacked. No pipe is waited for, and no link of a stranger's followed. Raises OSError."""
    plain = os.fdopen(open_straight(path), "rb")
    try:
        magic = plain.read(6)
    except BaseException:
        plain.close()
        raise
    opener = next((each for mark, each in _OPENERS.items() if magic.startswith(mark)), None)
    if opener is None:
        plain.seek(0)
        return plain
    with plain:
        # the same file once more, whatever has its name by now
        made: IO[bytes] = opener(f"/proc/self/fd/{plain.fileno()}", "rb")
        return made


def is_packed(found: Found) -> bool:
    """Whether its name says that it is compressed."""
    return found.path.suffix in {".gz", ".bz2", ".xz", ".zst"}


def stem(path: Path) -> str:
    """What rotated files of one log have in common: the path without number, date and compression."""
    return _ROTATED.sub("", str(path)) or str(path)


def is_rotated(path: Path) -> bool:
    """Whether the name is that of an older file of a log."""
    return stem(path) != str(path)


def digest(data: bytes) -> str:
    """What stands for some bytes."""
    return hashlib.sha256(data).hexdigest()[:32]


def tail(path: Path, end: int) -> bytes:
    """The HEAD bytes before `end`; fewer where the file is shorter."""
    with opened(path) as file:
        file.seek(max(0, end - HEAD))
        return file.read(end - max(0, end - HEAD))


def lines(file: Any, start: int, problems: list[str], *, whole: bool) -> Iterator[Raw]:
    """The lines from `start` on; the last one without an end only where the file is `whole`, so grows no more.

    A file that cannot be read further ends there, and `problems` says why.
    """
    file.seek(start)
    rest, lost, at = b"", 0, start
    while chunk := _more(file, problems):
        parts = (rest + chunk).split(b"\n")
        rest = parts.pop()
        for part in parts:
            end = at + len(part) + lost + 1
            yield Raw(at, end, part[:MAX_LINE], max(0, len(part) + lost - MAX_LINE))
            at, lost = end, 0
        if len(rest) > MAX_LINE:
            lost += len(rest) - MAX_LINE
            rest = rest[:MAX_LINE]
    if rest and whole:
        yield Raw(at, at + len(rest) + lost, rest, lost)


def _more(file: Any, problems: list[str]) -> bytes:
    try:
        if is_bomb(file):
            problems.append(f"it unpacks to more than {MAX_RATIO:,} times its length")
            return b""
        data: bytes = file.read1(CHUNK)  # as much as there is, though the next byte may be broken
    except (OSError, *BROKEN) as error:
        problems.append(str(error))
        return b""
    return data


def is_bomb(file: Any) -> bool:
    """Whether so much was unpacked already that no log is so alike: bzip2 and xz make gigabytes of kilobytes."""
    at: int = file.tell()
    return at > FREE and at > MAX_RATIO * os.fstat(file.fileno()).st_size


def text_of(path: Path) -> str:
    """A path as text, whatever bytes it has."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")

"""Archives of logs (tar, packed or not) as the files that are in them.

Members are unpacked to files of numbers in a private folder, so that nothing a name says leads anywhere; what they are
called is only shown, as ARCHIVE/NAME. Links, devices and sparse files are left out, and said; so is what is beyond the
limits of a log.

Must not know: formats, stores.
"""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any

from fairlead.logs import reading
from fairlead.records.border import shown

MEMBERS = 100_000
ROOM = 256 << 20
"""So much of the disk stays free."""
_HEADER = 16 << 20
"""No header of a member is longer: names and attributes."""
_MAGIC = slice(257, 262)
BROKEN = (OSError, tarfile.TarError, ValueError, LookupError, *reading.BROKEN)


def is_archive(path: Path) -> bool:
    """Whether a file is one; what cannot be read is none."""
    try:
        return reading.look(path).head[_MAGIC] == b"ustar"
    except (OSError, *reading.BROKEN):
        return False


def members(path: Path, folder: Path, problems: list[str]) -> Iterator[reading.Member]:
    """The regular files of an archive, unpacked into a folder; of several of one name the last one.

    `problems` says what was left out, and why it ends before its end.
    """
    found: dict[str, reading.Member] = {}
    left = 0
    try:
        with reading.opened(path) as packed:
            bounded: Any = _Forward(packed)
            with tarfile.open(fileobj=bounded, mode="r:") as tar:
                for at, info in enumerate(tar):
                    if at >= MEMBERS:
                        problems.append(f"it has more than {MEMBERS:,} members")
                        break
                    if info.isdir():
                        continue
                    name = _name(info.name)
                    if not info.isreg() or info.sparse is not None or not name:
                        left += 1
                        continue
                    to = folder / str(at)
                    _unpacked(tar, info, to, bounded)
                    when = min(max(0.0, info.mtime), float(1 << 33))  # in this order NaN is 0
                    os.utime(to, (when, when))
                    found[name] = reading.Member(path.absolute() / name, to)
    except BROKEN as error:
        problems.append(shown(str(error), 200) or type(error).__name__)
    if left:
        problems.append(f"{left:,} members are no plain files, or have names that climb: left out")
    yield from found.values()


def _name(text: str) -> str:
    """A name without a root; empty where it climbs, or no file can have it."""
    parts = [part for part in PurePosixPath(text).parts if part != "/"]
    return "" if ".." in parts or "\0" in text or len(text) > 4096 else "/".join(parts)


def _unpacked(tar: tarfile.TarFile, info: tarfile.TarInfo, to: Path, packed: _Forward) -> None:
    source: Any = tar.extractfile(info)
    with to.open("xb") as file:
        while chunk := source.read(reading.CHUNK):
            packed.check()
            if shutil.disk_usage(to.parent).free < ROOM + len(chunk):
                raise OSError(f"less than {ROOM >> 20} MiB would be free on the disk of {to.parent}")
            file.write(chunk)
        if file.tell() != info.size:
            raise EOFError("it is cut off")


class _Forward:
    """The bytes of an archive, of which nobody asks for much at a time, and that are not many times its length.

    tarfile looks at the last byte of a member again; to go back by more would be to unpack all of it once more.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._last, self._end, self._at = b"", 0, 0
        """The last piece, where it ends, and where the reader is: in it, or at its end."""

    def check(self) -> None:
        """Raises ValueError for a bomb."""
        if reading.is_bomb(self._file):
            raise ValueError(f"it unpacks to more than {reading.MAX_RATIO:,} times its length")

    def read(self, num: int = -1) -> bytes:
        if not 0 <= num <= _HEADER:
            raise ValueError("a header in it is too long")
        again = self._last[len(self._last) - (self._end - self._at) :] if self._at < self._end else b""
        data = again[:num] + (self._more(num - len(again)) if num > len(again) else b"")
        self._at += len(data)
        return data

    def seek(self, place: int) -> int:
        if place < self._end - len(self._last):
            raise ValueError("its members are not in a row")
        while self._end < place and self._more(min(reading.CHUNK, place - self._end)):
            pass
        self._at = min(place, self._end)
        return self._at

    def tell(self) -> int:
        return self._at

    def _more(self, num: int) -> bytes:
        self.check()
        if data := self._file.read(num):
            self._last, self._end = data, self._end + len(data)
        return data

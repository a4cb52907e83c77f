"""Files of zstd, unpacked by pyarrow, as gzip's are by the standard library."""

from __future__ import annotations

import os
from typing import Any, Self


class ZstdFile:
    """What a packed file holds, to be read forward; back means once more from the beginning.

    Raises EOFError where it is cut off or damaged.
    """

    def __init__(self, path: str, mode: str = "rb") -> None:
        try:
            import pyarrow as pa
        except ImportError:
            raise OSError("zstd needs pyarrow: pip install 'fairlead[logs]'") from None
        self._arrow = pa
        self._plain = open(path, mode)  # noqa: SIM115, PTH123 - closed by close
        self._begin()

    def _begin(self) -> None:
        self._plain.seek(0)
        self._at = 0
        self._unpacked: Any = self._arrow.CompressedInputStream(
            self._arrow.PythonFile(_Kept(self._plain), mode="r"), "zstd"
        )

    def read(self, num: int = -1) -> bytes:
        """So many bytes, or all."""
        parts = []
        while num:
            part = self.read1(min(1 << 20, num) if num > 0 else 1 << 20)
            if not part:
                break
            parts.append(part)
            num -= len(part) if num > 0 else 0
        return b"".join(parts)

    def read1(self, num: int) -> bytes:
        """At most so many bytes."""
        try:
            data: bytes = self._unpacked.read(num)
        except (OSError, ValueError) as error:
            raise EOFError(str(error)) from None
        self._at += len(data)
        return data

    def tell(self) -> int:
        """Where it is, unpacked."""
        return self._at

    def seek(self, place: int) -> int:
        """Go there, or to the end before it."""
        if place < self._at:
            self._begin()
        while self._at < place and self.read1(min(1 << 20, place - self._at)):
            pass
        return self._at

    def fileno(self) -> int:
        """Of the packed file."""
        return self._plain.fileno()

    def close(self) -> None:
        """No more is read."""
        self._plain.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Kept:
    """A file that who reads it does not close."""

    closed = False

    def __init__(self, file: Any) -> None:
        self.read = file.read
        self.size = os.fstat(file.fileno()).st_size

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        pass

"""One decoder of bytes from outside, as tests and searches call it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

_FOLDER = tempfile.TemporaryDirectory(prefix="fl-decoders-")


class Decoder(NamedTuple):
    """One way in."""

    take: Callable[[bytes], object]
    seeds: tuple[bytes, ...]
    refusals: tuple[type[Exception], ...] = ()
    num_quick: int = 1000
    """Inputs of a quick run."""


def text_of(data: bytes) -> str:
    """As the asking side makes text of what nodes send."""
    return data.decode("utf-8", "backslashreplace")


def as_json(value: object) -> bytes:
    """A seed."""
    return json.dumps(value).encode()


def of_file(read_it: Callable[[Path], object], name: str) -> Callable[[bytes], object]:
    """Of what is read from a file of this name, alone in a folder of its own."""

    def take(data: bytes) -> object:
        path = Path(_FOLDER.name, name.partition(".")[0], name)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.write_bytes(data)
        return read_it(path)

    return take

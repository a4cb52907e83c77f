"""What a source of logs looks like, as data: `formats/*.toml`, one file a source.

A format says which files are its own, what a line begins with, what its time means, which lines go on with the one
before, which words are severities, and which values to take out of a line. Its samples are its tests.

Must not know: files on disk beyond its own, stores.
"""

from __future__ import annotations

import fnmatch
import functools
import re
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from fairlead.base.rooms import files
from fairlead.logs.eventtime import KINDS

LEVELS = {
    "fatal": "crit", "critical": "crit", "crit": "crit", "emerg": "emerg", "panic": "emerg", "alert": "alert",
    "error": "error", "err": "error", "warning": "warning", "warn": "warning", "notice": "notice", "info": "info",
    "verbose": "info", "version": "info", "debug": "debug", "debug2": "debug", "debug3": "debug", "debug4": "debug",
    "debug5": "debug", "trace": "debug", "i": "info", "w": "warning", "e": "error", "f": "crit",
}  # fmt: skip
"""Words of severity, to those of syslog."""
PRIORITIES = ("emerg", "alert", "crit", "error", "warning", "notice", "info", "debug")
"""RFC 5424 section 6.2.1, table 2."""


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One form of a line: a pattern of its beginning, and what its group `time` is."""

    pattern: str
    time: str = ""


class Block(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A record of lines: it begins with `first`, goes on with lines that are `more`, may end with one `last`."""

    first: str
    more: str
    last: str = ""
    level: str = ""


class Columns(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Records whose names stand in the first line of the file."""

    by: str
    head: str
    time: list[str]
    JobId: str = ""


class Sample(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line, and what must be read from it."""

    line: str
    is_: dict[str, Any] = msgspec.field(name="is")


class Format(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """A source of logs. Groups of patterns are `time`, `level`, `pri`, `node`, `component`, `pid`; all others are
    fields under their own names.
    """

    about: str
    source: str
    table: str
    files: list[str]
    sample: list[Sample]
    name: str = ""
    level: str = ""
    more: str = ""
    prefix: str = ""
    hide: bool = False
    """Whether values of secrets are left out of what is kept."""
    lines: list[Line] = msgspec.field(default_factory=list)
    blocks: list[Block] = msgspec.field(default_factory=list)
    fields: dict[str, list[str]] = msgspec.field(default_factory=dict)
    json: dict[str, str] = msgspec.field(default_factory=dict)
    columns: Columns | None = None

    @functools.cached_property
    def compiled(self) -> Compiled:
        """Its patterns, ready."""
        return Compiled(
            tuple((re.compile(line.pattern), line.time) for line in self.lines),
            re.compile(self.prefix) if self.prefix else None,
            tuple(_block(block) for block in ([Block("", self.more)] if self.more else []) + self.blocks),
            tuple((name, needle, re.compile(pattern)) for name, (needle, pattern) in self.fields.items()),
        )


class ReadyBlock(NamedTuple):
    """A block, ready. `first` is None for the lines that go on with any line."""

    first: re.Pattern[str] | None
    more: re.Pattern[str]
    last: re.Pattern[str] | None
    level: str


class Compiled(NamedTuple):
    """The patterns of a format."""

    lines: tuple[tuple[re.Pattern[str], str], ...]
    prefix: re.Pattern[str] | None
    groups: tuple[ReadyBlock, ...]
    fields: tuple[tuple[str, str, re.Pattern[str]], ...]
    """Name, a text that must stand in the line before the pattern is worth a try, the pattern of one group."""


def _block(block: Block) -> ReadyBlock:
    first, last = (re.compile(text) if text else None for text in (block.first, block.last))
    return ReadyBlock(first, re.compile(block.more), last, block.level)


def read_format(text: str, name: str) -> Format:
    """A format from its TOML. Raises ValueError (msgspec.ValidationError, re.error) where it is none."""
    found = msgspec.convert(tomllib.loads(text) | {"name": name}, Format)
    unknown = [line.time for line in found.lines if line.time and line.time not in KINDS]
    if unknown:
        raise ValueError(f"{name}: no such form of time: {', '.join(unknown)}")
    return found


@functools.cache
def formats() -> dict[str, Format]:
    """All formats by name; those of other rooms, too."""
    return {path.stem: read_format(path.read_text("utf-8"), path.stem) for path in files("formats/*.toml")}


def _is_named(path: Path, pattern: str) -> bool:
    """Whether the name fits what stands behind the pattern's last slash, and the folder what stands before it."""
    folder, _, name = pattern.rpartition("/")
    return fnmatch.fnmatchcase(path.name, name) and fnmatch.fnmatchcase(str(path.parent), folder or "*")


def format_of(path: Path, head: list[str]) -> Format:
    """The format of a file: by its name, else the one that reads most of its first lines, else plain text."""
    known = formats()
    for found in known.values():
        if any(_is_named(path, pattern) for pattern in found.files):
            return found
    best, most = known["text"], 0
    for found in known.values():
        if found.name == "text":
            continue
        num = sum(reads(found, line) for line in head)
        if num > most and num * 2 >= len(head):
            best, most = found, num
    return best


def reads(found: Format, line: str) -> bool:
    """Whether a line has a form of this format."""
    if found.columns:
        return line.startswith(found.columns.head + found.columns.by)
    if found.json:
        return line.startswith("{") and f'"{found.json["time"]}"' in line
    return any(pattern.match(line) for pattern, _ in found.compiled.lines)

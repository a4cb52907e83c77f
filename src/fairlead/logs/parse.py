"""From lines to records: when, on which node, by whom, how grave, and values taken out of the text. Pure.

A line of any bytes becomes a record: what is not UTF-8 is written as escapes, patterns look at the first LOOKED
characters alone, and a record ends at MOST_LINES lines or MOST_CHARS characters, so that nothing a line says makes this
slow or large. Nothing is left out but empty lines.

Must not know: files, stores.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from fairlead.base.confidential import hide, is_secret_name
from fairlead.logs.eventtime import Clock, event_ns
from fairlead.logs.format import LEVELS, PRIORITIES, Format, ReadyBlock

LOOKED = 4096
MOST_LINES = 500
MOST_CHARS = 256 << 10
MAX_LINE = 1 << 20
"""Bytes of a line that are kept; what is longer is cut, and `cut` says by how much."""
_MAX_INT = (1 << 63) - 1
_MAX_VALUE = 128 << 10
"""MAX_ARG_STRLEN of Linux (include/uapi/linux/binfmts.h): no variable of an environment is longer."""


@dataclass(frozen=True, slots=True)
class Raw:
    """A line of a file: where it begins and where the next one does, in bytes."""

    offset: int
    end: int
    data: bytes
    cut: int = 0


@dataclass(slots=True)
class Record:
    """A line, or a few that belong together."""

    offset: int
    end: int
    raw: str
    time_ns: int = 0
    time_from: str = "line"
    """`line`; `before`: of the last line of the file that had one; `file`: when the file was last written."""
    node: str = ""
    level: str = ""
    component: str = ""
    pid: int | None = None
    job: int | None = None
    fields: dict[str, str] = field(default_factory=dict)
    cut: int = 0


@dataclass(frozen=True, slots=True)
class Context:
    """What a file says about all of its lines."""

    clock: Clock = field(default_factory=Clock)
    node: str = ""
    head: str = ""
    """Its first line, for formats whose columns are named there."""
    last_ns: int = 0
    """The time of the last line that was read before; 0: none."""


def records(lines: Iterable[Raw], source: Format, context: Context) -> Iterator[Record]:
    """The records of consecutive lines of one file."""
    last_ns = context.last_ns
    names = _names(source, context.head)
    held: Record | None = None
    parts: list[str] = []
    size = 0
    group: ReadyBlock | None = None
    rank = ""
    for raw in lines:
        text = raw.data.decode("utf-8", "backslashreplace").rstrip("\r")
        bare, mine = _bare(text[:LOOKED], source)
        if held is not None:
            if mine == rank and group and len(parts) < MOST_LINES and size < MOST_CHARS:
                goes_on = group.more.match(bare)
                ends = not goes_on and group.last is not None and len(parts) > 1 and group.last.match(bare)
                if goes_on or ends:
                    parts.append(text)
                    size += len(text)
                    held.end, held.cut = raw.end, held.cut + raw.cut
                    group = None if ends else group
                    continue
            yield _whole_record(held, parts, source)
            held = None
        if not text.strip():
            continue
        made = _record(raw, (text, bare), source, context, names)
        if made.time_from != "line":
            made.time_ns, made.time_from = (last_ns, "before") if last_ns else (context.clock.written_ns, "file")
        else:
            last_ns = made.time_ns
        held, parts, size, rank = made, [text], len(text), mine
        group = next((g for g in source.compiled.groups if g.first is not None and g.first.match(bare)), None)
        if group is not None:
            made.level = made.level or group.level
        else:
            group = next((g for g in source.compiled.groups if g.first is None), None)
    if held is not None:
        yield _whole_record(held, parts, source)


def _whole_record(made: Record, parts: list[str], source: Format) -> Record:
    """The record with its text; without secrets where the format says so: what a secret's NAME= stands before, and what
    has the form of one.
    """
    text = "\n".join(parts)
    if source.hide:
        made.cut += max(0, len(text) - _MAX_VALUE)
        name, equals, _ = text[:LOOKED].partition("=")
        text = f"{name}=<redacted>" if equals and is_secret_name(name) else hide(text[:_MAX_VALUE])
    made.raw = text
    return made


def _names(source: Format, head: str) -> list[str]:
    return head.rstrip("\r\n").split(source.columns.by) if source.columns else []


def _bare(text: str, source: Format) -> tuple[str, str]:
    """A line without what a launcher put before it, and the rank that this says."""
    prefix = source.compiled.prefix
    found = prefix.match(text) if prefix is not None else None
    if found is None:
        return text, ""
    return text[found.end() :], next((value for value in found.groups() if value), "")


def _record(raw: Raw, texts: tuple[str, str], source: Format, context: Context, names: list[str]) -> Record:
    text, bare = texts
    made = Record(raw.offset, raw.end, "", node=context.node, level=source.level, cut=raw.cut, time_from="")
    shown = text[:LOOKED]
    if source.json:
        _from_json(made, text, source, context)
    elif source.columns:
        _from_columns(made, text, source, context, names)
    else:
        rank = _bare(shown, source)[1]
        if rank:
            made.fields["Rank"] = rank
        for pattern, kind in source.compiled.lines:
            # a launcher's mark may be part of the form itself (`[rank0]:[E...`)
            found = pattern.match(shown) or (pattern.match(bare) if bare != shown else None)
            if found is not None:
                _take(made, found.groupdict(), kind, context)
                break
    for name, needle, pattern in source.compiled.fields:
        if needle in shown and (found := pattern.search(shown)):
            if name in {"JobId", "StepJob"}:
                made.job = _whole(found[1]) if made.job is None else made.job
            else:
                made.fields[name] = found[1]
    return made


def _take(made: Record, groups: dict[str, str | None], kind: str, context: Context) -> None:
    for name, value in groups.items():
        if not value or value == "-":
            continue
        match name:
            case "time":
                _date(made, kind, value, context.clock)
            case "level":
                made.level = LEVELS.get(value.lower(), made.level)
            case "pri":
                made.level = PRIORITIES[int(value) % 8] if value.isascii() and value.isdigit() else made.level
            case "node":
                made.node = value
            case "component":
                made.component = value
            case "pid":
                made.pid = _whole(value)
            case "rank" | "task":
                made.fields["Rank"] = value
            case _:
                made.fields[name] = value


def _date(made: Record, kind: str, text: str, clock: Clock) -> None:
    found = event_ns(kind, text, clock)
    if found is not None:
        made.time_ns, made.time_from = found, "line"


def _whole(text: str) -> int | None:
    if not (text.isascii() and text.isdigit()) or len(text) > 19:
        return None
    return value if (value := int(text)) <= _MAX_INT else None


def _from_json(made: Record, text: str, source: Format, context: Context) -> None:
    """Journalctl writes text as text, and what is no text as a list of bytes (left out of fields, kept in the line)."""
    try:
        found: Any = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return
    if isinstance(found, dict):
        said = {name: value for name, key in source.json.items() if isinstance(value := found.get(key), str)}
        _take(made, {name: value[:LOOKED] for name, value in said.items()}, "epoch_us", context)


def _from_columns(made: Record, text: str, source: Format, context: Context, names: list[str]) -> None:
    columns = source.columns
    if columns is None:
        raise AssertionError
    values = text.split(columns.by, len(names))
    if values == names or len(values) != len(names) or not columns.head or names[0] != columns.head:
        return
    said = dict(zip(names, values, strict=True))
    made.fields.update({name: value[:LOOKED] for name, value in said.items() if value})
    number = said.get(columns.JobId, "")
    made.job = _whole(number.partition(".")[0].partition("_")[0])
    for name in columns.time:
        _date(made, "iso", said.get(name, ""), context.clock)
        if made.time_from == "line":
            return

"""Blocks of plain lines, parsed by the engine itself: the patterns of a format as one INSERT.

`parse.records` says what a line means; this says the same in SQL, many times as fast, of blocks in which nothing is
unusual: ASCII without control characters, no empty or very long line, no record of several lines, all lines of one form
and with a time. Whatever else a block holds makes it not plain, before or while it is inserted, and `parse.records`
reads it. A test compares both, row by row.

Must not know: files, the engine.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fairlead.logs.eventtime import DAY_NS, EARLIEST_NS, MONTHS, Clock
from fairlead.logs.format import LEVELS, PRIORITIES, Format
from fairlead.logs.kql.sql.text import quoted
from fairlead.logs.parse import LOOKED

NOT_PLAIN = "fairlead: not plain"
"""What the engine's error says of a block that has to be read line by line."""
_PLAIN_BYTES = bytes([9, 10, *range(32, 127)])
_TIMES = {"iso", "bsd"}
_HOUR = r"([01]\d|2[0-3]):[0-5]\d:[0-5]\d"
_ISO = rf"^\d{{4}}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])[T ]{_HOUR}([.,]\d{{1,9}})?(Z|[+-]([01]\d|2[0-3]):?[0-5]\d)?$"
_BSD = rf"^({'|'.join(MONTHS)}) ([ 0][1-9]|[12]\d|3[01]) {_HOUR}(\.\d{{1,9}})?$"
_OWN = {"time", "level", "pri", "node", "component", "pid"}
_JOBS = {"JobId", "StepJob"}
_FOREVER = (1 << 63) - 1
_HEAD_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Place:
    """What all rows of a block share."""

    path: str
    table: str
    file_id: int
    node: str
    offset: int
    now: str
    """Unix seconds."""


def can(form: Format, clock: Clock) -> bool:
    """Whether blocks of a format may be plain at all: lines of patterns, with times in UTC where they name no zone."""
    return not (form.json or form.columns or form.prefix or form.hide) and str(clock.zone) == "UTC"


def form_of(block: bytes, form: Format) -> int | None:
    """Which of the format's lines a block is made of, by its first; None where `parse.records` has to read it."""
    if not block.endswith(b"\n") or block.translate(None, _PLAIN_BYTES):
        return None
    head = b"\n" + block[:_HEAD_BYTES]  # the engine looks at all of it, which is faster, but costs more in vain
    if any(mark in head for mark in (b"\n\n", b"\n ", b"\n\t")) or max(map(len, head.split(b"\n"))) > LOOKED:
        return None
    if _openings(form).search(b"\n" + block):
        return None
    first = block[: block.index(b"\n")].decode()
    number = next((n for n, (pattern, _) in enumerate(form.compiled.lines) if pattern.match(first)), None)
    if number is None:
        return None
    pattern, kind = form.compiled.lines[number]
    return number if kind in _TIMES and "time" in pattern.groupindex else None


def _openings(form: Format) -> re.Pattern[bytes]:
    """What a line begins with that belongs to the line before, or takes in those behind it."""
    texts = [(group.more if group.first is None else group.first).pattern for group in form.compiled.groups]
    # a line that begins with white space was looked for before, faster
    rest = [text for text in texts if text not in {r"^\s+\S", "^ "}]
    return re.compile(rb"(?m)\n(?:" + b"|".join(text.encode() for text in rest or ["(?!)"]) + b")")


def statement(form: Format, number: int, clock: Clock, place: Place, block: str) -> str:
    """SELECT of rows for `Logs`, in the order of its columns; `block` is a table of one row `s` with the whole block.

    The engine refuses with NOT_PLAIN what it would not read as `parse.records` does.
    """
    pattern, kind = form.compiled.lines[number]
    said = {name: f"if(g[{at}] = '-', '', g[{at}])" for name, at in pattern.groupindex.items()}
    others = [f"match(line, {quoted('^(?:' + each.pattern + ')')})" for each, _ in form.compiled.lines[:number]]
    latest = clock.now_ns + DAY_NS if clock.now_ns else _FOREVER
    odd = ["empty(line)", "substring(line, 1, 1) IN (' ', '\\t')", f"length(line) > {LOOKED}"]
    unsure = " OR ".join([*odd, "empty(g)", "isNull(at)", f"at < {EARLIEST_NS}", f"at > {latest}", *others])
    time = _iso("v") if kind == "iso" else _bsd("v", clock)
    node = said.get("node")
    computer = f"if({node} = '', {quoted(place.node)}, {node})" if node else quoted(place.node)
    return f"""
SELECT fromUnixTimestamp64Nano(assumeNotNull(at) + throwIf({unsure}, {quoted(NOT_PLAIN)}), 'UTC'), line,
{computer}, {quoted(place.path)}, {_level(form, said)},
{said.get("component", "''")}, {_whole(said["pid"]) if "pid" in said else "NULL"}, {_job(form)}, {_fields(form, said)},
'line', 0, toDateTime64({quoted(place.now)}, 3, 'UTC'),
{quoted(place.table)}, {place.file_id}, toInt64({place.offset} + e - length(line) - 1), toInt64({place.offset} + e)
FROM (SELECT line, e, g, g[{pattern.groupindex["time"]}] AS v, {time} AS at
FROM (SELECT line, e, extractGroups(line, {quoted("^(?:" + pattern.pattern + ")")}) AS g
FROM (SELECT splitByChar('\\n', substring(s, 1, length(s) - 1)) AS lines, arrayCumSum(x -> length(x) + 1, lines) AS ends
FROM {block}) ARRAY JOIN lines AS line, ends AS e))"""  # noqa: S608 - every text is quoted


def _texts(words: Iterable[str]) -> str:
    return "[" + ", ".join(quoted(word) for word in words) + "]"


def _level(form: Format, said: Mapping[str, str]) -> str:
    if "pri" in said:
        return (
            f"if({said['pri']} = '', {quoted(form.level)}, {_texts(PRIORITIES)}[toUInt32OrZero({said['pri']}) % 8 + 1])"
        )
    if "level" in said:
        return f"transform(lower({said['level']}), {_texts(LEVELS)}, {_texts(LEVELS.values())}, {quoted(form.level)})"
    return quoted(form.level)


def _whole(text: str) -> str:
    return f"if(length({text}) <= 19 AND match({text}, '^[0-9]+$'), toInt64OrNull({text}), NULL)"


def _nanos(iso: str) -> str:
    """Of an ISO time whose form was looked at; NULL where there is no such day."""
    day = f"toUInt8OrZero(substring({iso}, 9, 2))"
    last = f"toDayOfMonth(toLastDayOfMonth(toDateOrZero(concat(substring({iso}, 1, 8), '01'))))"
    found = f"toUnixTimestamp64Nano(parseDateTime64BestEffortOrNull({iso}, 9, 'UTC'))"
    return f"if({day} > 28 AND {day} > {last}, NULL, {found})"


def _iso(value: str) -> str:
    dotted = f"replaceOne({value}, ',', '.')"
    return f"if(match({value}, {quoted(_ISO)}), {_nanos(dotted)}, NULL)"


def _bsd(value: str, clock: Clock) -> str:
    """A line without a year is of the newest in which it is not behind the end of the file, as in `eventtime`."""
    newest = (clock.written_ns or clock.now_ns) + DAY_NS
    year = (dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=newest // 10**9)).year
    month = f"transform(substring({value}, 1, 3), {_texts(MONTHS)}, {_texts(f'{n:02}' for n in MONTHS.values())}, '')"
    rest = f"{month}, '-', replaceOne(substring({value}, 5, 2), ' ', '0'), 'T', substring({value}, 8)"
    this, before = (_nanos(f"concat('{each}-', {rest})") for each in (year, year - 1))
    # the 29th of February may be of years further back: read line by line
    unsure = f"startsWith({value}, 'Feb 29') OR NOT match({value}, {quoted(_BSD)})"
    return f"multiIf({unsure}, NULL, {this} <= {newest}, {this}, {before})"


def _job(form: Format) -> str:
    found = [_found(needle, pattern) for name, needle, pattern in form.compiled.fields if name in _JOBS]
    return f"coalesce({', '.join(map(_whole, found))})" if found else "NULL"


def _found(needle: str, pattern: re.Pattern[str]) -> str:
    return f"if(position(line, {quoted(needle)}) > 0, extractGroups(line, {quoted(pattern.pattern)})[1], '')"


def _fields(form: Format, said: Mapping[str, str]) -> str:
    """The map of all other values, in the order in which they are found."""
    found = {"Rank" if name in {"rank", "task"} else name: said[name] for name in said if name not in _OWN}
    found |= {name: _found(needle, pattern) for name, needle, pattern in form.compiled.fields if name not in _JOBS}
    pairs = ", ".join(f"{quoted(name)}, {value}" for name, value in found.items())
    return f"mapFilter((k, v) -> v != '', map({pairs}))" if found else "map()"

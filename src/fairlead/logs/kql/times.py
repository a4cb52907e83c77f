"""datetime and timespan: from text, to text, and the calendar. Both are counts of ticks of 100 ns.

Text forms: https://learn.microsoft.com/kusto/query/scalar-data-types/datetime and .../timespan.

Must not know: queries.
"""

from __future__ import annotations

import math
import re
from datetime import date, timedelta
from typing import NamedTuple

from fairlead.logs.kql.kinds import MAX_DATETIME, MAX_DIGITS, TICKS_DAY, TICKS_S, in_long

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_LONG_MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
_DAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
EPOCH = 719_162 * TICKS_DAY
"""1970-01-01 in ticks."""

UNITS = {
    name: ticks
    for names, ticks in (
        ("d day days", TICKS_DAY),
        ("h hr hrs hour hours", 3600 * TICKS_S),
        ("m min minute minutes", 60 * TICKS_S),
        ("s sec second seconds", TICKS_S),
        ("ms milli millis millisec millisecond milliseconds", TICKS_S // 1000),
        ("micro micros microsec microsecond microseconds", 10),
        ("tick ticks", 1),
    )
    for name in names.split()
}
"""What may stand behind a number to make it a timespan."""

_CLOCK = r"(?P<H>\d{1,2}):(?P<M>\d{1,2})(?::(?P<S>\d{1,2})(?:[.,](?P<f>\d+))?)?(?:\s*(?P<pm>[AaPp][Mm]))?"
_ZONE = r"\s*(?P<z>Z|z|UTC|GMT|[+-]\d{2}:?\d{2}|[+-]\d{2})?"
_NAMED = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"
_FORMS = [
    re.compile(form + r"(?:(?:\s+|T|t|\s*,\s*)" + _CLOCK + _ZONE + r")?" + r"\s*$", re.IGNORECASE)
    for form in (
        r"\s*(?P<Y>\d{4})[-/.](?P<m>\d{1,2})[-/.](?P<d>\d{1,2})",
        r"\s*(?P<m>\d{1,2})[-/.](?P<d>\d{1,2})[-/.](?P<Y>\d{4})",
        r"\s*(?:[a-z]{3,9},?\s+)?(?P<d>\d{1,2})[-\s](?P<b>" + _NAMED + r")[-\s](?P<Y>\d{4}|\d{2})",
        r"\s*(?:[a-z]{3,9},?\s+)?(?P<b>" + _NAMED + r")\s+(?P<d>\d{1,2}),?\s+(?P<Y>\d{4})",
        r"\s*(?P<Y>\d{4})(?P<m>\d{2})(?P<d>\d{2})",
        r"\s*(?P<Y>\d{4})-(?P<m>\d{1,2})",
        r"\s*(?P<Y>\d{4})",
    )
]
_COMPACT = re.compile(r"\s*(\d{4})(\d\d)(\d\d)[T ]?(\d\d)(\d\d)(\d\d)?Z?\s*$")
_SPAN = re.compile(
    r"\s*(?P<s>-)?(?:(?P<d>\d+)\.)?(?P<H>\d{1,2}):(?P<M>\d{1,2})(?::(?P<S>\d{1,2})(?:\.(?P<f>\d{1,9}))?)?\s*$"
)
_DAYS_CLOCK = re.compile(
    r"\s*(?P<s>-)?(?P<d>\d+):(?P<H>\d{1,2}):(?P<M>\d{1,2}):(?P<S>\d{1,2})(?:\.(?P<f>\d{1,9}))?\s*$"
)
_UNIT = re.compile(r"\s*(?P<n>[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*(?P<u>[a-z]+)\s*$")


class Civil(NamedTuple):
    """A moment on the calendar."""

    year: int
    month: int
    day: int
    ticks: int
    """Of the day."""

    @property
    def hour(self) -> int:
        return self.ticks // (3600 * TICKS_S)

    @property
    def minute(self) -> int:
        return self.ticks // (60 * TICKS_S) % 60

    @property
    def second(self) -> int:
        return self.ticks // TICKS_S % 60


def civil(ticks: int) -> Civil:
    """The calendar's view of a datetime."""
    day = date.fromordinal(ticks // TICKS_DAY + 1)
    return Civil(day.year, day.month, day.day, ticks % TICKS_DAY)


def of_date(year: int, month: int = 1, day: int = 1) -> int:
    """Ticks of a date. Raises ValueError where there is none."""
    return (date(year, month, day).toordinal() - 1) * TICKS_DAY


def in_range(ticks: int) -> int | None:
    """A datetime, or null outside of the years 1 to 9999."""
    return ticks if 0 <= ticks <= MAX_DATETIME else None


def add_months(ticks: int, num: int) -> int | None:
    """The same day so many months later, or the last day of a month that is too short."""
    at = civil(ticks)
    month = at.year * 12 + at.month - 1 + num
    year, month = divmod(month, 12)
    if not 1 <= year <= 9999:
        return None
    return of_date(year, month + 1, min(at.day, month_days(year, month + 1))) + at.ticks


def month_days(year: int, month: int) -> int:
    """Days of a month."""
    return 31 if month == 12 else (date(year, month + 1, 1) - timedelta(days=1)).day


def parse_datetime(text: str) -> int | None:
    """Ticks of a datetime's text; None where it is none."""
    compact = _COMPACT.match(text)
    if compact:
        year, month, day, hour, minute, second = (int(part or 0) for part in compact.groups())
        return _at(year, month, day, hour, minute, second)
    for form in _FORMS:
        found = form.match(text)
        if found:
            return _of_parts(found.groupdict())
    return None


def _of_parts(part: dict[str, str | None]) -> int | None:
    year = int(part["Y"] or 0)
    if len(part["Y"] or "") == 2:
        year += 2000 if year < 50 else 1900
    named = (part.get("b") or "")[:3].lower()
    month = _MONTHS.index(named) + 1 if named else int(part.get("m") or 1)
    hour = int(part["H"] or 0)
    half = (part["pm"] or "").lower()
    if half:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + (12 if half == "pm" else 0)
    ticks = _at(year, month, int(part.get("d") or 1), hour, int(part["M"] or 0), int(part["S"] or 0))
    if ticks is None:
        return None
    ticks += _fraction(part["f"])
    zone = part["z"] or ""
    if zone[:1] in {"+", "-"}:
        digits = zone[1:].replace(":", "").ljust(4, "0")
        shift = (int(digits[:2]) * 3600 + int(digits[2:]) * 60) * TICKS_S
        ticks -= shift if zone[0] == "+" else -shift
    return in_range(ticks)


def _at(year: int, month: int, day: int, hour: int, minute: int, second: int) -> int | None:
    if hour > 23 or minute > 59 or second > 59:
        return None
    try:
        return of_date(year, month, day) + (hour * 3600 + minute * 60 + second) * TICKS_S
    except ValueError:
        return None


def _fraction(digits: str | None) -> int:
    return int((digits or "").ljust(7, "0")[:7])


def parse_timespan(text: str) -> int | None:
    """Ticks of a timespan's text: `1.02:03:04.5`, `2h`, or days where it is a bare number; None where it is none."""
    found = _SPAN.match(text) or _DAYS_CLOCK.match(text)
    if found:
        days = scaled(found["d"] or "0", TICKS_DAY)
        hour, minute, second = (int(found[key] or 0) for key in ("H", "M", "S"))
        if days is None or hour > 23 or minute > 59 or second > 59:
            return None
        ticks = days + (hour * 3600 + minute * 60 + second) * TICKS_S + _fraction(found["f"])
        return in_long(-ticks if found["s"] else ticks)
    unit = _UNIT.match(text)
    if unit and unit["u"] in UNITS:
        return scaled(unit["n"], UNITS[unit["u"]])
    stripped = text.strip()
    if re.fullmatch(r"[+-]?\d+", stripped):
        return scaled(stripped, TICKS_DAY)
    return None


def scaled(number: str, ticks: int) -> int | None:
    """A number as written times a unit, without the error of binary fractions; None where no timespan is that long."""
    if number.lstrip("+-").isdigit() and len(number) <= MAX_DIGITS:
        return in_long(int(number) * ticks)
    made = float(number) * ticks
    return in_long(round(made)) if math.isfinite(made) else None


def datetime_text(ticks: int) -> str:
    """`2020-01-02T03:04:05.0000000Z`"""
    at = civil(ticks)
    clock = f"{at.hour:02}:{at.minute:02}:{at.second:02}.{ticks % TICKS_S:07}"
    return f"{at.year:04}-{at.month:02}-{at.day:02}T{clock}Z"


def timespan_text(ticks: int) -> str:
    """`[-][d.]hh:mm:ss[.fffffff]`"""
    days, rest = divmod(abs(ticks), TICKS_DAY)
    seconds, fraction = divmod(rest, TICKS_S)
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return ("-" if ticks < 0 else "") + (f"{days}." if days else "") + clock + (f".{fraction:07}" if fraction else "")


_SPAN_SPECIFIER = re.compile(r"d{1,8}|H{1,2}|h{1,2}|m{1,2}|s{1,2}|f{1,7}|F{1,7}|tt|.", re.DOTALL)
_SPECIFIER = re.compile(r"d{1,2}|M{1,2}|y{1,4}|H{1,2}|h{1,2}|m{1,2}|s{1,2}|f{1,7}|F{1,7}|tt|.", re.DOTALL)


def format_datetime(ticks: int, form: str) -> str | None:
    """By the specifiers of `format_datetime`; None where the form has one that is none of them."""
    at = civil(ticks)
    fraction = f"{ticks % TICKS_S:07}"
    return _formatted(
        form,
        {
            "d": lambda n: _digits(at.day, n),
            "M": lambda n: _digits(at.month, n),
            "y": lambda n: _digits(at.year % 100, n) if n < 3 else f"{at.year:0{n}}",
            "H": lambda n: _digits(at.hour, n),
            "h": lambda n: _digits((at.hour + 11) % 12 + 1, n),
            "m": lambda n: _digits(at.minute, n),
            "s": lambda n: _digits(at.second, n),
            "f": lambda n: fraction[:n],
            "F": lambda n: fraction[:n].rstrip("0"),
            "t": lambda n: "AM" if at.hour < 12 else "PM",
        },
        " /-:,._[]",
    )


def format_timespan(ticks: int, form: str) -> str | None:
    """By the specifiers of `format_timespan`; None where the form has one that is none of them."""
    days, rest = divmod(abs(ticks), TICKS_DAY)
    seconds = rest // TICKS_S
    fraction = f"{rest % TICKS_S:07}"
    text = _formatted(
        form,
        {
            "d": lambda n: f"{days:0{n}}",
            "H": lambda n: _digits(seconds // 3600, n),
            "h": lambda n: _digits(seconds // 3600, n),
            "m": lambda n: _digits(seconds // 60 % 60, n),
            "s": lambda n: _digits(seconds % 60, n),
            "f": lambda n: fraction[:n],
            "F": lambda n: fraction[:n].rstrip("0"),
            "t": lambda n: "AM" if seconds < 43200 else "PM",
        },
        " /-:,._[]",
        _SPAN_SPECIFIER,
    )
    return f"-{text}" if text and ticks < 0 else text


def _digits(value: int, width: int) -> str:
    return f"{value:0{min(width, 2)}}"


def _formatted(form: str, parts: dict[str, object], between: str, pieces: re.Pattern[str] = _SPECIFIER) -> str | None:
    out = ""
    for piece in pieces.findall(form):
        part = parts.get(piece[0])
        if part is not None:
            out += part(len(piece))  # type: ignore[operator]
        elif piece in between:
            out += piece
        else:
            return None
    return out


def day_name(ticks: int) -> str:
    """The English name of its day of the week."""
    return _DAYS[(ticks // TICKS_DAY + 1) % 7]


def month_name(month: int) -> str:
    """The English name of a month from 1 to 12."""
    return _LONG_MONTHS[month - 1]

"""Points and spans of time. Weeks begin on Sunday; `endof...` is the last tick inside."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from functools import cache
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from fairlead.logs.kql.kinds import MAX_DATETIME, TICKS_DAY, TICKS_S, in_long
from fairlead.logs.kql.registry import family
from fairlead.logs.kql.times import (
    EPOCH,
    add_months,
    civil,
    format_datetime,
    format_timespan,
    in_range,
    of_date,
)

fn = family("dates")

_SPANS = {
    "day": TICKS_DAY,
    "week": 7 * TICKS_DAY,
    "hour": 3600 * TICKS_S,
    "minute": 60 * TICKS_S,
    "second": TICKS_S,
    "millisecond": TICKS_S // 1000,
    "microsecond": 10,
    "nanosecond": 0,
}
_MONTHS = {"year": 12, "quarter": 3, "month": 1}


def start_of(ticks: int, unit: str, offset: int = 0) -> int | None:
    """Where the unit that holds a moment begins, so many units later."""
    if unit in _MONTHS:
        at = civil(ticks)
        step = _MONTHS[unit]
        return add_months(of_date(at.year, (at.month - 1) // step * step + 1), step * offset)
    size = _SPANS[unit]
    begin = (ticks + TICKS_DAY) // size * size - TICKS_DAY if unit == "week" else ticks // size * size
    return in_range(begin + offset * size)


def end_of(ticks: int, unit: str, offset: int = 0) -> int | None:
    """The last tick of that unit."""
    begin = start_of(ticks, unit, offset)
    if begin is None:
        return None
    after = start_of(begin, unit, 1)
    return after - 1 if after is not None else MAX_DATETIME


def _edges(unit: str) -> None:
    fn(f"startof{unit}", "datetime long? -> datetime")(lambda t, offset=0: start_of(t, unit, offset))
    fn(f"endof{unit}", "datetime long? -> datetime")(lambda t, offset=0: end_of(t, unit, offset))


for _unit in ("day", "week", "month", "year"):
    _edges(_unit)


def _week_of_year(ticks: int) -> int:
    at = datetime.fromordinal(ticks // TICKS_DAY + 1)
    return at.isocalendar().week


@fn("dayofweek", "datetime -> timespan")
def dayofweek(t: int) -> int:
    return (t // TICKS_DAY + 1) % 7 * TICKS_DAY


@fn("dayofmonth", "datetime -> int")
def dayofmonth(t: int) -> int:
    return civil(t).day


@fn("dayofyear", "datetime -> int")
def dayofyear(t: int) -> int:
    return (t - of_date(civil(t).year)) // TICKS_DAY + 1


@fn("hourofday", "datetime -> int")
def hourofday(t: int) -> int:
    return civil(t).hour


@fn("monthofyear getmonth", "datetime -> int")
def monthofyear(t: int) -> int:
    return civil(t).month


@fn("getyear", "datetime -> int")
def getyear(t: int) -> int:
    return civil(t).year


@fn("week_of_year weekofyear", "datetime -> int")
def week_of_year(t: int) -> int:
    return _week_of_year(t)


_PARTS: dict[str, Any] = {
    "year": getyear,
    "quarter": lambda t: (civil(t).month + 2) // 3,
    "month": monthofyear,
    "week_of_year": _week_of_year,
    "weekofyear": _week_of_year,
    "day": dayofmonth,
    "dayofyear": dayofyear,
    "hour": hourofday,
    "minute": lambda t: civil(t).minute,
    "second": lambda t: civil(t).second,
    "millisecond": lambda t: t % TICKS_S // 10_000,
    "microsecond": lambda t: t % TICKS_S // 10,
    "nanosecond": lambda t: t % TICKS_S * 100,
}


@fn("datetime_part datepart", "string datetime -> int")
def datetime_part(part: str, t: int) -> int | None:
    found = _PARTS.get(part.lower())
    return int(found(t)) if found else None


@fn("datetime_add", "string long datetime -> datetime")
def datetime_add(part: str, num: int, t: int) -> int | None:
    unit = part.lower()
    if unit in _MONTHS:
        return add_months(t, num * _MONTHS[unit])
    if unit == "nanosecond":
        return in_range(t + num // 100)
    return in_range(t + num * _SPANS[unit]) if unit in _SPANS else None


@fn("datetime_diff", "string datetime datetime -> long")
def datetime_diff(part: str, a: int, b: int) -> int | None:
    """How many boundaries of a unit lie between two moments."""
    unit = part.lower()
    if unit in _MONTHS:
        one, two = civil(a), civil(b)
        step = _MONTHS[unit]
        return (one.year * 12 + one.month - 1) // step - (two.year * 12 + two.month - 1) // step
    if unit == "nanosecond":
        return (a - b) * 100
    if unit == "week":
        return (a + TICKS_DAY) // _SPANS["week"] - (b + TICKS_DAY) // _SPANS["week"]
    return a // _SPANS[unit] - b // _SPANS[unit] if unit in _SPANS else None


@fn("make_datetime", "number number number number? number? number? -> datetime")
def make_datetime(year: Any, month: Any, day: Any, hour: Any = 0, minute: Any = 0, second: Any = 0) -> int | None:
    if not (0 <= hour < 24 and 0 <= minute < 60 and 0 <= second < 60):
        return None
    try:
        begin = of_date(int(year), int(month), int(day))
    except (ValueError, OverflowError):
        return None
    return begin + (int(hour) * 3600 + int(minute) * 60) * TICKS_S + round(float(second) * TICKS_S)


@fn("make_timespan", "number number number? number? -> timespan")
def make_timespan(*parts: Any) -> int | None:
    """`hours, minutes`, `hours, minutes, seconds` or `days, hours, minutes, seconds`."""
    days, hours, minutes, seconds = parts if len(parts) == 4 else (0, *parts, *([0] * (3 - len(parts))))
    if not (math.isfinite(days) and 0 <= hours < 24 and 0 <= minutes < 60 and 0 <= seconds < 60):
        return None
    whole = (int(hours) * 3600 + int(minutes) * 60) * TICKS_S
    return in_long(int(days) * TICKS_DAY + whole + round(float(seconds) * TICKS_S))


for _name, _ticks in {"seconds": TICKS_S, "milliseconds": 10_000, "microseconds": 10, "nanoseconds": 0.01}.items():
    fn(f"unixtime_{_name}_todatetime", "number -> datetime")(
        lambda n, ticks=_ticks: (
            in_range(
                EPOCH
                + (
                    n // 100
                    if ticks == 0.01 and isinstance(n, int)
                    else n * ticks
                    if isinstance(n, int)
                    else round(float(n) * ticks)
                )
            )
            if math.isfinite(n)
            else None
        )
    )


@fn("format_datetime", "datetime string -> string")
def formatted_datetime(t: int, form: str) -> str | None:
    return format_datetime(t, form)


@fn("format_timespan", "timespan string -> string")
def formatted_timespan(t: int, form: str) -> str | None:
    return format_timespan(t, form)


@cache
def _zone(name: str) -> ZoneInfo | None:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return None


def _shift(t: int, name: str, local: bool) -> int | None:
    zone = _zone(name)
    if zone is None:
        return None
    seconds, rest = divmod(t, TICKS_S)
    naive = datetime.fromordinal(seconds // 86400 + 1).replace(
        hour=seconds % 86400 // 3600, minute=seconds % 3600 // 60, second=seconds % 60
    )
    if local:
        offset = naive.replace(tzinfo=zone).utcoffset()
        assert offset is not None
        return in_range(t - round(offset.total_seconds()) * TICKS_S)
    offset = naive.replace(tzinfo=UTC).astimezone(zone).utcoffset()
    assert offset is not None
    return in_range((seconds + round(offset.total_seconds())) * TICKS_S + rest)


@fn("datetime_utc_to_local", "datetime string -> datetime")
def utc_to_local(t: int, zone: str) -> int | None:
    return _shift(t, zone, local=False)


@fn("datetime_local_to_utc", "datetime string -> datetime")
def local_to_utc(t: int, zone: str) -> int | None:
    return _shift(t, zone, local=True)


@fn("datetime_list_timezones", "-> dynamic")
def timezones() -> list[str]:
    return sorted(available_timezones())

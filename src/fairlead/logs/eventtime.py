"""The time of an event, from the line that tells it: nanoseconds since 1970, UTC.

Zones: a line that carries one is believed; all others are in the zone of who wrote the file. Years: a line without one
happened in the newest year in which it is not after the file was last written. Pure.

Must not know: files, formats.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from dataclasses import dataclass

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
DAY_NS = 86_400 * 10**9
_FRACTION = re.compile(r"[.,](\d{1,9})\d*")
MONTHS = {
    "Jan": 1, "Feb": 2, "Mar": 3, "Apr": 4, "May": 5, "Jun": 6, "Jul": 7, "Aug": 8, "Sep": 9, "Oct": 10, "Nov": 11,
    "Dec": 12,
}  # fmt: skip
EARLIEST_NS = 631_152_000 * 10**9
"""1990-01-01: what says it is older is a clock that was never set (a node's clock without a battery starts at 1970)."""


@dataclass(frozen=True, slots=True)
class Clock:
    """What a line leaves unsaid about its time."""

    zone: dt.tzinfo = dt.UTC
    written_ns: int = 0
    """When the file was last written: dates the lines without a year."""
    now_ns: int = 0
    """When it is read: what claims to be more than a day later is not believed; 0 believes all."""
    boot_ns: int | None = None
    """When the machine started, for times that count from there; None: not known."""


def event_ns(kind: str, text: str, clock: Clock) -> int | None:
    """The time that `text` says, in one of the forms of KINDS; None where it says none, or none to be believed."""
    try:
        found = _KINDS[kind](text, clock)
    except (ValueError, OverflowError, KeyError, IndexError):
        return None
    if found is None or found < EARLIEST_NS or (clock.now_ns and found > clock.now_ns + DAY_NS):
        return None
    return found


def _ns(when: dt.datetime, clock: Clock, fraction: str = "") -> int:
    """Nanoseconds of a time of whole microseconds, whose `fraction` may say more."""
    if when.tzinfo is None:
        when = when.replace(tzinfo=clock.zone)
    past = when - _EPOCH
    nanos = int(fraction.ljust(9, "0")) if fraction else past.microseconds * 1000
    return (past.days * 86_400 + past.seconds) * 10**9 + nanos


def _iso(text: str, clock: Clock) -> int:
    return _ns(dt.datetime.fromisoformat(text), clock, _fraction(text) if len(text) > 26 else "")


def _fraction(text: str) -> str:
    found = _FRACTION.search(text)
    return found[1] if found else ""


def _yearless(month: int, day: int, clock_text: str, clock: Clock) -> int:
    """`clock_text` is HH:MM:SS with a fraction or none."""
    hour, minute, second = int(clock_text[:2]), int(clock_text[3:5]), int(clock_text[6:8])
    latest = clock.written_ns or clock.now_ns
    year = (_EPOCH + dt.timedelta(seconds=(latest + DAY_NS) // 10**9)).year
    for back in range(9):  # eight years hold a 29th of February, also around 2100
        try:
            when = dt.datetime(year - back, month, day, hour, minute, second)  # noqa: DTZ001 - _ns gives it its zone
        except ValueError:
            if (month, day) != (2, 29):
                raise
            continue
        found = _ns(when, clock, _fraction(clock_text))
        if found <= latest + DAY_NS:
            return found
    raise ValueError(clock_text)


def _bsd(text: str, clock: Clock) -> int:
    return _yearless(MONTHS[text[:3]], int(text[4:6]), text[7:], clock)


def _glog(text: str, clock: Clock) -> int:
    date, _, rest = text.partition(" ")
    return _yearless(int(date[:-2]), int(date[-2:]), rest, clock)


def _ctime(text: str, clock: Clock) -> int:
    parts = text.split()
    hour, minute, second = (int(part) for part in parts[3].split(":"))
    return _ns(dt.datetime(int(parts[4]), MONTHS[parts[1]], int(parts[2]), hour, minute, second), clock)  # noqa: DTZ001


def _since_boot(scale: int) -> Callable[[str, Clock], int | None]:
    def found(text: str, clock: Clock) -> int | None:
        whole, _, part = text.partition(".")
        nanos = int(whole) * scale + (int(part[:9].ljust(9, "0")) if part else 0)
        return None if clock.boot_ns is None else clock.boot_ns + nanos

    return found


def _epoch_us(text: str, clock: Clock) -> int:
    return int(text) * 1000


_KINDS: dict[str, Callable[[str, Clock], int | None]] = {
    "iso": _iso,
    "bsd": _bsd,
    "glog": _glog,
    "ctime": _ctime,
    "boot": _since_boot(10**9),
    "kmsg": _since_boot(1000),
    "epoch_us": _epoch_us,
}
KINDS = frozenset(_KINDS)
"""iso: ISO 8601, zone or none. bsd: `Dec  6 19:25:33`. glog: `1218 20:27:21.426415540`; torch
writes June 3rd as `603`. ctime: `Sun Feb 23 16:24:18 2025`. boot: seconds, kmsg: microseconds since the machine
started. epoch_us: microseconds since 1970."""

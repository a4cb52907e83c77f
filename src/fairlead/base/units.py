"""Sizes, rates and times as people write and read them. Binary prefixes for bytes held, decimal for rates.

>>> duration(0.0042), duration(61), size(1 << 30), rate(400e9)
('4.2 ms', '1 m 01 s', '1 GiB', '400 Gb/s')
"""

from __future__ import annotations

import math

_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def duration(seconds: float) -> str:
    """A time a person reads: three figures below a minute, minutes and seconds above."""
    if not math.isfinite(seconds):
        return "-"
    if seconds < 0:
        return "-" + duration(-seconds)
    if seconds >= 59.95:
        minutes, rest = divmod(round(seconds), 60)
        hours, minutes = divmod(minutes, 60)
        return f"{hours} h {minutes:02} m" if hours else f"{minutes} m {rest:02} s"
    # 0.9996 s is one second, not 1e+03 ms: three figures decide the unit
    scale, unit = next((t for t in _TIMES if seconds >= 0.9995 * t[0]), _TIMES[-1])
    return f"{seconds / scale:.3g} {unit}"


def clock(seconds: float) -> str:
    """A time in few columns, as clocks show it.

    >>> clock(7.6), clock(201), clock(5025)
    ('0:08', '3:21', '1:23:45')
    """
    minutes, rest = divmod(round(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def size(num_bytes: float) -> str:
    """Bytes with a binary prefix."""
    return _prefixed(num_bytes, 1024, ("B", "KiB", "MiB", "GiB", "TiB"))


def rate(bits_per_second: float) -> str:
    """A link rate with a decimal prefix."""
    return _prefixed(bits_per_second, 1000, ("b/s", "kb/s", "Mb/s", "Gb/s", "Tb/s"))


def whole(text: object, digits: int = 18) -> int | None:
    """What a text from outside says as a whole number of at most so many digits; None where it says none.

    `str.isdigit` alone holds `³` for a digit, which `int` does not, and `int` reads no more than 4,300 digits.

    >>> whole("8"), whole("³"), whole("-1"), whole("9" * 5000), whole(None)
    (8, None, None, None, None)
    """
    is_one = isinstance(text, str) and text.isascii() and text.isdigit() and len(text) <= digits
    return int(str(text)) if is_one else None


def counted(num: int, what: str) -> str:
    """How many of something.

    >>> counted(1, "plane"), counted(2, "switch")
    ('1 plane', '2 switches')
    """
    ending = "" if num == 1 else "es" if what.endswith(("ch", "s", "x")) else "s"
    return f"{num} {what}{ending}"


def _prefixed(value: float, step: int, units: tuple[str, ...]) -> str:
    """Four figures and the largest unit of which there is at least one."""
    if not math.isfinite(value):
        return "-"
    for unit in units[:-1]:
        if abs(float(f"{value:.4g}")) < step:
            return f"{value:.4g} {unit}"
        value /= step
    return (f"{value:.4g}" if abs(value) < 10_000 else f"{value:.0f}") + f" {units[-1]}"

"""Sizes, rates and times as people write and read them. Binary prefixes for bytes held, decimal for rates.

>>> duration(0.0042), duration(61), size(1 << 30), rate(400e9)
('4.2 ms', '1 m 01 s', '1 GiB', '400 Gb/s')
"""

from __future__ import annotations


def duration(seconds: float) -> str:
    """A time a person reads: three figures below a minute, minutes and seconds above."""
    if seconds < 0:
        return "-" + duration(-seconds)
    if seconds >= 60:
        minutes, rest = divmod(round(seconds), 60)
        hours, minutes = divmod(minutes, 60)
        return f"{hours} h {minutes:02} m" if hours else f"{minutes} m {rest:02} s"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def size(num_bytes: float) -> str:
    """Bytes with a binary prefix."""
    value, unit = float(num_bytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.4g} {unit}"


def rate(bits_per_second: float) -> str:
    """A link rate with a decimal prefix."""
    value, unit = float(bits_per_second), "b/s"
    for unit in ("b/s", "kb/s", "Mb/s", "Gb/s", "Tb/s"):
        if abs(value) < 1000 or unit == "Tb/s":
            break
        value /= 1000
    return f"{value:.4g} {unit}"

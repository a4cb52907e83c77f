"""Values to positions: round ticks, one unit an axis, linear and logarithmic. Pure arithmetic, no drawing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

_SI = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"))
_BINARY = tuple((1024.0**i, p) for i, p in reversed(list(enumerate(("", "Ki", "Mi", "Gi", "Ti")))))
_PREFIXED = {"b/s": _SI[:5], "B/s": _SI[:5], "B": _BINARY, "s": _SI[4:], "": _SI[:5]}
"""Units that take a prefix. Seconds never become kiloseconds, rates never millibits."""


@dataclass(frozen=True)
class Axis:
    """What an axis shows. Values are in the plain unit (seconds, bits per second, bytes); the axis picks the prefix."""

    label: str
    unit: str = ""
    log: bool = field(default=False, kw_only=True)
    lo: float | None = field(default=None, kw_only=True)
    hi: float | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class Tick:
    """A value and how it is written."""

    value: float
    label: str


@dataclass(frozen=True)
class Scale:
    """An axis over real data: its range, its ticks, its title with the unit."""

    lo: float
    hi: float
    log: bool
    ticks: tuple[Tick, ...]
    title: str
    unit: str
    divisor: float = 1.0

    def has(self, value: float) -> bool:
        """Whether a value can stand on this scale at all."""
        return math.isfinite(value) and (value > 0 or not self.log)

    def show(self, value: float) -> str:
        """A value as a table under this title writes it."""
        if not math.isfinite(value):
            return "-"
        return written(value, self.unit) if self.log else f"{value / self.divisor:.5g}"

    def place(self, value: float) -> float:
        """0 at the low end, 1 at the high end; what lies outside is put on the edge."""
        value = min(max(value, self.lo), self.hi)
        if self.log:
            return math.log(value / self.lo) / math.log(self.hi / self.lo)
        return (value - self.lo) / (self.hi - self.lo)


def scale(axis: Axis, values: Iterable[float], *, num_ticks: int = 6) -> Scale:
    """A scale that holds all finite values, with round ends where the axis leaves them open."""
    finite = [v for v in values if math.isfinite(v) and (v > 0 or not axis.log)]
    lo = axis.lo if axis.lo is not None else min(finite, default=1.0 if axis.log else 0.0)
    hi = axis.hi if axis.hi is not None else max(finite, default=lo)
    if axis.log:
        return _log_scale(axis, lo, hi, num_ticks)
    if hi <= lo:
        hi = lo + (abs(lo) or 1.0)
    step = nice_step(hi - lo, num_ticks)
    # the tolerance keeps 0.3 / 0.1 from asking for one more step
    lo = lo if axis.lo is not None else math.floor(lo / step + 1e-9) * step
    hi = hi if axis.hi is not None else math.ceil(hi / step - 1e-9) * step
    divisor, prefix = _prefix(axis.unit, max(abs(lo), abs(hi)))
    if axis.unit == "B":
        # ticks at 1, 2, 5 of the binary unit, not of a power of ten
        step = nice_step((hi - lo) / divisor, num_ticks) * divisor
        hi = hi if axis.hi is not None else math.ceil(hi / step - 1e-9) * step
    first, last = math.ceil(lo / step - 1e-9), math.floor(hi / step + 1e-9)
    decimals = max(0, -math.floor(math.log10(step / divisor) + 1e-9))
    ticks = tuple(Tick(i * step, f"{i * step / divisor:.{decimals}f}" if i else "0") for i in range(first, last + 1))
    return Scale(lo, hi, False, ticks, _title(axis.label, prefix + axis.unit), axis.unit, divisor)


def _log_scale(axis: Axis, lo: float, hi: float, num_ticks: int) -> Scale:
    if lo <= 0 or hi <= 0:
        raise ValueError(f"axis {axis.label!r}: a logarithmic axis needs limits above zero")
    first, last = math.floor(math.log10(lo) + 1e-9), math.ceil(math.log10(hi) - 1e-9)
    last = max(last, first + 1)
    lo = axis.lo if axis.lo is not None else 10.0**first
    hi = axis.hi if axis.hi is not None else 10.0**last
    every = max(1, math.ceil((last - first) / num_ticks))
    values = [10.0**e for e in range(first, last + 1, every) if lo * 0.999 <= 10.0**e <= hi * 1.001]
    ticks = tuple(Tick(v, written(v, axis.unit)) for v in values)
    # each tick carries its own unit, so the title does not
    return Scale(lo, hi, True, ticks, axis.label, axis.unit)


def written(value: float, unit: str) -> str:
    """A value with its unit and prefix, three figures: `12.5 Gb/s`, `340 µs`, `93 %`."""
    if not math.isfinite(value):
        return "-"
    divisor, prefix = _prefix(unit, abs(value))
    return f"{value / divisor:.3g}" + (f" {prefix}{unit}" if prefix + unit else "")


def nice_step(span: float, num_ticks: int) -> float:
    """The smallest of 1, 2, 5 times a power of ten that needs at most `num_ticks` steps for the span."""
    raw = span / max(1, num_ticks)
    power = 10.0 ** math.floor(math.log10(raw))
    return next((m * power for m in (1, 2, 5) if m * power >= raw * (1 - 1e-9)), 10 * power)


def _prefix(unit: str, largest: float) -> tuple[float, str]:
    table = _PREFIXED.get(unit, ((1.0, ""),))
    # a value of 999.6 must not be written as 1e+03 of the smaller unit
    return next((p for p in table if largest * 1.0005 >= p[0]), table[-1] if largest else (1.0, ""))


def _title(label: str, unit: str) -> str:
    return f"{label} ({unit})" if unit else label


def thin(points: Sequence[tuple[float, float]], num_columns: int) -> list[tuple[float, float]]:
    """The same curve to the eye: first, lowest, highest and last point of each of `num_columns` slices along x."""
    if len(points) <= 4 * num_columns:
        return list(points)
    lo, hi = points[0][0], points[-1][0]
    columns: dict[int, list[tuple[float, float]]] = {}
    for point in points:
        columns.setdefault(int((point[0] - lo) / (hi - lo) * num_columns) if hi > lo else 0, []).append(point)
    out: list[tuple[float, float]] = []
    for column in columns.values():
        low, high = min(column, key=lambda p: p[1]), max(column, key=lambda p: p[1])
        kept = {id(p): p for p in (column[0], low, high, column[-1])}
        out.extend(p for p in column if id(p) in kept)
    return out


def spread(wanted: Sequence[float], gap: float, lo: float, hi: float) -> list[float]:
    """Positions near the wanted ones, in the same order, at least `gap` apart and within the limits if they fit.

    Used for labels at the end of curves. Pools neighbours that collide and centres each pool on its members.
    """
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    pools: list[list[int]] = []
    tops: list[float] = []

    def top_of(pool: list[int]) -> float:
        centre = sum(wanted[i] for i in pool) / len(pool)
        height = gap * (len(pool) - 1)
        return min(max(centre - height / 2, lo), max(lo, hi - height))

    for index in order:
        pools.append([index])
        tops.append(top_of(pools[-1]))
        while len(pools) > 1 and tops[-2] + gap * len(pools[-2]) > tops[-1]:
            last = pools.pop()
            tops.pop()
            pools[-1] += last
            tops[-1] = top_of(pools[-1])
    out = [0.0] * len(wanted)
    for pool, top in zip(pools, tops, strict=True):
        for i, index in enumerate(pool):
            out[index] = top + i * gap
    return out

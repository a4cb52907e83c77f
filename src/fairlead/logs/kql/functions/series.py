"""Arrays of numbers as series: what `make-series` makes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from fairlead.logs.kql.kinds import Kind
from fairlead.logs.kql.registry import family

fn = family("series")


def reals(items: Any) -> list[float] | None:
    """The numbers of an array; None where it is none or holds something else."""
    if not isinstance(items, list):
        return None
    try:
        return [math.nan if item is None else float(item) for item in items]
    except (TypeError, ValueError):
        return None


def plain(value: float) -> Any:
    """NaN is null in a series."""
    return None if math.isnan(value) else value


def _pairs(a: Any, b: Any) -> list[tuple[Any, Any]]:
    one = a if isinstance(a, list) else [a] * (len(b) if isinstance(b, list) else 1)
    two = b if isinstance(b, list) else [b] * len(one)
    size = max(len(one), len(two))
    return [(one[i] if i < len(one) else None, two[i] if i < len(two) else None) for i in range(size)]


def _elementwise(name: str, run: Callable[[float, float], Any]) -> None:
    @fn(name, "any any -> dynamic", strict=False)
    def made(a: Any, b: Any) -> Any:
        if a is None or b is None:
            return None
        return [
            run(x, y) if isinstance(x, int | float) and isinstance(y, int | float) else None for x, y in _pairs(a, b)
        ]


def _divide(x: float, y: float) -> Any:
    return x / y if y else (math.nan if x == 0 else math.copysign(math.inf, x))


for _name, _run in {
    "series_add": lambda x, y: x + y,
    "series_subtract": lambda x, y: x - y,
    "series_multiply": lambda x, y: x * y,
    "series_divide": _divide,
    "series_pow": math.pow,
    "series_greater": lambda x, y: x > y,
    "series_greater_equals": lambda x, y: x >= y,
    "series_less": lambda x, y: x < y,
    "series_less_equals": lambda x, y: x <= y,
    "series_equals": lambda x, y: x == y,
    "series_not_equals": lambda x, y: x != y,
}.items():
    _elementwise(_name, _run)


def _mapped(name: str, run: Callable[[float], Any]) -> None:
    @fn(name, "array -> dynamic")
    def made(items: Any) -> Any:
        values = reals(items)
        if values is None:
            return None
        out: list[Any] = []
        for value in values:
            try:
                out.append(None if math.isnan(value) else run(value))
            except (ValueError, OverflowError):
                out.append(None)
        return out


for _name, _map in {
    "series_exp": math.exp,
    "series_sin": math.sin,
    "series_cos": math.cos,
    "series_tan": math.tan,
    "series_asin": math.asin,
    "series_acos": math.acos,
    "series_atan": math.atan,
    "series_log": math.log,
    "series_sign": lambda x: float((x > 0) - (x < 0)),
    "series_floor": lambda x: float(math.floor(x)),
    "series_ceiling": lambda x: float(math.ceil(x)),
}.items():
    _mapped(_name, _map)


@fn("series_abs", "array -> dynamic")
def series_abs(items: Any) -> Any:
    return [abs(v) if isinstance(v, int | float) else None for v in items] if isinstance(items, list) else None


@fn("series_sum", "array -> real")
def series_sum(items: Any) -> float | None:
    values = reals(items)
    return None if values is None else math.fsum(v for v in values if not math.isnan(v))


@fn("series_product", "array -> real")
def series_product(items: Any) -> float | None:
    values = reals(items)
    return None if values is None else math.prod(v for v in values if not math.isnan(v))


@fn("series_magnitude", "array -> real")
def series_magnitude(items: Any) -> float | None:
    values = reals(items)
    return None if values is None else math.sqrt(math.fsum(v * v for v in values))


@fn("series_dot_product", "array array -> real")
def series_dot_product(a: Any, b: Any) -> float | None:
    one, two = reals(a), reals(b)
    return None if one is None or two is None else math.fsum(x * y for x, y in zip(one, two, strict=False))


@fn("series_cosine_similarity", "array array real? real? -> real")
def series_cosine_similarity(a: Any, b: Any, size_a: float = 0, size_b: float = 0) -> float | None:
    one, two = reals(a), reals(b)
    if one is None or two is None or len(one) != len(two):
        return None
    size = math.sqrt(math.fsum(x * x for x in one)) * math.sqrt(math.fsum(x * x for x in two))
    return math.fsum(x * y for x, y in zip(one, two, strict=True)) / size if size else None


@fn("series_pearson_correlation", "array array -> real")
def series_pearson_correlation(a: Any, b: Any) -> float | None:
    one, two = reals(a), reals(b)
    if one is None or two is None or len(one) != len(two) or not one:
        return None
    mean_a, mean_b = math.fsum(one) / len(one), math.fsum(two) / len(two)
    size = math.sqrt(math.fsum((x - mean_a) ** 2 for x in one)) * math.sqrt(math.fsum((y - mean_b) ** 2 for y in two))
    return math.fsum((x - mean_a) * (y - mean_b) for x, y in zip(one, two, strict=True)) / size if size else math.nan


def _same(a: Any, b: Any) -> bool:
    return bool(a == b or (isinstance(a, float) and math.isnan(a) and b is None))


@fn("series_fill_const", "array any any? -> dynamic", strict=False)
def fill_const(items: Any, value: Any, missing: Any = None) -> Any:
    return [value if v is None or _same(v, missing) else v for v in items] if isinstance(items, list) else None


def _filled(items: list[Any], missing: Any) -> list[Any]:
    out: list[Any] = []
    last = None
    for value in items:
        gap = value is None or (missing is not None and value == missing)
        out.append(last if gap and last is not None else value)
        last = last if gap else value
    return out


@fn("series_fill_forward", "array any? -> dynamic", strict=False)
def fill_forward(items: Any, missing: Any = None) -> Any:
    return _filled(items, missing) if isinstance(items, list) else None


@fn("series_fill_backward", "array any? -> dynamic", strict=False)
def fill_backward(items: Any, missing: Any = None) -> Any:
    return _filled(items[::-1], missing)[::-1] if isinstance(items, list) else None


@fn("series_fill_linear", "array any? bool? any? -> dynamic", strict=False)
def fill_linear(items: Any, missing: Any = None, edges: bool = True, constant: Any = 0) -> Any:
    """Between the neighbours on a straight line; at the ends as the nearest one."""
    if not isinstance(items, list):
        return None
    gaps = [v is None or (missing is not None and v == missing) for v in items]
    known = [i for i, gap in enumerate(gaps) if not gap]
    if not known:
        return [float(constant)] * len(items)
    whole = all(isinstance(items[i], int) for i in known)
    out = list(items)
    for i, gap in enumerate(gaps):
        if not gap:
            continue
        before = max((k for k in known if k < i), default=None)
        after = min((k for k in known if k > i), default=None)
        if before is None or after is None:
            near = after if before is None else before
            assert near is not None
            out[i] = items[near] if edges else items[i]
        else:
            made = items[before] + (items[after] - items[before]) * (i - before) / (after - before)
            out[i] = int(made) if whole else made
    return out


@fn("series_fir", "array array bool? bool? -> dynamic", kinds=True)
def series_fir(kinds: tuple[Kind, ...], items: Any, taps: Any, normalize: Any = None, center: bool = False) -> Any:
    """A filter of finite response; normalized by itself where the taps are equal."""
    values, weights = reals(items), reals(taps)
    if values is None or weights is None or not weights:
        return None
    if normalize is None:
        normalize = len(set(weights)) == 1
    total = math.fsum(weights)
    if normalize and total:
        weights = [w / total for w in weights]
    shift = len(weights) // 2 if center else 0
    out = []
    for i in range(len(values)):
        at = i + shift
        out.append(math.fsum(w * values[at - j] for j, w in enumerate(weights) if 0 <= at - j < len(values)))
    return out


@fn("series_iir", "array array array -> dynamic")
def series_iir(items: Any, b: Any, a: Any) -> Any:
    values, tops, bottoms = reals(items), reals(b), reals(a)
    if values is None or not tops or not bottoms or bottoms[0] == 0:
        return None
    out: list[float] = []
    for i in range(len(values)):
        made = sum(t * values[i - j] for j, t in enumerate(tops) if i - j >= 0)
        made -= sum(t * out[i - j] for j, t in enumerate(bottoms) if j and i - j >= 0)
        out.append(made / bottoms[0])
    return out


def line_of(values: list[float]) -> tuple[float, ...]:
    """rsquare, slope, variance, rvariance, interception of the least squares line."""
    num = len(values)
    mean_x, mean_y = (num - 1) / 2, math.fsum(values) / num
    spread = math.fsum((x - mean_x) ** 2 for x in range(num))
    slope = math.fsum((x - mean_x) * (y - mean_y) for x, y in enumerate(values)) / spread if spread else 0.0
    start = mean_y - slope * mean_x
    total = math.fsum((y - mean_y) ** 2 for y in values)
    rest = math.fsum((y - start - slope * x) ** 2 for x, y in enumerate(values))
    below = num - 1 or 1
    return (1 - rest / total if total else 1.0, slope, total / below, rest / below, start)


LINE = ("rsquare", "slope", "variance", "rvariance", "interception", "line_fit")


def fit_line(items: Any) -> tuple[Any, ...]:
    """The columns of `series_fit_line`."""
    values = reals(items)
    if not values or any(math.isnan(v) for v in values):
        return (None,) * 6
    made = line_of(values)
    return (*made, [made[4] + made[1] * x for x in range(len(values))])


@fn("series_fit_line_dynamic", "array -> dynamic")
def series_fit_line_dynamic(items: Any) -> Any:
    return dict(zip(LINE, fit_line(items), strict=True))


STATS = ("min", "min_idx", "max", "max_idx", "avg", "stdev", "variance")


def stats(items: Any) -> tuple[Any, ...]:
    """The columns of `series_stats`."""
    if not isinstance(items, list):
        return (None,) * 7
    known = [(float(v), i) for i, v in enumerate(items) if isinstance(v, int | float) and not math.isnan(v)]
    if not known:
        return (None,) * 7
    low, high = min(known), max(known, key=lambda pair: (pair[0], -pair[1]))
    mean = math.fsum(v for v, _ in known) / len(known)
    spread = math.fsum((v - mean) ** 2 for v, _ in known) / (len(known) - 1) if len(known) > 1 else 0.0
    return (low[0], low[1], high[0], high[1], mean, math.sqrt(spread), spread)


@fn("series_stats_dynamic", "array bool? -> dynamic")
def series_stats_dynamic(items: Any, ignore: bool = True) -> Any:
    found = stats(items)
    made = dict(zip(STATS, found, strict=True))
    if isinstance(items, list):
        values = [float(v) for v in items if isinstance(v, int | float)]
        made |= {"sum": math.fsum(values), "len": len(items)}
    return made


@fn("series_outliers", "array string? real? real? real? -> dynamic")
def series_outliers(
    items: Any, kind: str = "ctukey", ignore: float = math.nan, low: float = 10.0, high: float = 90.0
) -> Any:
    """Tukey's fence between two percentiles: a score of more than 1.5 or less than -1.5 stands outside."""
    values = reals(items)
    if values is None:
        return None
    if kind == "tukey":
        low, high = 25.0, 75.0
    known = sorted(v for v in values if not math.isnan(v))
    if not known:
        return None
    bottom, top = _percentile(known, low), _percentile(known, high)
    width = top - bottom
    scale = {"tukey": 1.0}.get(kind, (0.6745 * 2 * 1.0) / (2 * 1.2815515655446004))
    width = width * scale if kind != "tukey" else width
    if not width:
        return [0.0 for _ in values]
    return [
        None if math.isnan(v) else (v - top) / width if v > top else (v - bottom) / width if v < bottom else 0.0
        for v in values
    ]


def _percentile(known: list[float], percent: float) -> float:
    place = (len(known) - 1) * percent / 100
    below = math.floor(place)
    above = min(below + 1, len(known) - 1)
    return known[below] + (known[above] - known[below]) * (place - below)

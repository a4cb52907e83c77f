"""Arithmetic and bits."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from fairlead.logs.kql.kinds import MAX_DIGITS, Kind, wrap_long
from fairlead.logs.kql.registry import family
from fairlead.logs.kql.times import in_range

fn = family("mathematics")


def _guarded(run: Callable[..., float]) -> Callable[..., float]:
    """NaN where a function has no value, infinity where it has no bound."""

    def guarded(*args: float) -> float:
        try:
            return run(*args)
        except ValueError:
            return math.nan
        except OverflowError:
            return math.inf

    return guarded


def _log(base: Callable[[float], float]) -> Callable[[float], float | None]:
    """Null of what is negative."""
    return lambda x: -math.inf if x == 0 else None if x < 0 else base(x)


for _name, _run in {
    "sqrt": math.sqrt,
    "exp": math.exp,
    "exp2": lambda x: 2.0**x,
    "exp10": lambda x: 10.0**x,
    "sin": math.sin,
    "cos": math.cos,
    "tan": math.tan,
    "asin": math.asin,
    "acos": math.acos,
    "atan": math.atan,
    "cot": lambda x: 1 / math.tan(x) if x else math.inf,
    "degrees": lambda x: 180.0 / math.pi * x,
    "radians": lambda x: math.pi / 180.0 * x,
    "gamma": math.gamma,
    "loggamma": math.lgamma,
    "erf": math.erf,
    "erfc": math.erfc,
}.items():
    fn(_name, "number -> real")(_guarded(_run))
for _name, _run in {"log": math.log, "log2": math.log2, "log10": math.log10}.items():
    fn(_name, "number -> real")(_log(_run))


@fn("pow", "number number -> real")
def power(base: float, exponent: float) -> float:
    try:
        result = math.pow(base, exponent)
    except ValueError:
        return math.inf if base == 0 else math.nan
    except OverflowError:
        return -math.inf if base < 0 and exponent % 2 else math.inf
    return result


@fn("atan2", "number number -> real")
def atan2(y: float, x: float) -> float:
    return math.atan2(y, x)


@fn("pi", "-> real")
def pi() -> float:
    return math.pi


@fn("sign", "number -> real")
def sign(value: Any) -> float:
    return float((value > 0) - (value < 0))


@fn("abs", "summable -> same_long")
def absolute(value: Any) -> Any:
    return wrap_long(abs(value)) if isinstance(value, int) else -value if math.copysign(1, value) < 0 else value


@fn("ceiling", "number -> same")
def ceiling(value: Any) -> Any:
    if isinstance(value, float):
        return float(math.ceil(value)) if math.isfinite(value) else value
    return Decimal(math.ceil(value)) if isinstance(value, Decimal) else value


@fn("round", "number long? -> same")
def rounded(value: Any, digits: int = 0) -> Any:
    """Halves away from zero."""
    if isinstance(value, int):
        if digits >= 0:
            return value
        if digits < -MAX_DIGITS:
            return 0
        scale = 10**-digits
        whole, rest = divmod(abs(value), scale)
        return int(math.copysign((whole + (2 * rest >= scale)) * scale, value))
    if isinstance(value, float) and (not math.isfinite(value) or abs(value) >= 1e15):
        return value
    if not -30 <= digits <= 30:
        return value
    exact = Decimal(repr(value)) if isinstance(value, float) else value
    made = exact.quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP)
    return float(made) if isinstance(value, float) else made


@fn("bin floor", "summable summable -> bin", kinds=True)
def floored(kinds: tuple[Kind, ...], value: Any, size: Any) -> Any:
    """The nearest multiple of a size below a value; of a datetime since the year 1."""
    return binned(kinds[0], value, size, 0)


def binned(kind: Kind, value: Any, size: Any, start: Any) -> Any:
    """The nearest multiple of a size from a start, below a value; null for a size of zero or less."""
    if size <= 0:
        return None
    if isinstance(value, float) or isinstance(size, float):
        if not math.isfinite(float(value)):
            return float(value)
        return math.floor((float(value) - start) / size) * size + start
    made = (value - start) // size * size + start
    if isinstance(made, Decimal) and value - start < 0 and made > value:
        made -= size
    return in_range(made) if kind is Kind.DATETIME else made


@fn("bin_at", "summable summable summable -> bin", kinds=True)
def bin_at(kinds: tuple[Kind, ...], value: Any, size: Any, fixed: Any) -> Any:
    return binned(kinds[0], value, size, fixed)


@fn("rand", "long? -> real", strict=False, pure=False)
def rand(bound: int | None = None) -> float:
    return float(random.randrange(bound)) if bound and bound > 0 else random.random()  # noqa: S311 - KQL's rand() is no secret


@fn("binary_and", "long long -> long")
def binary_and(a: int, b: int) -> int:
    return a & b


@fn("binary_or", "long long -> long")
def binary_or(a: int, b: int) -> int:
    return a | b


@fn("binary_xor", "long long -> long")
def binary_xor(a: int, b: int) -> int:
    return a ^ b


@fn("binary_not", "long -> long")
def binary_not(a: int) -> int:
    return ~a


@fn("binary_shift_left", "long long -> long")
def shift_left(a: int, num: int) -> int | None:
    return wrap_long((a << num % 64) & ((1 << 64) - 1)) if num >= 0 else None


@fn("binary_shift_right", "long long -> long")
def shift_right(a: int, num: int) -> int | None:
    return a >> num % 64 if num >= 0 else None


@fn("bitset_count_ones", "long -> long")
def ones(a: int) -> int:
    return (a & ((1 << 64) - 1)).bit_count()


_UNITS = ("Bytes", "KB", "MB", "GB", "TB", "PB", "EB")


@fn("format_bytes", "number long? string? -> string")
def format_bytes(value: Any, digits: int = 0, unit: str = "") -> str | None:
    """With the largest unit that leaves a whole part, or with the one asked for."""
    if unit and unit not in _UNITS:
        return None
    power_ = _UNITS.index(unit) if unit else 0
    size = float(value)
    if not unit:
        while abs(size) / 1024**power_ >= 1024 and power_ < len(_UNITS) - 1:
            power_ += 1
    made = Decimal(repr(size / 1024**power_)).quantize(Decimal(1).scaleb(-max(digits, 0)), ROUND_HALF_UP)
    text = f"{made:f}"
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text} {_UNITS[power_]}"

"""What signs and word operators do with values; the binder chose them by the kinds of both sides.

An equality with one null side is false and its opposite true; with two it is null, as is any comparison with a null:
https://learn.microsoft.com/kusto/query/scalar-data-types/null-values.
"""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any, cast

from fairlead.logs.kql.kinds import Kind, in_long, wrap_long
from fairlead.logs.kql.registry import family
from fairlead.logs.kql.texts import json_text, scalar_text
from fairlead.logs.kql.times import in_range

op = family("operators")


@op("+int", "long long -> long")
def add_int(a: int, b: int) -> int:
    return wrap_long(a + b)


@op("-int", "long long -> long")
def subtract_int(a: int, b: int) -> int:
    return wrap_long(a - b)


@op("*int", "long long -> long")
def multiply_int(a: int, b: int) -> int:
    return wrap_long(a * b)


@op("/int", "long long -> long")
def divide_int(a: int, b: int) -> int | None:
    """Towards zero; by zero it is null."""
    if b == 0:
        return None
    quotient = abs(a) // abs(b)
    return wrap_long(quotient if (a < 0) == (b < 0) else -quotient)


@op("%int", "long long -> long")
def modulo_int(a: int, b: int) -> int | None:
    """Never negative, whatever the signs."""
    return None if b == 0 else a % abs(b)


@op("+real", "real real -> real")
def add_real(a: float, b: float) -> float:
    return a + b


@op("-real", "real real -> real")
def subtract_real(a: float, b: float) -> float:
    return a - b


@op("*real", "real real -> real")
def multiply_real(a: float, b: float) -> float:
    return a * b


@op("/real", "real real -> real")
def divide_real(a: float, b: float) -> float:
    if b == 0:
        return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a) * math.copysign(1, b)
    return a / b


@op("%real", "real real -> real")
def modulo_real(a: float, b: float) -> float:
    if b == 0 or math.isinf(a) or math.isnan(a) or math.isnan(b):
        return math.nan
    return a if math.isinf(b) else a % abs(b)


@op("+decimal", "decimal decimal -> decimal")
def add_decimal(a: Decimal, b: Decimal) -> Decimal:
    return a + b


@op("-decimal", "decimal decimal -> decimal")
def subtract_decimal(a: Decimal, b: Decimal) -> Decimal:
    return a - b


@op("*decimal", "decimal decimal -> decimal")
def multiply_decimal(a: Decimal, b: Decimal) -> Decimal:
    return a * b


@op("/decimal", "decimal decimal -> decimal")
def divide_decimal(a: Decimal, b: Decimal) -> Decimal | None:
    return None if b == 0 else a / b


@op("%decimal", "decimal decimal -> decimal")
def modulo_decimal(a: Decimal, b: Decimal) -> Decimal | None:
    if b == 0:
        return None
    left = a % abs(b)
    return left + abs(b) if left < 0 else left


@op("datetime+timespan", "datetime timespan -> datetime")
def later(a: int, b: int) -> int | None:
    return in_range(a + b)


@op("datetime-timespan", "datetime timespan -> datetime")
def earlier(a: int, b: int) -> int | None:
    return in_range(a - b)


@op("datetime-datetime", "datetime datetime -> timespan")
def between_times(a: int, b: int) -> int:
    return a - b


@op("timespan+timespan", "timespan timespan -> timespan")
def add_span(a: int, b: int) -> int | None:
    return in_long(a + b)


@op("timespan-timespan", "timespan timespan -> timespan")
def subtract_span(a: int, b: int) -> int | None:
    return in_long(a - b)


@op("timespan*real", "timespan real -> timespan")
def scale_span(a: int, b: float) -> int | None:
    return in_long(round(a * b)) if math.isfinite(b) else None


@op("timespan*int", "timespan long -> timespan")
def times_span(a: int, b: int) -> int | None:
    return in_long(a * b)


@op("timespan/real", "timespan real -> timespan")
def part_of_span(a: int, b: float) -> int | None:
    return in_long(int(a / b)) if b and not math.isnan(b) else None


@op("timespan/timespan", "timespan timespan -> real")
def ratio_of_spans(a: int, b: int) -> float:
    return float(divide_real(float(a), float(b)))


@op("timespan%timespan", "timespan timespan -> timespan")
def span_modulo(a: int, b: int) -> int | None:
    return None if b == 0 else a % abs(b)


@op("-negate", "any -> same")
def negate(a: Any) -> Any:
    return wrap_long(-a) if isinstance(a, int) else -a


@op("==", "any any -> bool", strict=False)
def equal(a: Any, b: Any) -> bool | None:
    if a is None or b is None:
        return None if a is b else False
    return bool(a == b)


@op("!=", "any any -> bool", strict=False)
def differs(a: Any, b: Any) -> bool | None:
    if a is None or b is None:
        return None if a is b else True
    return bool(a != b)


@op("==dynamic", "any any -> bool", strict=False)
def same_json(a: Any, b: Any) -> bool | None:
    if a is None or b is None:
        return None if a is b else False
    return json_text(a) == json_text(b)


@op("<", "any any -> bool")
def less(a: Any, b: Any) -> bool:
    return bool(a < b)


@op("<=", "any any -> bool")
def at_most(a: Any, b: Any) -> bool:
    return bool(a <= b)


@op(">", "any any -> bool")
def more(a: Any, b: Any) -> bool:
    return bool(a > b)


@op(">=", "any any -> bool")
def at_least(a: Any, b: Any) -> bool:
    return bool(a >= b)


@op("and", "bool bool -> bool", strict=False)
def both(a: bool | None, b: bool | None) -> bool | None:
    if a is False or b is False:
        return False
    return None if a is None or b is None else True


@op("or", "bool bool -> bool", strict=False)
def either(a: bool | None, b: bool | None) -> bool | None:
    if a or b:
        return True
    return None if a is None or b is None else False


@op("between", "any any any -> bool")
def within(a: Any, low: Any, high: Any) -> bool:
    return bool(low <= a <= high)


@op("!between", "any any any -> bool")
def outside(a: Any, low: Any, high: Any) -> bool:
    return not low <= a <= high


@op("member", "any string -> dynamic")
def member(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, dict) else None


@op("index", "any any -> dynamic", strict=False, kinds=True)
def index(kinds: tuple[Kind, ...], value: Any, key: Any) -> Any:
    """Of an array by number, from the end where that is negative; of a bag by its key."""
    if isinstance(value, dict):
        return value.get(scalar_text(key)) if isinstance(key, str) else None
    if isinstance(value, list) and isinstance(key, int) and not isinstance(key, bool):
        return value[key] if -len(value) <= key < len(value) else None
    return None


def _word(text: str, needle: str, before: bool, after: bool) -> bool:
    """Whether a text holds a needle with no letter or digit next to the ends that are looked at."""
    if not needle:
        return True
    at = text.find(needle)
    before = before and needle[0].isalnum()
    after = after and needle[-1].isalnum()
    while at >= 0:
        end = at + len(needle)
        starts = not before or at == 0 or not text[at - 1].isalnum()
        if starts and (not after or end == len(text) or not text[end].isalnum()):
            return True
        at = text.find(needle, at + 1)
    return False


def has(text: str, needle: str) -> bool:
    """A whole term: what stands between characters that are neither letters nor digits."""
    return _word(text, needle, before=True, after=True)


def has_prefix(text: str, needle: str) -> bool:
    """The beginning of a term."""
    return _word(text, needle, before=True, after=False)


def has_suffix(text: str, needle: str) -> bool:
    """The end of a term."""
    return _word(text, needle, before=False, after=True)


def _contains(text: str, needle: str) -> bool:
    return needle in text


def _folded(test: Any) -> Any:
    return lambda a, b: test(a.lower(), b.lower())


def _not(test: Any) -> Any:
    return lambda a, b: not test(a, b)


for _name, _test in {
    "contains": _contains,
    "startswith": str.startswith,
    "endswith": str.endswith,
    "has": has,
    "hasprefix": has_prefix,
    "hassuffix": has_suffix,
}.items():
    op(_name, "string string -> bool")(_folded(_test))
    op(_name + "_cs", "string string -> bool")(cast("Any", _test))
    op("!" + _name, "string string -> bool")(_not(_folded(_test)))
    op("!" + _name + "_cs", "string string -> bool")(_not(_test))


@op("=~", "string string -> bool")
def equal_folded(a: str, b: str) -> bool:
    return a.lower() == b.lower()


@op("!~", "string string -> bool")
def differs_folded(a: str, b: str) -> bool:
    return a.lower() != b.lower()


@op("has_any", "string array -> bool")
def has_any(text: str, needles: list[Any]) -> bool:
    low = text.lower()
    return any(has(low, scalar_text(needle).lower()) for needle in needles)


@op("has_all", "string array -> bool")
def has_all(text: str, needles: list[Any]) -> bool:
    low = text.lower()
    return all(has(low, scalar_text(needle).lower()) for needle in needles)


@op("among", "any array -> bool", strict=False)
def among(value: Any, items: list[Any] | None) -> bool:
    return any(equal(value, item) for item in items or [])


@op("among~", "string array -> bool", strict=False)
def among_folded(value: str, items: list[Any] | None) -> bool:
    low = value.lower()
    return any(isinstance(item, str) and item.lower() == low for item in items or [])

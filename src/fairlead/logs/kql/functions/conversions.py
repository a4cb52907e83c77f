"""`to...`: what is no such value becomes null, never an error."""

from __future__ import annotations

import math
import re
from decimal import Decimal, InvalidOperation
from typing import Any

from fairlead.logs.kql.kinds import (
    MAX_DIGITS,
    MAX_INT,
    MAX_LONG,
    MIN_INT,
    MIN_LONG,
    Kind,
    kind_of,
    wrap_int,
    wrap_long,
)
from fairlead.logs.kql.lexer import dashed
from fairlead.logs.kql.registry import family
from fairlead.logs.kql.texts import text_of
from fairlead.logs.kql.times import in_range, parse_datetime, parse_timespan

fn = family("conversion")

_WHOLE = re.compile(r"\s*([+-]?\d+|0[xX][0-9A-Fa-f]+)\s*")
_REAL = re.compile(r"\s*[+-]?(\d+\.?\d*([eE][+-]?\d+)?|\.\d+([eE][+-]?\d+)?)\s*")
_ODD = {
    word: float(word) for word in ("nan", "NaN", "Inf", "inf", "+inf", "-inf", "Infinity", "+Infinity", "-Infinity")
}
_GUID = re.compile(r"\s*[{(]?[0-9a-fA-F]{8}-?(?:[0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}[})]?\s*")


def unboxed(kind: Kind, value: Any) -> tuple[Kind | None, Any]:
    """What a dynamic value holds, and its kind."""
    return (kind_of(value), value) if kind is Kind.DYNAMIC else (kind, value)


@fn("tostring", "any -> string", strict=False, kinds=True)
def tostring(kinds: tuple[Kind, ...], value: Any) -> str:
    return text_of(value, kinds[0])


def whole(kind: Kind, value: Any, low: int, high: int) -> int | None:
    """A number without its fraction, or null where it does not fit."""
    found, value = unboxed(kind, value)
    match found:
        case Kind.STRING:
            word = _WHOLE.fullmatch(value)
            if not word or len(word[1]) > MAX_DIGITS:
                return None
            hexed = word[1][:2].lower() == "0x"
            number = int(word[1], 16 if hexed else 10)
            if hexed and number > high and number < (high + 1) * 2:
                number -= (high + 1) * 2
        case Kind.REAL:
            if math.isnan(value):
                return None
            return min(max(int(value), low), high) if math.isfinite(value) else None
        case Kind.DYNAMIC | Kind.GUID | None:
            return None
        case _:
            return wrap_int(int(value)) if high == MAX_INT else wrap_long(int(value))
    return number if low <= number <= high else None


@fn("tolong", "any -> long", kinds=True)
def tolong(kinds: tuple[Kind, ...], value: Any) -> int | None:
    return whole(kinds[0], value, MIN_LONG, MAX_LONG)


@fn("toint", "any -> int", kinds=True)
def toint(kinds: tuple[Kind, ...], value: Any) -> int | None:
    return whole(kinds[0], value, MIN_INT, MAX_INT)


@fn("toreal todouble", "any -> real", kinds=True)
def toreal(kinds: tuple[Kind, ...], value: Any) -> float | None:
    found, value = unboxed(kinds[0], value)
    if found is Kind.STRING:
        word = value.strip()
        return _ODD[word] if word in _ODD else float(word) if _REAL.fullmatch(word) else None
    return None if found in {Kind.DYNAMIC, Kind.GUID, None} else float(value)


@fn("todecimal", "any -> decimal", kinds=True)
def todecimal(kinds: tuple[Kind, ...], value: Any) -> Decimal | None:
    found, value = unboxed(kinds[0], value)
    try:
        if found is Kind.STRING:
            made = Decimal(value.strip())
        elif found is Kind.REAL:
            made = Decimal(repr(value))
        elif found in {Kind.DYNAMIC, Kind.GUID, None}:
            return None
        else:
            made = Decimal(value)
    except (InvalidOperation, ValueError):
        return None
    return made if made.is_finite() else None


@fn("tobool toboolean", "any -> bool", kinds=True)
def tobool(kinds: tuple[Kind, ...], value: Any) -> bool | None:
    found, value = unboxed(kinds[0], value)
    if found is Kind.STRING:
        word = value.lower()
        if word in {"true", "false"}:
            return bool(word == "true")
        number = whole(Kind.STRING, value, MIN_LONG, MAX_LONG)
        return None if number is None else number != 0
    return None if found in {Kind.DYNAMIC, Kind.GUID, None} else bool(value)


@fn("todatetime", "any -> datetime", kinds=True)
def todatetime(kinds: tuple[Kind, ...], value: Any) -> int | None:
    found, value = unboxed(kinds[0], value)
    if found is Kind.STRING:
        return parse_datetime(value)
    if found in {Kind.DATETIME, Kind.LONG, Kind.INT, Kind.REAL} and math.isfinite(value):
        return in_range(int(value))
    return None


@fn("totimespan totime", "any -> timespan", kinds=True)
def totimespan(kinds: tuple[Kind, ...], value: Any) -> int | None:
    found, value = unboxed(kinds[0], value)
    if found is Kind.STRING:
        return parse_timespan(value)
    return int(value) if found in {Kind.TIMESPAN, Kind.LONG, Kind.INT} else None


@fn("toguid", "any -> guid", kinds=True)
def toguid(kinds: tuple[Kind, ...], value: Any) -> str | None:
    found, value = unboxed(kinds[0], value)
    if found is Kind.GUID:
        return str(value)
    return dashed(value.strip().strip("()")) if found is Kind.STRING and _GUID.fullmatch(value) else None


@fn("gettype", "any -> string", strict=False, kinds=True)
def gettype(kinds: tuple[Kind, ...], value: Any) -> str:
    if kinds[0] is not Kind.DYNAMIC:
        return str(kinds[0])
    if isinstance(value, dict):
        return "dictionary"
    if isinstance(value, list):
        return "array"
    found = kind_of(value)
    return "double" if found is Kind.REAL else str(found or "null")


@fn("tohex", "number long? -> string", kinds=True)
def tohex(kinds: tuple[Kind, ...], value: Any, width: int = 0) -> str | None:
    bits = 32 if kinds[0] is Kind.INT else 64
    return f"{int(value) & ((1 << bits) - 1):0{width}x}" if 0 <= width <= 1024 else None

"""Choices and tests: iff, case, coalesce, isnull and their like."""

from __future__ import annotations

import math
from typing import Any

from fairlead.logs.kql.registry import family

fn = family("choice")


@fn("iff iif", "bool common common -> common", strict=False)
def iff(test: bool | None, yes: Any, no: Any) -> Any:
    return yes if test else no


@fn("case", "case+ -> common", strict=False)
def case(*args: Any) -> Any:
    for at in range(0, len(args) - 1, 2):
        if args[at]:
            return args[at + 1]
    return args[-1]


@fn("coalesce", "common common+ -> common", strict=False)
def coalesce(*args: Any) -> Any:
    """The first that is neither null nor an empty text."""
    return next((arg for arg in args if arg is not None and arg != ""), args[-1])


@fn("not", "bool -> bool")
def negation(value: bool) -> bool:
    return not value


@fn("isnull", "any -> bool", strict=False)
def isnull(value: Any) -> bool:
    return value is None


@fn("isnotnull notnull", "any -> bool", strict=False)
def isnotnull(value: Any) -> bool:
    return value is not None


@fn("isempty", "any -> bool", strict=False)
def isempty(value: Any) -> bool:
    return value is None or value == ""


@fn("isnotempty notempty", "any -> bool", strict=False)
def isnotempty(value: Any) -> bool:
    return value is not None and value != ""


@fn("isnan", "real -> bool")
def isnan(value: float) -> bool:
    return math.isnan(value)


@fn("isinf", "real -> bool")
def isinf(value: float) -> bool:
    return math.isinf(value)


@fn("isfinite", "real -> bool")
def isfinite(value: float) -> bool:
    return math.isfinite(value)


@fn("isascii", "text -> bool")
def isascii(value: str) -> bool:
    return value.isascii()


@fn("isutf8", "text -> bool")
def isutf8(value: str) -> bool:
    return not any("\ud800" <= c <= "\udfff" for c in value)


def _best(values: tuple[Any, ...], better: Any) -> Any:
    best = None
    for value in values:
        if value is None:
            continue
        if isinstance(value, float) and math.isnan(value):
            return value
        if best is None or better(value, best):
            best = value
    return best


@fn("max_of", "common common+ -> common", strict=False)
def max_of(*values: Any) -> Any:
    return _best(values, lambda a, b: a > b)


@fn("min_of", "common common+ -> common", strict=False)
def min_of(*values: Any) -> Any:
    return _best(values, lambda a, b: a < b)


@fn("around", "summable summable summable -> bool")
def around(value: Any, center: Any, delta: Any) -> bool:
    return bool(center - delta <= value <= center + delta)


@fn("assert", "bool string -> bool", strict=False)
def check(value: bool | None, message: str) -> bool:
    if not value:
        from fairlead.logs.kql.problems import Refused

        raise Refused("kql/assert", f"assert: {message}", None)
    return True

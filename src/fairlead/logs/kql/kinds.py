"""Kusto's scalar types, and how values of them are held.

A null is None, of every type but string, whose empty value is "". datetime is a count of ticks (100 ns) since the year
1 and timespan one of either sign, both plain ints beside their kind; inside a dynamic value, where no column says the
kind, they are Datetime and Timespan.

Must not know: tables, queries.
"""

from __future__ import annotations

from decimal import Decimal
from enum import StrEnum
from typing import Any, NamedTuple


class Kind(StrEnum):
    """A scalar type, by Kusto's own name."""

    BOOL = "bool"
    INT = "int"
    LONG = "long"
    REAL = "real"
    DECIMAL = "decimal"
    STRING = "string"
    DATETIME = "datetime"
    TIMESPAN = "timespan"
    GUID = "guid"
    DYNAMIC = "dynamic"


NAMES = {str(kind): kind for kind in Kind} | {
    "boolean": Kind.BOOL,
    "double": Kind.REAL,
    "date": Kind.DATETIME,
    "time": Kind.TIMESPAN,
    "uuid": Kind.GUID,
    "uniqueid": Kind.GUID,
}
"""What a query may call them."""

CLR = {
    Kind.BOOL: "System.SByte",
    Kind.INT: "System.Int32",
    Kind.LONG: "System.Int64",
    Kind.REAL: "System.Double",
    Kind.DECIMAL: "System.Data.SqlTypes.SqlDecimal",
    Kind.STRING: "System.String",
    Kind.DATETIME: "System.DateTime",
    Kind.TIMESPAN: "System.TimeSpan",
    Kind.GUID: "System.Guid",
    Kind.DYNAMIC: "System.Object",
}
"""What `getschema` calls them."""

NUMERIC = (Kind.INT, Kind.LONG, Kind.REAL, Kind.DECIMAL)
"""Every one of them widens to those behind it."""
WHOLE = (Kind.INT, Kind.LONG)

TICKS_S = 10_000_000
TICKS_DAY = 86_400 * TICKS_S
MAX_DATETIME = 3_155_378_975_999_999_999
"""9999-12-31T23:59:59.9999999Z"""
MIN_LONG, MAX_LONG = -(1 << 63), (1 << 63) - 1
MAX_DIGITS = 1000
"""Of a whole number that is read as one: no kind holds as many, and Python reads no more than 4,300."""
MIN_INT, MAX_INT = -(1 << 31), (1 << 31) - 1


class Datetime(int):
    """Ticks since the year 1 inside a dynamic value."""

    __slots__ = ()


class Timespan(int):
    """Ticks inside a dynamic value."""

    __slots__ = ()


class Guid(str):
    """A UUID inside a dynamic value, in lower case."""

    __slots__ = ()


class Column(NamedTuple):
    """A column of a table."""

    name: str
    kind: Kind


def wrap_long(value: int) -> int:
    """What is left of an integer in 64 bits."""
    return value if MIN_LONG <= value <= MAX_LONG else ((value + (1 << 63)) & ((1 << 64) - 1)) - (1 << 63)


def wrap_int(value: int) -> int:
    """What is left of an integer in 32 bits."""
    return value if MIN_INT <= value <= MAX_INT else ((value + (1 << 31)) & 0xFFFFFFFF) - (1 << 31)


def in_long(value: int) -> int | None:
    """A timespan, or null where it does not fit."""
    return value if MIN_LONG <= value <= MAX_LONG else None


def boxed(value: Any, kind: Kind) -> Any:
    """A value as part of a dynamic one: what a column's kind said must now be said by the value."""
    if value is None:
        return None
    if kind is Kind.DATETIME:
        return Datetime(value)
    if kind is Kind.TIMESPAN:
        return Timespan(value)
    if kind is Kind.GUID:
        return Guid(value)
    return value


def kind_of(value: Any) -> Kind | None:
    """The kind of what stands inside a dynamic value; None for null."""
    match value:
        case None:
            return None
        case bool():
            return Kind.BOOL
        case Datetime():
            return Kind.DATETIME
        case Timespan():
            return Kind.TIMESPAN
        case int():
            return Kind.LONG
        case float():
            return Kind.REAL
        case Decimal():
            return Kind.DECIMAL
        case Guid():
            return Kind.GUID
        case str():
            return Kind.STRING
        case _:
            return Kind.DYNAMIC

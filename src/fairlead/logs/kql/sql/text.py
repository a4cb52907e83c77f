"""Values and names as parts of SQL. Nothing else writes text of a query into SQL, so nothing in a value can be code.

Must not know: queries.
"""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

from fairlead.logs.kql.kinds import Kind
from fairlead.logs.kql.times import EPOCH

MIN_TIME = 599_266_080_000_000_000
"""1900-01-01 and 2262-01-01: the datetimes that DateTime64(9) holds."""
MAX_TIME = 713_501_568_000_000_000


def quoted(text: str) -> str:
    """A string literal: everything but letters, digits and plain signs is an escape of bytes."""
    out = []
    for byte in text.encode("utf-8", "surrogatepass"):
        plain = 32 <= byte < 127 and byte not in b"'\\"
        out.append(chr(byte) if plain else f"\\x{byte:02X}")
    return "'" + "".join(out) + "'"


def named(name: str) -> str:
    """An identifier."""
    return "`" + "".join(c if c not in "`\\" and ord(c) >= 32 else f"\\x{ord(c):02X}" for c in name) + "`"


def literal(value: Any, kind: Kind) -> str | None:
    """A constant; None where SQL has no exact one."""
    if value is None:
        return (
            None
            if kind in {Kind.DYNAMIC, Kind.STRING}
            else f"CAST(NULL AS Nullable({_TYPES[kind]}))"
            if kind in _TYPES
            else None
        )
    match kind:
        case Kind.STRING:
            return quoted(value)
        case Kind.BOOL:
            return "true" if value else "false"
        case Kind.INT | Kind.LONG | Kind.TIMESPAN:
            return f"toInt64({quoted(str(int(value)))})" if abs(value) > 1 << 53 else f"toInt64({int(value)})"
        case Kind.REAL:
            return f"toFloat64({value!r})" if math.isfinite(value) else None
        case Kind.DATETIME:
            if not MIN_TIME <= value <= MAX_TIME:
                return None
            return f"fromUnixTimestamp64Nano(toInt64({(value - EPOCH) * 100}), 'UTC')"
        case Kind.GUID:
            return f"toUUID({quoted(value)})"
        case _:
            return None


_TYPES = {
    Kind.BOOL: "Bool", Kind.INT: "Int64", Kind.LONG: "Int64", Kind.REAL: "Float64", Kind.TIMESPAN: "Int64",
    Kind.DATETIME: "DateTime64(9, 'UTC')", Kind.GUID: "UUID",
}  # fmt: skip


def kind_of_type(name: str) -> Kind | None:
    """What a type of ClickHouse is in Kusto; None where it is nothing."""
    base = name
    while base.startswith(("Nullable(", "LowCardinality(")) and base.endswith(")"):
        base = base[base.index("(") + 1 : -1]
    head = base.partition("(")[0]
    return _KINDS.get(head)


_KINDS = {
    "String": Kind.STRING, "FixedString": Kind.STRING, "Enum8": Kind.STRING, "Enum16": Kind.STRING, "IPv4": Kind.STRING,
    "IPv6": Kind.STRING, "Bool": Kind.BOOL, "Int8": Kind.INT, "Int16": Kind.INT, "Int32": Kind.INT, "UInt8": Kind.INT,
    "UInt16": Kind.INT, "UInt32": Kind.LONG, "Int64": Kind.LONG, "UInt64": Kind.LONG, "Float32": Kind.REAL,
    "Float64": Kind.REAL, "Decimal": Kind.DECIMAL, "DateTime": Kind.DATETIME, "DateTime64": Kind.DATETIME,
    "Date": Kind.DATETIME, "Date32": Kind.DATETIME, "UUID": Kind.GUID, "Array": Kind.DYNAMIC, "Map": Kind.DYNAMIC,
    "Tuple": Kind.DYNAMIC, "JSON": Kind.DYNAMIC,
}  # fmt: skip


def column_sql(name: str, type_name: str) -> str:
    """A column of a table as an expression of its kind: strings are never null, whole numbers are signed."""
    sql, kind = named(name), kind_of_type(type_name)
    nullable = "Nullable(" in type_name
    if kind is Kind.STRING:
        if "String" not in type_name or "FixedString" in type_name:
            sql = f"toString({sql})"
        return f"ifNull({sql}, '')" if nullable else sql
    if kind in {Kind.INT, Kind.LONG} and type_name != "Int64":
        return f"toInt64({sql})"
    if kind is Kind.REAL and "Float32" in type_name:
        return f"toFloat64({sql})"
    if kind is Kind.DATETIME and "DateTime64" not in type_name:
        return f"toDateTime64({sql}, 9, 'UTC')"
    return sql


def row_sql(sql: str, kind: Kind) -> str:
    """How a value leaves the engine."""
    if kind is Kind.DATETIME:
        return f"intDiv(toUnixTimestamp64Nano(toDateTime64({sql}, 9, 'UTC')), 100)"
    if kind is Kind.DYNAMIC:
        return f"toJSONString({sql})"
    return f"toString({sql})" if kind in {Kind.DECIMAL, Kind.GUID} else sql


def from_engine(value: Any, kind: Kind) -> Any:
    """A value of a row of the engine's JSON as this compiler holds it."""
    match kind:
        case _ if value is None:
            return "" if kind is Kind.STRING else None
        case Kind.DATETIME:
            return int(value) + EPOCH
        case Kind.BOOL:
            return bool(value)
        case Kind.INT | Kind.LONG | Kind.TIMESPAN:
            return int(value)
        case Kind.REAL:
            return float(value)
        case Kind.DECIMAL:
            return Decimal(value)
        case Kind.DYNAMIC:
            from fairlead.logs.kql.functions.dynamics import parsed

            return parsed(value)
        case _:
            return value

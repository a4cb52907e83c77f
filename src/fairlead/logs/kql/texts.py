"""Values as text, as Kusto writes them: `tostring`, JSON of dynamic values, and the rows of an answer.

Must not know: queries.
"""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any

from fairlead.logs.kql.kinds import Datetime, Kind, Timespan
from fairlead.logs.kql.times import datetime_text, timespan_text


def real_text(value: float) -> str:
    """The shortest digits that read back the same; an exponent from 15 digits on and below 1e-5, as .NET has it."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0:
        return "-0.0" if math.copysign(1, value) < 0 else "0.0"
    digits, _, exponent = f"{Decimal(repr(value)).normalize():E}".partition("E")
    power = int(exponent)
    if -5 <= power < 15:
        text = f"{Decimal(repr(value)):f}"
        return text if "." in text else text + ".0"
    return f"{digits}E{'-' if power < 0 else '+'}{abs(power):02}"


def decimal_text(value: Decimal) -> str:
    """Digits without an exponent."""
    return f"{value:f}"


def json_text(value: Any) -> str:
    """A dynamic value as JSON without spaces."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case Datetime() | Timespan():
            return f'"{scalar_text(value)}"'
        case int():
            return str(value)
        case float():
            return real_text(value) if math.isfinite(value) else f'"{real_text(value)}"'
        case Decimal():
            return f'"{decimal_text(value)}"'
        case str():
            return json.dumps(value, ensure_ascii=False)
        case dict():
            inside = ",".join(f"{json.dumps(k, ensure_ascii=False)}:{json_text(v)}" for k, v in value.items())
            return "{" + inside + "}"
        case _:
            return "[" + ",".join(json_text(item) for item in value) + "]"


def scalar_text(value: Any) -> str:
    """`tostring` of what stands in a dynamic value."""
    match value:
        case None:
            return ""
        case str():
            return value
        case Datetime():
            return datetime_text(value)
        case Timespan():
            return timespan_text(value)
        case bool():
            return "true" if value else "false"
        case float():
            return real_text(value)
        case Decimal():
            return decimal_text(value)
        case _:
            return json_text(value)


def text_of(value: Any, kind: Kind) -> str:
    """`tostring` of a value of a kind."""
    if value is None:
        return ""
    match kind:
        case Kind.STRING | Kind.GUID:
            return str(value)
        case Kind.DATETIME:
            return datetime_text(value)
        case Kind.TIMESPAN:
            return timespan_text(value)
        case Kind.BOOL:
            return "True" if value else "False"
        case Kind.REAL if math.isinf(value):
            return "inf" if value > 0 else "-inf"
        case _:
            return scalar_text(value)


def cell(value: Any, kind: Kind) -> Any:
    """A value as it stands in a row of JSON: numbers and flags as such, all else in Kusto's text; null is null."""
    match kind:
        case _ if value is None:
            return None
        case Kind.BOOL | Kind.INT | Kind.LONG | Kind.STRING | Kind.GUID:
            return value
        case Kind.REAL:
            return value if math.isfinite(value) else real_text(value)
        case Kind.DYNAMIC:
            return json_text(value)
        case _:
            return text_of(value, kind)

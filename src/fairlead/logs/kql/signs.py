"""What signs and choices make of typed values: kinds widened until both sides are of one (pure).

Must not know: trees, names, rows.
"""

from __future__ import annotations

from fairlead.logs.kql.kinds import NUMERIC, WHOLE, Kind
from fairlead.logs.kql.problems import Span, wrong
from fairlead.logs.kql.registry import SCALARS, Scalar
from fairlead.logs.kql.typed import Apply, Const, Typed, call, common, convert, widen, widest


def negative(of: Typed, at: Span) -> Typed:
    """A number or a timespan with its sign changed. Raises Refused."""
    if of.kind not in {*NUMERIC, Kind.TIMESPAN}:
        raise wrong(f"a {of.kind} has no negative", at)
    return call("-negate", (of,), Kind.LONG if of.kind is Kind.INT else of.kind)


def arithmetic(op: str, left: Typed, right: Typed, at: Span) -> Typed:
    """`+`, `-`, `*`, `/` or `%` of numbers, times, and what is dynamic beside them. Raises Refused."""
    kinds = (left.kind, right.kind)
    wide = widest(kinds)
    if wide:
        name = {Kind.REAL: "real", Kind.DECIMAL: "decimal"}.get(wide, "int")
        kind = wide if wide not in WHOLE else Kind.LONG
        return call(op + name, (widened(left, kind), widened(right, kind)), kind)
    found = _TIMES.get((op, _family(left.kind), _family(right.kind)))
    if found:
        name, kind, swap = found
        args = (right, left) if swap else (left, right)
        if name.endswith("real"):
            args = (args[0], widened(args[1], Kind.REAL))
        return call(name, args, kind)
    hint = "strcat(...)" if Kind.STRING in kinds and op == "+" else ""
    if Kind.DYNAMIC in kinds:
        other = kinds[0] if kinds[1] is Kind.DYNAMIC else kinds[1]
        target = other if other is not Kind.DYNAMIC else Kind.LONG
        if other is not Kind.DYNAMIC and (other in NUMERIC or other in {Kind.TIMESPAN, Kind.DATETIME}):
            number = Kind.REAL if other in NUMERIC else target
            one, two = (convert(v, number) if v.kind is Kind.DYNAMIC else v for v in (left, right))
            return arithmetic(op, one, two, at)
        hint = "todouble(...) or tolong(...) of what is dynamic"
    raise wrong(f"`{op}` does not take {kinds[0]} and {kinds[1]}", at, hint)


def compared(op: str, left: Typed, right: Typed, at: Span) -> Typed:
    """`==`, `<` and the like, both sides as one kind. Raises Refused."""
    left, right = comparable(left, right, at, op)
    if left.kind is Kind.DYNAMIC:
        if op in {"==", "!="}:
            raise wrong(f"`{op}` does not take two dynamic values", at, "tostring(...) or tolong(...) of both")
        raise wrong(f"`{op}` does not take dynamic values", at, "tolong(...), todouble(...) or tostring(...)")
    return call(op, (left, right), Kind.BOOL)


def comparable(left: Typed, right: Typed, at: Span, op: str) -> tuple[Typed, Typed]:
    """Both sides as one kind."""
    if left.kind is right.kind:
        return left, right
    wide = widest((left.kind, right.kind))
    if wide:
        return widened(left, wide), widened(right, wide)
    if left.kind is Kind.DYNAMIC:
        return convert(left, right.kind), right
    if right.kind is Kind.DYNAMIC:
        return left, convert(right, left.kind)
    if {left.kind, right.kind} == {Kind.BOOL, Kind.LONG} or {left.kind, right.kind} == {Kind.BOOL, Kind.INT}:
        return convert(left, Kind.LONG), convert(right, Kind.LONG)
    if {left.kind, right.kind} == {Kind.GUID, Kind.STRING}:
        return convert(left, Kind.STRING), convert(right, Kind.STRING)
    to = left.kind if left.kind is not Kind.STRING else right.kind
    raise wrong(f"`{op}` does not take {left.kind} and {right.kind}", at, f"to{to}(...)")


def alike(values: list[Typed], name: str, at: Span) -> list[Typed]:
    """Values of one kind, so that any of them can be the answer."""
    kind = common(values)
    if kind is None:
        kinds = ", ".join(sorted({str(v.kind) for v in values}))
        raise wrong(f"{name}() chooses between values of one kind, and these are {kinds}", at, "tostring(...)")
    return [widened(value, kind) for value in values]


def widened(value: Typed, kind: Kind) -> Typed:
    """A value as a wider kind, without a word in the query."""
    if value.kind is kind:
        return value
    if isinstance(value, Const):
        return Const(kind, widen(value.value, value.kind, kind))
    if kind is Kind.DYNAMIC:
        return call("parse_json", (value,), kind) if value.kind is not Kind.STRING else Apply(kind, _TEXT, (value,))
    return convert(value, kind)


_TEXT = Scalar("_text", lambda value: value, (), "dynamic", "inner")
SCALARS["_without_empty"] = Scalar(
    "_without_empty", lambda bag: {k: v for k, v in bag.items() if v is not None and v != ""}, (), "dynamic", "inner"
)


def _family(kind: Kind) -> str:
    return "int" if kind in WHOLE else "real" if kind in {Kind.REAL, Kind.DECIMAL} else str(kind)


_SPAN, _TIME = Kind.TIMESPAN, Kind.DATETIME
_TIMES: dict[tuple[str, str, str], tuple[str, Kind, bool]] = {
    ("+", "datetime", "timespan"): ("datetime+timespan", _TIME, False),
    ("+", "timespan", "datetime"): ("datetime+timespan", _TIME, True),
    ("-", "datetime", "timespan"): ("datetime-timespan", _TIME, False),
    ("-", "datetime", "datetime"): ("datetime-datetime", _SPAN, False),
    ("+", "timespan", "timespan"): ("timespan+timespan", _SPAN, False),
    ("-", "timespan", "timespan"): ("timespan-timespan", _SPAN, False),
    ("*", "timespan", "real"): ("timespan*real", _SPAN, False),
    ("*", "real", "timespan"): ("timespan*real", _SPAN, True),
    ("*", "timespan", "int"): ("timespan*int", _SPAN, False),
    ("*", "int", "timespan"): ("timespan*int", _SPAN, True),
    ("/", "timespan", "real"): ("timespan/real", _SPAN, False),
    ("/", "timespan", "int"): ("timespan/real", _SPAN, False),
    ("/", "timespan", "timespan"): ("timespan/timespan", Kind.REAL, False),
    ("%", "timespan", "timespan"): ("timespan%timespan", _SPAN, False),
}
"""Arithmetic of times: the function, what it gives, whether the sides change places."""

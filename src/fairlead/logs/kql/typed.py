"""Expressions whose kinds are known, and how they become Python functions of a row.

Must not know: syntax trees, tables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fairlead.logs.kql.kinds import NUMERIC, WHOLE, Guid, Kind, boxed
from fairlead.logs.kql.problems import Span, wrong
from fairlead.logs.kql.registry import SCALARS, Scalar
from fairlead.logs.kql.texts import scalar_text, text_of

Row = tuple[Any, ...]
Fn = Callable[[Row], Any]


@dataclass(frozen=True, slots=True)
class Typed:
    """Anything with a kind."""

    kind: Kind


@dataclass(frozen=True, slots=True)
class Const(Typed):
    value: Any


@dataclass(frozen=True, slots=True)
class Col(Typed):
    index: int
    name: str


@dataclass(frozen=True, slots=True)
class Apply(Typed):
    fn: Scalar
    args: tuple[Typed, ...]


@dataclass(frozen=True, slots=True)
class Window(Typed):
    """A function of the row's neighbours: computed for all rows before the expression around it."""

    name: str
    args: tuple[Typed, ...]


@dataclass(frozen=True, slots=True)
class Contains(Typed):
    """Membership in a set of constants that was made once."""

    value: Typed
    items: frozenset[Any]
    fold: bool
    negated: bool


def const_of(value: Typed, at: Span, what: str) -> Any:
    """The value of what must be a constant."""
    if isinstance(value, Const):
        return value.value
    raise wrong(f"{what} must be a constant", at)


def compiled(expr: Typed) -> Fn:
    """An expression as a function of a row."""
    match expr:
        case Const(value=value):
            return lambda row: value
        case Col(index=index):
            return lambda row: row[index]
        case Contains():
            return _contains(expr)
        case Apply(fn=fn, args=args):
            return _apply(fn, tuple(arg.kind for arg in args), [compiled(arg) for arg in args])
        case _:
            raise AssertionError(expr)


def _contains(expr: Contains) -> Fn:
    inner, items, fold, negated = compiled(expr.value), expr.items, expr.fold, expr.negated

    def test(row: Row) -> Any:
        value = hashable(inner(row))
        if fold and isinstance(value, str):
            value = value.lower()
        return (value in items) is not negated

    return test


def hashable(value: Any) -> Any:
    """A value that can be a key: of dynamic values their JSON; True is not 1."""
    if isinstance(value, dict | list):
        from fairlead.logs.kql.texts import json_text

        return ("json", json_text(value))
    if value is True or value is False:
        return ("bool", value)
    return value


def _apply(fn: Scalar, kinds: tuple[Kind, ...], args: list[Fn]) -> Fn:
    """A call as a function of a row. What no number holds is null: one value in a log ends no query."""
    run: Callable[..., Any] = fn.run
    if fn.kinds:
        base = run
        run = lambda *values: base(kinds, *values)  # noqa: E731
    if not fn.strict:

        def lenient(row: Row) -> Any:
            values = [arg(row) for arg in args]
            try:
                return run(*values)
            except ArithmeticError:
                return None

        return lenient
    if len(args) == 1:
        single = args[0]

        def unary(row: Row) -> Any:
            value = single(row)
            try:
                return None if value is None else run(value)
            except ArithmeticError:
                return None

        return unary
    if len(args) == 2:
        left, right = args

        def binary(row: Row) -> Any:
            a = left(row)
            if a is None:
                return None
            b = right(row)
            try:
                return None if b is None else run(a, b)
            except ArithmeticError:
                return None

        return binary

    def many(row: Row) -> Any:
        values = [arg(row) for arg in args]
        try:
            return None if None in values else run(*values)
        except ArithmeticError:
            return None

    return many


def call(name: str, args: tuple[Typed, ...], kind: Kind) -> Typed:
    """A call whose kinds were decided; constants are computed at once."""
    fn = SCALARS[name]
    made = Apply(kind, fn, args)
    if fn.pure and all(isinstance(arg, Const) for arg in args):
        return Const(kind, compiled(made)(()))
    return made


def convert(value: Typed, kind: Kind) -> Typed:
    """An expression as another kind, by the conversion function of that kind."""
    if value.kind is kind:
        return value
    if isinstance(value, Const) and value.value is None and kind is not Kind.STRING:
        return Const(kind, None)
    return call(f"to{'long' if kind is Kind.LONG else 'real' if kind is Kind.REAL else kind}", (value,), kind)


def widest(kinds: list[Kind] | tuple[Kind, ...]) -> Kind | None:
    """The numeric kind that all fit in; None where one is no number."""
    if not all(kind in NUMERIC for kind in kinds):
        return None
    return NUMERIC[max(NUMERIC.index(kind) for kind in kinds)]


def common(values: list[Typed]) -> Kind | None:
    """The kind of a choice between values; None where they have none in common."""
    kinds = {v.kind for v in values if not (isinstance(v, Const) and v.value is None and v.kind is Kind.DYNAMIC)}
    if not kinds:
        return Kind.DYNAMIC
    if len(kinds) == 1:
        return kinds.pop()
    rest = kinds - {Kind.DYNAMIC}
    if rest != kinds:
        return rest.pop() if len(rest) == 1 else (widest(tuple(rest)) or Kind.DYNAMIC)
    return widest(tuple(kinds))


def accepts(sort: str, kind: Kind) -> bool:
    """Whether a parameter takes values of a kind, converted where that is harmless."""
    match sort:
        case "any" | "text" | "common":
            return True
        case "number":
            return kind in NUMERIC
        case "summable":
            return kind in NUMERIC or kind in {Kind.DATETIME, Kind.TIMESPAN}
        case "whole" | "long":
            return kind in WHOLE or kind is Kind.DYNAMIC
        case "array" | "bag" | "dynamic":
            return kind is Kind.DYNAMIC
        case "stringy":
            return kind in {Kind.STRING, Kind.DYNAMIC}
        case "real":
            return kind in NUMERIC or kind is Kind.DYNAMIC
        case _:
            return kind == sort or kind is Kind.DYNAMIC


def fitted(sort: str, value: Typed) -> Typed:
    """A value as a parameter takes it."""
    match sort:
        case "text" | "string" | "stringy":
            return convert(value, Kind.STRING)
        case "long" | "whole":
            return convert(value, Kind.LONG)
        case "real":
            return convert(value, Kind.REAL)
        case "bool" | "datetime" | "timespan" | "guid" | "decimal":
            return convert(value, Kind(sort))
        case _:
            return value


def widen(value: Any, kind: Kind, to: Kind) -> Any:
    """A value of a number as the wider kind holds it, or as part of a dynamic value."""
    if value is None or kind is to:
        return "" if value is None and to is Kind.STRING else value
    if to is Kind.REAL:
        return float(value)
    if to is Kind.DECIMAL:
        from decimal import Decimal

        return Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
    if to is Kind.DYNAMIC:
        return boxed(value, kind)
    if to is Kind.STRING:
        return text_of(value, kind)
    return value


def as_text(value: Any) -> str:
    """What `tostring` makes of a part of a dynamic value."""
    return str(value) if isinstance(value, Guid) else scalar_text(value)

"""Functions and operators whose meaning is exactly the same in SQL, and how they are said there.

A rule gets the SQL of its arguments and the typed arguments, and may answer None: then the operator runs here.

Must not know: tables.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from fairlead.logs.kql.kinds import Kind
from fairlead.logs.kql.sql import words
from fairlead.logs.kql.sql.text import literal, quoted
from fairlead.logs.kql.times import EPOCH
from fairlead.logs.kql.typed import Apply, Col, Const, Contains, Typed

Rule = Callable[[list[str], Sequence[Typed]], str | None]


def expression(expr: Typed, columns: Sequence[str]) -> str | None:
    """An expression over columns as SQL; None where it cannot be said exactly."""
    match expr:
        case Col(index=index):
            return columns[index]
        case Const(value=value, kind=kind):
            return literal(value, kind)
        case Contains(value=value, items=items, fold=fold, negated=negated):
            return _is_in(value, items, columns, fold=fold, negated=negated)
        case Apply(fn=fn, args=args):
            rule = EXACT.get(fn.name)
            if rule is None:
                return None
            made = []
            for arg in args:
                sql = expression(arg, columns)
                if sql is None and not (isinstance(arg, Const) and arg.value is not None and arg.kind is Kind.DYNAMIC):
                    return None
                made.append(sql or "")
            return rule(made, args)
        case _:
            return None


def _is_in(value: Typed, items: frozenset[Any], columns: Sequence[str], *, fold: bool, negated: bool) -> str | None:
    sql = expression(value, columns)
    if (
        sql is None
        or not items
        or len(items) > 10_000
        or any(item is None or isinstance(item, tuple) for item in items)
    ):
        return None
    made = [literal(item, value.kind) for item in sorted(items, key=str)]
    if None in made:
        return None
    side = f"lowerUTF8({sql})" if fold else sql
    inside = f"({side}) IN ({', '.join(str(m) for m in made)})"
    return f"NOT ifNull({inside}, 0)" if negated else f"ifNull({inside}, 0)"


def _known(expr: Typed) -> bool:
    """Whether a side can never be null."""
    return (isinstance(expr, Const) and expr.value is not None) or expr.kind is Kind.STRING


def _equality(sign: str, missing: int) -> Rule:
    def rule(args: list[str], typed: Sequence[Typed]) -> str | None:
        if not (_known(typed[0]) or _known(typed[1])):
            return None  # two nulls are neither equal nor not
        return f"ifNull(({args[0]}) {sign} ({args[1]}), {missing})"

    return rule


def _sign(sign: str) -> Rule:
    def rule(args: list[str], typed: Sequence[Typed]) -> str | None:
        return f"(({args[0]}) {sign} ({args[1]}))" if Kind.BOOL not in {typed[0].kind, typed[1].kind} else None

    return rule


def _needle(make: Callable[[str, str], str | None]) -> Rule:
    """A test of a text against a constant."""

    def rule(args: list[str], typed: Sequence[Typed]) -> str | None:
        right = typed[1]
        return make(args[0], right.value) if isinstance(right, Const) and right.value else None

    return rule


def _folded(sign: str) -> Rule:
    def rule(args: list[str], typed: Sequence[Typed]) -> str | None:
        right = typed[1]
        return f"(lowerUTF8({args[0]}) {sign} {quoted(right.value.lower())})" if isinstance(right, Const) else None

    return rule


def _contains_folded(sql: str, needle: str) -> str:
    name = "positionCaseInsensitive" if needle.isascii() else "positionCaseInsensitiveUTF8"
    return f"({name}({sql}, {quoted(needle)}) > 0)"


def _contains(fold: bool) -> Callable[[str, str], str]:
    def made(sql: str, needle: str) -> str:
        exact = _contains_folded(sql, needle) if fold else f"(position({sql}, {quoted(needle)}) > 0)"
        return _first(words.contains(needle), exact, sql)

    return made


def _first(test: str, exact: str, sql: str) -> str:
    """An exact test of a column, and one that an index answers. The exact one first: where the index does not, it is
    the cheap one, and the engine looks no further.
    """
    return f"({exact} AND {test})" if test and isinstance(sql, words.Searched) else exact


def _term(fold: bool, before: bool, after: bool) -> Callable[[str, str], str]:
    """A term: first where the text is at all, then whether what stands beside it is no letter and no digit."""

    def made(sql: str, needle: str) -> str:
        edge = r"[^\pL\pN]"
        test, is_enough = words.term(needle, before=before, after=after)
        if is_enough and fold and isinstance(sql, words.Searched):
            return test
        text = re.sub(r"([^A-Za-z0-9_\s\x80-\U0010ffff])", r"\\\1", needle)
        if (
            fold and needle.isascii()
        ):  # (?i) holds the long s and the Kelvin sign for s and k, which the first test does not
            text = re.sub("[A-Za-z]", lambda letter: f"[{letter[0].lower()}{letter[0].upper()}]", text)
        regex = ("(?i)" if fold and not needle.isascii() else "") + "(?s)"
        regex += f"(?:^|{edge})" if before and needle[0].isalnum() else ""
        regex += text
        regex += f"(?:$|{edge})" if after and needle[-1].isalnum() else ""
        first = _contains_folded(sql, needle) if fold else f"(position({sql}, {quoted(needle)}) > 0)"
        return _first(test, f"({first} AND match({sql}, {quoted(regex)}))", sql)

    return made


def _edge(name: str, fold: bool) -> Callable[[str, str], str]:
    return lambda sql, needle: (
        f"{name}(lowerUTF8({sql}), {quoted(needle.lower())})" if fold else f"{name}({sql}, {quoted(needle)})"
    )


def _has_list(sign: str) -> Rule:
    def rule(args: list[str], typed: Sequence[Typed]) -> str | None:
        values = typed[1].value if isinstance(typed[1], Const) else None
        if not values or not all(isinstance(value, str) and value for value in values):
            return None
        term = _term(fold=True, before=True, after=True)
        return "(" + f" {sign} ".join(term(args[0], value) for value in values) + ")"

    return rule


def _between(negated: bool) -> Rule:
    def rule(args: list[str], typed: Sequence[Typed]) -> str | None:
        if Kind.BOOL in {t.kind for t in typed}:
            return None
        made = f"(({args[0]}) >= ({args[1]}) AND ({args[0]}) <= ({args[2]}))"
        return f"NOT {made}" if negated else made

    return rule


def _bin(args: list[str], typed: Sequence[Typed]) -> str | None:
    size = typed[1]
    if not isinstance(size, Const) or not isinstance(size.value, int) or size.value <= 0:
        return None
    if typed[0].kind is Kind.DATETIME:
        ticks = f"(intDiv(toUnixTimestamp64Nano(toDateTime64({args[0]}, 9, 'UTC')), 100) + {EPOCH})"
        return f"fromUnixTimestamp64Nano(({ticks} - modulo({ticks}, {size.value}) - {EPOCH}) * 100, 'UTC')"
    if typed[0].kind in {Kind.INT, Kind.LONG, Kind.TIMESPAN}:
        return f"(({args[0]}) - positiveModulo({args[0]}, {size.value}))"
    return None


def _regex(args: list[str], typed: Sequence[Typed]) -> str | None:
    right = typed[1]
    if not isinstance(right, Const) or not isinstance(right.value, str):
        return None
    return f"match({args[0]}, {quoted('(?-s)' + right.value)})"


def _extract(args: list[str], typed: Sequence[Typed]) -> str | None:
    regex, group = typed[0], typed[1]
    if not isinstance(regex, Const) or not isinstance(group, Const):
        return None
    from fairlead.logs.kql.regexes import pattern

    if not 0 <= int(group.value) <= pattern(str(regex.value)).groups:
        return None
    return f"regexpExtract({args[2]}, {quoted('(?-s)' + str(regex.value))}, {int(group.value)})"


def _wrapping(sign: str) -> Rule:
    return lambda args, typed: f"(toInt64({args[0]}) {sign} toInt64({args[1]}))"


def _plain(form: str) -> Rule:
    return lambda args, typed: form.format(*args)


def _isnull(args: list[str], typed: Sequence[Typed]) -> str | None:
    return f"isNull({args[0]})" if typed[0].kind not in {Kind.STRING, Kind.DYNAMIC} else None


def _isempty(args: list[str], typed: Sequence[Typed]) -> str | None:
    return f"empty({args[0]})" if typed[0].kind is Kind.STRING else _isnull(args, typed)


def _opposite(rule: Rule) -> Rule:
    def made(args: list[str], typed: Sequence[Typed]) -> str | None:
        sql = rule(args, typed)
        return None if sql is None else f"NOT {sql}"

    return made


def _tostring(args: list[str], typed: Sequence[Typed]) -> str | None:
    if typed[0].kind is Kind.DATETIME:
        text = f"concat(replaceOne(toString(toDateTime64({args[0]}, 7, 'UTC')), ' ', 'T'), 'Z')"
        return f"ifNull({text}, '')"
    plain = {Kind.INT, Kind.LONG, Kind.STRING, Kind.GUID}
    return f"ifNull(toString({args[0]}), '')" if typed[0].kind in plain else None


EXACT: dict[str, Rule] = {
    "and": _plain("(({0}) AND ({1}))"),
    "or": _plain("(({0}) OR ({1}))"),
    "not": _plain("NOT ({0})"),
    "==": _equality("=", 0),
    "!=": _equality("!=", 1),
    "<": _sign("<"),
    "<=": _sign("<="),
    ">": _sign(">"),
    ">=": _sign(">="),
    "=~": _folded("="),
    "!~": _folded("!="),
    "between": _between(negated=False),
    "!between": _between(negated=True),
    "has_any": _has_list("OR"),
    "has_all": _has_list("AND"),
    "matches_regex": _regex,
    "+int": _wrapping("+"),
    "-int": _wrapping("-"),
    "*int": _wrapping("*"),
    "bin": _bin,
    "floor": _bin,
    "strlen": _plain("toInt64(lengthUTF8({0}))"),
    "tolower": _plain("lowerUTF8({0})"),
    "toupper": _plain("upperUTF8({0})"),
    "extract": _extract,
    "isnull": _isnull,
    "isnotnull": _opposite(_isnull),
    "notnull": _opposite(_isnull),
    "isempty": _isempty,
    "isnotempty": _opposite(_isempty),
    "notempty": _opposite(_isempty),
    "tostring": _tostring,
    "strcat": lambda args, typed: f"concat({', '.join(args)}, '')",
}
"""By the name in the catalogue."""

for _name, _make in {
    "contains": _contains(fold=True),
    "contains_cs": _contains(fold=False),
    "startswith": _edge("startsWith", fold=True),
    "startswith_cs": _edge("startsWith", fold=False),
    "endswith": _edge("endsWith", fold=True),
    "endswith_cs": _edge("endsWith", fold=False),
    "has": _term(fold=True, before=True, after=True),
    "has_cs": _term(fold=False, before=True, after=True),
    "hasprefix": _term(fold=True, before=True, after=False),
    "hasprefix_cs": _term(fold=False, before=True, after=False),
    "hassuffix": _term(fold=True, before=False, after=True),
    "hassuffix_cs": _term(fold=False, before=False, after=True),
}.items():
    EXACT[_name] = _needle(_make)
    EXACT["!" + _name] = _opposite(_needle(_make))

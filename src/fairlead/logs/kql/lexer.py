"""A query's text as tokens with places. Names keep their dashes apart: `project-away` is put together by the parser,
which alone knows where an operator may stand.

Lexical rules: https://learn.microsoft.com/kusto/query/scalar-data-types/ and .../schema-entities/entity-names.

Must not know: the grammar.
"""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

from fairlead.logs.kql.kinds import MAX_DIGITS, MAX_INT, MAX_LONG, MIN_INT, NAMES, Guid, Kind, boxed
from fairlead.logs.kql.problems import Span, syntax
from fairlead.logs.kql.times import UNITS, parse_datetime, parse_timespan, scaled


class Token(NamedTuple):
    """A word of a query."""

    sort: str
    """name, text, value, op or end."""
    text: str
    at: Span
    value: Any = None
    kind: Kind = Kind.STRING


MAX_QUERY = 2_000_000
"""Characters: a query that Azure takes has no more."""

_BLANK = re.compile(r"(?:\s+|//[^\n]*)+")
_NAME = re.compile(r"[A-Za-z_$][A-Za-z0-9_]*")
_NUMBER = re.compile(r"0[xX](?P<hex>[0-9A-Fa-f]+)|(?P<num>\d+(?:\.(?!\.)\d*)?(?:[eE][+-]?\d+)?)(?P<unit>[A-Za-z]+)?")
_STRING = re.compile(
    r"[hH]?(?:@\"(?P<vd>(?:[^\"]|\"\")*)\"|@'(?P<vs>(?:[^']|'')*)'|\"(?P<d>(?:[^\"\\\n]|\\.)*)\"|'(?P<s>(?:[^'\\\n]|\\.)*)'"
    r"|```(?P<b>.*?)```|~~~(?P<t>.*?)~~~)",
    re.DOTALL,
)
_TYPED = re.compile(r"(bool|boolean|int|long|real|double|decimal|datetime|date|timespan|time|guid|uuid|dynamic)\s*\(")
_RAW = re.compile(r"\s*(?:\"([^\"]*)\"|'([^']*)'|([^()\"']*))\s*\)")
_DIGIT_NAME = re.compile(r"\d+[A-Za-z_][A-Za-z0-9_]*")
_BANG = re.compile(
    r"!(?:in|contains|has|startswith|endswith|between|hasprefix|hassuffix)(?:_cs|_any|_all)?~?(?![A-Za-z0-9_])"
)
_OP = re.compile(r"\.\.|=>|==|=~|!=|!~|<=|>=|<>|[-+*/%<>=|()\[\]{},;:.?@]")
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|x([0-9A-Fa-f]{2})|([0-7]{3})|(.))", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_GUID = re.compile(r"\{?[0-9a-fA-F]{8}-?(?:[0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}\}?")
_ODD_REALS = {"nan": float("nan"), "inf": float("inf"), "+inf": float("inf"), "-inf": float("-inf")}


def tokens(text: str) -> list[Token]:
    """Every token of a query, and an `end`. Raises Refused."""
    if len(text) > MAX_QUERY:
        raise syntax(f"a query has at most {MAX_QUERY:,} characters", Span(0, 1))
    found: list[Token] = []
    at = 0
    while True:
        blank = _BLANK.match(text, at)
        at = blank.end() if blank else at
        if at >= len(text):
            return [*found, Token("end", "", Span(at, at))]
        token = _token(text, at)
        found.append(token)
        at = token.at.end


def _token(text: str, at: int) -> Token:
    typed = _TYPED.match(text, at)
    if typed:
        token = _dynamic(text, typed) if typed[1] == "dynamic" else _typed(text, typed)
        if token:
            return token
    string = _STRING.match(text, at)
    if string:
        return Token("text", string[0], Span(at, string.end()), unescaped(string))
    name = _NAME.match(text, at)
    if name:
        end = name.end()
        if name[0] == "in" and text[end : end + 1] == "~":
            end += 1
        return Token("name", text[at:end], Span(at, end))
    number = _NUMBER.match(text, at)
    if number:
        word = _DIGIT_NAME.match(text, at)
        if word and word.end() >= number.end() and not _is_number(number, word):  # a name may begin with digits
            return Token("name", word[0], Span(at, word.end()))
        return _number(number)
    op = _BANG.match(text, at) or _OP.match(text, at)
    if op:
        return Token("op", op[0], Span(at, op.end()))
    what = "this text has no end" if text[at] in "\"'`" else f"`{text[at]}` means nothing here"
    raise syntax(what, Span(at, at + 1))


def _is_number(number: re.Match[str], word: re.Match[str]) -> bool:
    """Whether digits and letters are a number with its unit."""
    return word.end() == number.end() and (number["hex"] is not None or not number["unit"] or number["unit"] in UNITS)


def _number(found: re.Match[str]) -> Token:
    at = Span(found.start(), found.end())
    if found["hex"]:
        value = int(found["hex"], 16)
        if value >= 1 << 64:
            raise syntax("this number has more than 64 bits", at)
        return Token("value", found[0], at, value if value <= MAX_LONG else value - (1 << 64), Kind.LONG)
    digits, unit = found["num"], found["unit"]
    if unit:
        if unit not in UNITS:
            raise syntax(
                f"`{found[0]}` is neither a number nor a timespan", at, "timespans: 1d, 1h, 1m, 1s, 1ms, 1tick"
            )
        span = scaled(digits, UNITS[unit])
        if span is None:
            raise syntax("this does not fit in a timespan", at)
        return Token("value", found[0], at, span, Kind.TIMESPAN)
    if digits.isdigit():
        if len(digits) > MAX_DIGITS or int(digits) > MAX_LONG:
            if len(digits) <= MAX_DIGITS and int(digits) == MAX_LONG + 1:  # for the minus sign before it
                return Token("value", found[0], at, MAX_LONG + 1, Kind.LONG)
            hint = f"decimal({digits}) or real({digits})" if len(digits) <= MAX_DIGITS else ""
            raise syntax("this number does not fit in a long", at, hint)
        return Token("value", found[0], at, int(digits), Kind.LONG)
    return Token("value", found[0], at, float(digits), Kind.REAL)


def unescaped(found: re.Match[str]) -> str:
    """What a string literal says."""
    for group, quote in (("vd", '"'), ("vs", "'")):
        if found[group] is not None:
            return found[group].replace(quote * 2, quote)
    for group in ("b", "t"):
        if found[group] is not None:
            return found[group]
    return _ESCAPE.sub(_escape, found["d"] if found["d"] is not None else found["s"])


def _escape(found: re.Match[str]) -> str:
    for group, base in ((1, 16), (2, 16), (3, 16), (4, 8)):
        if found[group]:
            code = int(found[group], base)
            return chr(code) if code < 0x110000 else found[0]
    return _ESCAPES.get(found[5], found[5])


def _typed(text: str, found: re.Match[str]) -> Token | None:
    """`datetime(...)` and its like; None where the parentheses hold an expression."""
    raw = _RAW.match(text, found.end())
    if not raw:
        return None
    kind, at = NAMES[found[1]], Span(found.start(), raw.end())
    inside = next(part for part in raw.groups() if part is not None).strip()
    if inside == "null":
        return Token("value", found[0], at, None, kind)
    value = literal(inside, kind, quoted=raw[3] is None)
    if value is None:
        raise syntax(f"`{inside}` is no {kind}", at)
    return Token("value", text[at.start : at.end], at, value, kind)


def literal(text: str, kind: Kind, *, quoted: bool = False) -> Any:
    """The value of what stands between the parentheses of a typed literal; None where it is none."""
    match kind:
        case Kind.DATETIME:
            return parse_datetime(text)
        case Kind.TIMESPAN:
            return parse_timespan(text)
        case Kind.GUID:
            return str(Guid(dashed(text))) if _GUID.fullmatch(text) else None
        case Kind.BOOL:
            return {"true": True, "false": False, "1": True, "0": False}.get(text.lower())
        case Kind.REAL:
            return _ODD_REALS[text.lower()] if text.lower() in _ODD_REALS else _as(float, text)
        case Kind.DECIMAL:
            value = _as(Decimal, text)
            return value if value is not None and value.is_finite() else None
        case Kind.INT | Kind.LONG:
            value = _as(lambda word: int(word, 16 if word.lower().lstrip("+-").startswith("0x") else 10), text)
            low, high = (MIN_INT, MAX_INT) if kind is Kind.INT else (-MAX_LONG - 1, MAX_LONG)
            return value if value is not None and low <= value <= high else None
        case _:
            return None


def dashed(text: str) -> str:
    """A UUID in its usual form."""
    digits = text.strip("{}").replace("-", "").lower()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _as(make: Any, text: str) -> Any:
    try:
        return make(text)
    except (ValueError, InvalidOperation):
        return None


def _dynamic(text: str, found: re.Match[str]) -> Token:
    value, at = _json(text, found.end(), 0)
    at = _skip(text, at)
    if text[at : at + 1] != ")":
        raise syntax("dynamic(...) holds one JSON value, and here is more", Span(at, at + 1))
    return Token("value", text[found.start() : at + 1], Span(found.start(), at + 1), value, Kind.DYNAMIC)


def _skip(text: str, at: int) -> int:
    blank = _BLANK.match(text, at)
    return blank.end() if blank else at


def _json(text: str, at: int, depth: int) -> tuple[Any, int]:
    """A value of a dynamic literal: JSON, with either quotes, and Kusto's own typed literals."""
    at = _skip(text, at)
    here = Span(at, at + 1)
    if depth > 100:
        raise syntax("a dynamic literal this deep is refused", here)
    sign = text[at : at + 1]
    if sign and sign in "[{":
        return (_list if sign == "[" else _bag)(text, at + 1, depth)
    minus = sign == "-"
    if not sign or sign in ")]},:":
        raise syntax("here a dynamic literal lacks a value", here)
    token = _token(text, at + 1 if minus else at)
    if token.sort == "name" and token.text in {"true", "false", "null"}:
        return {"true": True, "false": False, "null": None}[token.text], token.at.end
    if token.sort not in {"value", "text"}:
        raise syntax(
            "a dynamic literal holds JSON: no names and no expressions",
            token.at,
            "pack_array() and bag_pack() take expressions",
        )
    value = boxed(token.value, token.kind)
    return -value if minus else value, token.at.end


def _list(text: str, at: int, depth: int) -> tuple[list[Any], int]:
    items: list[Any] = []
    while True:
        at = _skip(text, at)
        if text[at : at + 1] == "]":
            return items, at + 1
        value, at = _json(text, at, depth + 1)
        items.append(value)
        at = _comma(text, at, "]")


def _bag(text: str, at: int, depth: int) -> tuple[dict[str, Any], int]:
    items: dict[str, Any] = {}
    while True:
        at = _skip(text, at)
        if text[at : at + 1] == "}":
            return items, at + 1
        key = _STRING.match(text, at)
        if not key:
            raise syntax("a key of a property bag is a text in quotes", Span(at, at + 1))
        at = _skip(text, key.end())
        if text[at : at + 1] != ":":
            raise syntax("here a property bag lacks `:`", Span(at, at + 1))
        items[unescaped(key)], at = _json(text, at + 1, depth + 1)
        at = _comma(text, at, "}")


def _comma(text: str, at: int, end: str) -> int:
    at = _skip(text, at)
    if text[at : at + 1] == ",":
        return at + 1
    if text[at : at + 1] != end:
        raise syntax(f"here a dynamic literal lacks `,` or `{end}`", Span(at, at + 1))
    return at

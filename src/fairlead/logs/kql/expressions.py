"""Scalar expressions: a parser by precedence climbing, and what operators share (lists, names, `name = value`).

Levels, loosest first, as the published grammar has them: or, and, equality and membership, comparison, sum, product,
string operators, sign, member and index.

Must not know: operators, types, functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from fairlead.base.suggest import did_you_mean
from fairlead.logs.kql.kinds import MAX_LONG, NAMES, Kind
from fairlead.logs.kql.lexer import Token, tokens
from fairlead.logs.kql.problems import Refused, Span, syntax, unsupported
from fairlead.logs.kql.tree import (
    Among,
    Binary,
    Call,
    Index,
    Literal,
    Member,
    Name,
    Named,
    Node,
    Star,
    TypeOf,
    Unary,
)

T = TypeVar("T")

_TERM_OPS = ("contains", "has", "startswith", "endswith", "hasprefix", "hassuffix")
STRING_OPS = frozenset(
    ["=~", "!~", ":", "like", "notlike"]
    + [bang + op + cs for op in _TERM_OPS for cs in ("", "_cs") for bang in ("", "!")]
)
"""Binary operators of two strings, all at one level."""
MEMBERSHIP = frozenset({"in", "!in", "in~", "!in~", "has_any", "has_all", "!has_any", "!has_all"})
_LEVELS: tuple[frozenset[str], ...] = (
    frozenset({"or"}),
    frozenset({"and"}),
    frozenset({"==", "!=", "<>"}) | MEMBERSHIP | {"between", "!between"},
    frozenset({"<", ">", "<=", ">="}),
    frozenset({"+", "-"}),
    frozenset({"*", "/", "%"}),
    STRING_OPS | {"matches"},
)
MAX_DEPTH = 400
"""Of parentheses and calls inside one another."""


class Expressions:
    """Reads expressions from tokens. The grammar of operators builds on it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = tokens(text)
        self.place = 0
        self.depth = 0

    # ---- tokens ----------------------------------------------------------------------------------------------------

    @property
    def now(self) -> Token:
        return self.tokens[self.place]

    def ahead(self, num: int = 1) -> Token:
        return self.tokens[min(self.place + num, len(self.tokens) - 1)]

    def step(self) -> Token:
        token = self.now
        if token.sort != "end":
            self.place += 1
        return token

    def at(self, *texts: str) -> bool:
        """Whether one of these words or signs is next."""
        return self.now.sort in {"op", "name"} and self.now.text in texts

    def take(self, *texts: str) -> Token | None:
        return self.step() if self.at(*texts) else None

    def need(self, text: str, why: str = "") -> Token:
        found = self.take(text)
        if found:
            return found
        raise syntax(f"expected `{text}`{why and ' ' + why}, found {self.shown()}", self.now.at)

    def shown(self) -> str:
        return f"`{self.now.text}`" if self.now.sort != "end" else "the end of the query"

    def since(self, start: Span) -> Span:
        return start.to(self.tokens[max(self.place - 1, 0)].at)

    def listed(self, item: Callable[[], T], until: tuple[str, ...] = ()) -> list[T]:
        """Items between commas; none where the closing sign is next."""
        found: list[T] = []
        while not self.at(*until):
            found.append(item())
            if not self.take(","):
                break
        return found

    def name(self, what: str = "a name") -> str:
        """A name: plain, or `['in brackets']`."""
        if self.now.sort == "name":
            return self.step().text
        if self.at("[") and self.ahead().sort == "text" and self.ahead(2).text == "]":
            self.step()
            value = str(self.step().value)
            self.step()
            return value
        raise syntax(f"expected {what}, found {self.shown()}", self.now.at)

    def number(self, what: str) -> int:
        if self.now.sort == "value" and isinstance(self.now.value, int):
            return int(self.step().value)
        raise syntax(f"expected {what}, found {self.shown()}", self.now.at)

    def kind_name(self) -> str:
        token = self.now
        if token.sort == "name" and token.text in NAMES:
            return self.step().text
        raise syntax(f"{self.shown()} is no type; {did_you_mean(token.text, NAMES)}", token.at)

    def columns(self) -> tuple[tuple[str, str], ...]:
        """`(a: long, b: string)`"""
        self.need("(")
        found = self.listed(self.column, (")",))
        self.need(")")
        return tuple(found)

    def column(self) -> tuple[str, str]:
        name = self.name("the name of a column")
        self.need(":", "and a type")
        return name, self.kind_name()

    # ---- expressions -----------------------------------------------------------------------------------------------

    def expression(self) -> Node:
        """A scalar expression."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise syntax(f"an expression deeper than {MAX_DEPTH} levels is refused", self.now.at)
        try:
            return self._level(0)
        finally:
            self.depth -= 1

    def _level(self, level: int) -> Node:
        if level == len(_LEVELS):
            return self._unary()
        start = self.now.at
        left = self._level(level + 1)
        while self.at(*_LEVELS[level]):
            if self.at(":") and not self.colon_is_operator:
                break
            op = self.step().text
            if op in MEMBERSHIP:
                left = Among(self.since(start), op, left, self._members())
            elif op.endswith("between"):
                left = Among(self.since(start), op, left, self._bounds())
            else:
                if op == "matches":
                    self.need("regex")
                    op = "matches_regex"
                right = self._level(level + 1)
                left = Binary(self.since(start), "!=" if op == "<>" else op, left, right)
        return left

    colon_is_operator = False
    """`column:"text"`, inside of `search` alone."""

    def _members(self) -> tuple[Node, ...]:
        self.need("(", "and a list")
        found = self.listed(self.argument, (")",))
        self.need(")")
        return tuple(found)

    def _bounds(self) -> tuple[Node, ...]:
        self.need("(", "and two bounds: between (low .. high)")
        low = self.expression()
        self.need("..", "between two bounds")
        high = self.expression()
        self.need(")")
        return low, high

    def _unary(self) -> Node:
        sign = self.take("-", "+")
        if not sign:
            return self._postfix()
        inner = self._unary()
        at = self.since(sign.at)
        if isinstance(inner, Literal) and isinstance(inner.value, int | float) and not isinstance(inner.value, bool):
            return Literal(at, -inner.value if sign.text == "-" else inner.value, inner.kind)
        return inner if sign.text == "+" else Unary(at, "-", inner)

    def _postfix(self) -> Node:
        start = self.now.at
        found = self._primary()
        while True:
            if self.take("."):
                if self.at("["):
                    continue
                name = self.name("the name of a member")
                if self.at("("):
                    args = self._args()
                    found = Call(self.since(start), name, args, on=found)
                else:
                    found = Member(self.since(start), found, name)
            elif self.at("[") and self.indexable(found):
                self.step()
                index = self.expression()
                self.need("]")
                found = Index(self.since(start), found, index)
            else:
                return found

    def indexable(self, found: Node) -> bool:
        return isinstance(found, Name | Member | Index | Call) or (
            isinstance(found, Literal) and found.kind is Kind.DYNAMIC
        )

    def _primary(self) -> Node:
        token = self.now
        if token.sort == "text":
            text = str(self.step().value)
            while self.now.sort == "text":  # adjacent literals are one
                text += str(self.step().value)
            return Literal(self.since(token.at), text, Kind.STRING)
        if token.sort == "value":
            self.step()
            if token.value == MAX_LONG + 1 and token.kind is Kind.LONG and self.tokens[self.place - 2].text != "-":
                raise syntax("this number does not fit in a long", token.at, f"decimal({token.text})")
            return Literal(token.at, token.value, token.kind)
        if self.at("("):
            self.step()
            inner = self.query_or_expression()
            self.need(")")
            return inner
        if self.at("*"):
            return Star(self.step().at)
        if self.at("["):
            return Name(token.at, self.name())
        if token.sort == "name":
            return self._named(token)
        raise syntax(f"expected an expression, found {self.shown()}", token.at)

    def _named(self, token: Token) -> Node:
        if token.text in {"true", "false"} and self.ahead().text != "(":
            self.step()
            return Literal(token.at, token.text == "true", Kind.BOOL)
        if token.text == "typeof" and self.ahead().text == "(":
            return self.type_of()
        self.step()
        if self.at("("):
            args = self._args()
            return Call(self.since(token.at), token.text, args)
        if self.at("*") and self.now.at.start == token.at.end and self._pattern_ends():
            self.step()
            return Star(self.since(token.at), token.text + "*")
        return Name(token.at, token.text)

    def _pattern_ends(self) -> bool:
        """Whether `a*` is a pattern of names here, and not the start of a product."""
        after = self.ahead()
        return after.sort == "end" or after.text in {",", ")", "|", ";", "asc", "desc", "granny-asc", "granny-desc"}

    def type_of(self) -> TypeOf:
        start = self.need("typeof").at
        self.need("(")
        kinds = self.listed(self.kind_name, (")",)) or [self.kind_name()]  # at least one: nothing else may stand here
        self.need(")")
        return TypeOf(self.since(start), tuple(kinds))

    def _args(self) -> tuple[Node, ...]:
        self.need("(")
        found = self.listed(self.argument, (")",))
        self.need(")")
        return tuple(found)

    def argument(self) -> Node:
        """Of a call: an expression, a query, `name = value`."""
        if self.now.sort == "name" and self.ahead().text == "=" and self.ahead().sort == "op":
            start = self.now.at
            name = self.step().text
            self.step()
            value = self.query_or_expression()
            return Named(self.since(start), (name,), value)
        return self.query_or_expression()

    def query_or_expression(self) -> Node:
        """Replaced by the grammar of operators."""
        return self.expression()

    def maybe_named(self) -> Node:
        """`value`, `name = value` or `(a, b) = value`."""
        start = self.now.at
        if self.at("("):
            names = self._names_before_equals()
            if names:
                return Named(self.since(start), names, self.expression())
        place = self.place
        try:
            name = self.name()
        except Refused:
            return self.expression()
        if self.take("="):
            value = self.expression()
            return Named(self.since(start), (name,), value)
        self.place = place
        return self.expression()

    def _names_before_equals(self) -> tuple[str, ...] | None:
        place = self.place
        try:
            self.step()
            names = self.listed(self.name, (")",))
            if self.take(")") and self.take("="):
                return tuple(names)
        except Refused:
            pass
        self.place = place
        return None

    def dashed(self) -> str:
        """A word with dashes in it, such as `project-away`; nothing is taken."""
        word, num = self.now.text, 0
        if self.now.sort != "name":
            return ""
        while (
            self.ahead(num + 1).text == "-"
            and self.ahead(num + 2).sort == "name"
            and self.ahead(num + 1).at.start == self.ahead(num).at.end
            and self.ahead(num + 2).at.start == self.ahead(num + 1).at.end
        ):
            word += "-" + self.ahead(num + 2).text
            num += 2
        return word

    def settings(self, known: tuple[str, ...]) -> dict[str, str]:
        """`kind=inner hint.strategy=shuffle` and their like, before what an operator is about."""
        found: dict[str, str] = {}
        while self.now.sort == "name":
            name = self.now.text
            if name.startswith("hint") and self.ahead().text == ".":
                self.step()
                self.step()
                self.name()
                self.need("=")
                self._setting()
                continue
            if self.ahead().text != "=" or name not in known:
                return found
            self.step()
            self.step()
            found[name] = self._setting()
        return found

    def _setting(self) -> str:
        token = self.step()
        if token.sort in {"text", "value"}:
            return str(token.value)
        if token.sort != "name":
            raise syntax("expected a word", token.at)
        return token.text

    def refuse(self, what: str, at: Span, hint: str = "") -> Refused:
        return unsupported(f"{what} is not supported", at, hint)

"""What is wrong with a query, and where: one sentence, the line, a caret, the nearest thing that works.

Must not know: what a query means.
"""

from __future__ import annotations

from typing import NamedTuple

from fairlead.errors import Problem, QueryError


class Span(NamedTuple):
    """From where to where in the text of a query."""

    start: int
    end: int

    def to(self, other: Span) -> Span:
        """Both, and what stands between them."""
        return Span(self.start, other.end)


class Refused(Exception):
    """Raised inside the compiler, which knows places and no text."""

    def __init__(self, code: str, message: str, at: Span | None, hint: str = "") -> None:
        super().__init__(message)
        self.code, self.message, self.at, self.hint = code, message, at, hint


def syntax(message: str, at: Span, hint: str = "") -> Refused:
    """The text is not KQL."""
    return Refused("kql/syntax", message, at, hint)


def unknown(message: str, at: Span, hint: str = "") -> Refused:
    """A table, column or function that is not there."""
    return Refused("kql/unknown-name", message, at, hint)


def wrong(message: str, at: Span, hint: str = "") -> Refused:
    """It parses, and does not fit together."""
    return Refused("kql/types", message, at, hint)


def unsupported(message: str, at: Span | None, hint: str = "") -> Refused:
    """KQL, which this compiler does not translate."""
    return Refused("kql/unsupported", message, at, hint)


def too_much(message: str, hint: str = "") -> Refused:
    """A limit that the answer would break."""
    return Refused("kql/limit", message, None, hint)


def query_error(refused: Refused, text: str, name: str = "query") -> QueryError:
    """For users: with line, column and caret."""
    if refused.at is None:
        return QueryError([Problem(refused.code, refused.message, name, hint=refused.hint)])
    start = min(refused.at.start, len(text))
    line = text.count("\n", 0, start) + 1
    first = text.rfind("\n", 0, start) + 1
    last = text.find("\n", start)
    source = text[first : len(text) if last < 0 else last]
    column = start - first + 1
    length = max(1, min(refused.at.end, first + len(source)) - start)
    return QueryError([Problem(refused.code, refused.message, name, line, column, length, source, refused.hint)])

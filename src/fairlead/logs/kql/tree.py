"""The tree of a query, as it was written: every node knows its place in the text.

Must not know: types, tables, functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from fairlead.logs.kql.kinds import Kind
from fairlead.logs.kql.problems import Span


@dataclass(frozen=True, slots=True)
class Node:
    """Anything in a query."""

    at: Span


@dataclass(frozen=True, slots=True)
class Literal(Node):
    value: Any
    kind: Kind


@dataclass(frozen=True, slots=True)
class Name(Node):
    name: str


@dataclass(frozen=True, slots=True)
class Star(Node):
    """`*`, or a pattern of names such as `a*`."""

    pattern: str = "*"


@dataclass(frozen=True, slots=True)
class Member(Node):
    of: Node
    name: str


@dataclass(frozen=True, slots=True)
class Index(Node):
    of: Node
    index: Node


@dataclass(frozen=True, slots=True)
class Call(Node):
    name: str
    args: tuple[Node, ...]
    on: Node | None = None
    """`database("x").T`: what a call is a member of."""


@dataclass(frozen=True, slots=True)
class Unary(Node):
    op: str
    of: Node


@dataclass(frozen=True, slots=True)
class Binary(Node):
    op: str
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Among(Node):
    """`in`, `!in`, `has_any`, `has_all`, `between`: one against several."""

    op: str
    left: Node
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Named(Node):
    """`name = value`, or `(a, b) = value`."""

    names: tuple[str, ...]
    value: Node


@dataclass(frozen=True, slots=True)
class TypeOf(Node):
    """`typeof(long)`."""

    kinds: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Order(Node):
    """A key of `sort by`: descending and nulls last, unless it says otherwise."""

    value: Node
    ascending: bool
    nulls_first: bool


@dataclass(frozen=True, slots=True)
class Step(Node):
    """One operator: its name, and what it was given, under the names that its parser chose."""

    name: str
    has: Mapping[str, Any] = field(default_factory=dict)


def mentions(value: Any, name: str) -> bool:
    """Whether a name stands anywhere in a part of a tree."""
    match value:
        case Name(name=found):
            return found == name
        case Node():
            return any(mentions(getattr(value, part.name), name) for part in fields(value))
        case Mapping():
            return any(mentions(item, name) for item in value.values())
        case tuple() | list():
            return any(mentions(item, name) for item in value)
        case _:
            return False


@dataclass(frozen=True, slots=True)
class Pipe(Node):
    """A source and what is done to it."""

    source: Node
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Datatable(Node):
    columns: tuple[tuple[str, str], ...]
    values: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Parameter(Node):
    """Of a function: a scalar kind, or columns of a table (None: `*`, any)."""

    name: str
    kind: str
    columns: tuple[tuple[str, str], ...] | None = None
    default: Node | None = None

    @property
    def tabular(self) -> bool:
        return self.kind == "table"


@dataclass(frozen=True, slots=True)
class Function(Node):
    """`(a: long) { ... }`"""

    parameters: tuple[Parameter, ...]
    body: Query
    view: bool = False
    """It stands for a table of its name."""


@dataclass(frozen=True, slots=True)
class Let(Node):
    name: str
    value: Node


@dataclass(frozen=True, slots=True)
class Query(Node):
    """Statements, the last of which is the answer."""

    statements: tuple[Node, ...]

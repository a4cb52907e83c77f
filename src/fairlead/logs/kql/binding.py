"""Expressions of the tree become typed ones: names are found, kinds decided, functions chosen, constants computed.

Whatever does not fit is refused with its place and, where there is one, what to write instead.

Must not know: how rows are read.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from fairlead.base.suggest import did_you_mean
from fairlead.logs.kql.calls import OWN, applied
from fairlead.logs.kql.gathered import Gathered
from fairlead.logs.kql.kinds import NAMES, WHOLE, Column, Kind
from fairlead.logs.kql.problems import Refused, Span, unknown, unsupported, wrong
from fairlead.logs.kql.registry import AGGREGATES, SCALARS, Scalar
from fairlead.logs.kql.signs import arithmetic, comparable, compared, negative
from fairlead.logs.kql.tree import (
    Among,
    Binary,
    Call,
    Datatable,
    Index,
    Literal,
    Member,
    Name,
    Named,
    Node,
    Pipe,
    Star,
    Step,
    TypeOf,
    Unary,
)
from fairlead.logs.kql.typed import (
    Col,
    Const,
    Contains,
    Typed,
    Window,
    call,
    const_of,
    convert,
    hashable,
)

WINDOWS = {
    "prev": (1, 3),
    "next": (1, 3),
    "row_number": (0, 2),
    "row_cumsum": (1, 2),
    "row_rank_dense": (1, 2),
    "row_rank_min": (1, 2),
    "row_window_session": (3, 4),
}
"""Functions of neighbouring rows, and how many arguments they take."""

SPECIAL = (
    "ago", "now", "toscalar", "materialize", "column_ifexists", "columnifexists", "pack_all", "bag_pack_columns",
    "ingestion_time", "cursor_after", "current_database", "estimate_data_size", "datatable", "view", "table",
    "column_names_of", "arg_max", "arg_min", "argmax", "argmin", "take_any", "any", "percentile", "percentiles",
    "percentilesw", "percentilew", "percentiles_array", "percentilesw_array",
)  # fmt: skip


HIDDEN_TABLE = "\0$table"
"""A column that no name of a query can reach: which table a row of a union is of. It never leaves a query."""


class World(Protocol):
    """What expressions need of the query around them."""

    now: int

    def scalar_of(self, node: Node, names: Names) -> Typed:
        """The single value of a sub-query, run now."""

    def relation(self, node: Node, names: Names) -> Any:
        """The table that a node stands for."""

    def list_of(self, node: Node, names: Names) -> tuple[list[Any], Kind] | None:
        """The first column of a sub-query, run now; None where the node is no query."""

    def called(self, function: Any, node: Call, args: list[Any]) -> Any:
        """What a function of a `let` gives."""

    def is_tabular(self, value: Any) -> bool:
        """Whether a name stands for a table."""

    def table_exists(self, name: str) -> bool:
        """Whether the store has it."""


Names = Mapping[str, Any]


class Binder:
    """Binds expressions over the columns of one table."""

    def __init__(
        self,
        world: World,
        columns: Sequence[Column],
        names: Names,
        *,
        gathered: Gathered | None = None,
        sides: tuple[Sequence[Column], Sequence[Column]] | None = None,
        table: str = "",
    ) -> None:
        self.world, self.columns, self.names = world, columns, names
        self.places = {column.name: place for place, column in enumerate(columns)}
        self.gathered = gathered
        self.sides = sides
        self.table = table

    def over(self, columns: Sequence[Column]) -> Binder:
        """The same world, other columns."""
        return Binder(self.world, columns, self.names, table=self.table)

    def bind(self, node: Node) -> Typed:
        """A typed expression. Raises Refused."""
        try:
            return self._bind(node)
        except Refused as refused:
            if refused.at is None:
                refused.at = node.at
            raise

    def test(self, node: Node) -> Typed:
        """An expression that must be a bool."""
        found = self.bind(node)
        if found.kind is Kind.DYNAMIC:
            return convert(found, Kind.BOOL)
        if found.kind is not Kind.BOOL:
            raise wrong(f"a bool is needed here, and this is {found.kind}", node.at, "compare it with something")
        return found

    def constant(self, node: Node, what: str) -> Any:
        return const_of(self.bind(node), node.at, what)

    def _bind(self, node: Node) -> Typed:
        match node:
            case Literal(value=value, kind=kind):
                return Const(kind, value)
            case Name(name=name):
                state = getattr(node, "typed", None)
                return state() if state else self.named(name, node.at)
            case Member():
                return self._member(node)
            case Index(of=of, index=index):
                return self._index(self.bind(of), self.bind(index), node.at)
            case Unary(of=of):
                return negative(self.bind(of), node.at)
            case Binary():
                return self._binary(node)
            case Among():
                return self._among(node)
            case Call():
                return self._call(node)
            case Named(value=value):
                return self.bind(value)
            case Pipe():
                raise wrong("a table stands where a value is needed", node.at, "toscalar(...)")
            case Star():
                raise wrong("`*` stands for columns, not for a value", node.at)
            case _:
                raise wrong("this is no expression", node.at)

    # ---- names -----------------------------------------------------------------------------------------------------

    def named(self, name: str, at: Span) -> Typed:
        """A column, or what a `let` gave."""
        place = self.places.get(name)
        if place is not None:
            return Col(self.columns[place].kind, place, name)
        if name in self.names:
            found = self.names[name]
            if isinstance(found, Typed):
                return found
            if self.world.is_tabular(found):
                raise wrong(f"`{name}` is a table, and a value is needed here", at, f"toscalar({name} | ...)")
            made = self.world.called(found, Call(at, name, ()), [])  # one without arguments stands for its value
            if isinstance(made, Typed):
                return made
            raise wrong(f"`{name}` is a function", at, f"{name}(...)")
        if name == "$table":
            place = self.places.get(HIDDEN_TABLE)
            return Const(Kind.STRING, self.table) if place is None else Col(Kind.STRING, place, name)
        known = [column.name for column in self.columns] + [n for n, v in self.names.items() if isinstance(v, Typed)]
        raise unknown(f"no column `{name}`", at, did_you_mean(name, known) if known else "")

    def _member(self, node: Member) -> Typed:
        if isinstance(node.of, Name) and node.of.name in {"$left", "$right"} and self.sides:
            side = self.sides[node.of.name == "$right"]
            place = next((i for i, c in enumerate(side) if c.name == node.name), None)
            if place is None:
                raise unknown(
                    f"no column `{node.name}` there", node.at, did_you_mean(node.name, [c.name for c in side])
                )
            shift = len(self.sides[0]) if node.of.name == "$right" else 0
            return Col(side[place].kind, place + shift, node.name)
        of = self.bind(node.of)
        if of.kind is not Kind.DYNAMIC:
            raise wrong(f"a {of.kind} has no members", node.at, "parse_json(...) makes a dynamic of a text")
        return call("member", (of, Const(Kind.STRING, node.name)), Kind.DYNAMIC)

    def _index(self, of: Typed, index: Typed, at: Span) -> Typed:
        if of.kind is not Kind.DYNAMIC:
            raise wrong(f"a {of.kind} has no items", at, "parse_json(...) makes a dynamic of a text")
        if index.kind not in {Kind.STRING, Kind.DYNAMIC, *WHOLE}:
            raise wrong(f"an item is named by a number or a text, and this is {index.kind}", at)
        return call("index", (of, index), Kind.DYNAMIC)

    # ---- signs -----------------------------------------------------------------------------------------------------

    def _binary(self, node: Binary) -> Typed:
        op = node.op
        if op in {"and", "or"}:
            return call(op, (self.test(node.left), self.test(node.right)), Kind.BOOL)
        if isinstance(node.left, Star):
            return self._anywhere(node)
        left, right = self.bind(node.left), self.bind(node.right)
        if op in {"+", "-", "*", "/", "%"}:
            return arithmetic(op, left, right, node.at)
        if op in {"==", "!=", "<", ">", "<=", ">="}:
            return compared(op, left, right, node.at)
        if op in {":", "like", "notlike"}:
            raise unsupported(f"`{op}` is not supported here", node.at, "has, or contains")
        if op not in SCALARS:
            raise unsupported(f"`{op}` is not supported", node.at, op.removesuffix("_cs"))
        for side, value in ((node.left, left), (node.right, right)):
            if value.kind not in {Kind.STRING, Kind.DYNAMIC}:
                raise wrong(f"`{op}` compares strings, and this is {value.kind}", side.at, "tostring(...)")
        if op == "matches_regex" and isinstance(right, Const):
            from fairlead.logs.kql.regexes import pattern

            pattern(str(right.value))
        return call(op, (convert(left, Kind.STRING), convert(right, Kind.STRING)), Kind.BOOL)

    def _anywhere(self, node: Binary) -> Typed:
        """`* has "x"`: in any column that holds text."""
        assert isinstance(node.left, Star)
        made: Typed = Const(Kind.BOOL, False)
        for column in self.columns:
            if column.kind in {Kind.STRING, Kind.DYNAMIC} and fnmatch.fnmatchcase(column.name, node.left.pattern):
                one = self.bind(Binary(node.at, node.op, Name(node.at, column.name), node.right))
                made = call("or", (made, one), Kind.BOOL)
        return made

    def _among(self, node: Among) -> Typed:
        left = self.bind(node.left)
        if node.op.endswith("between"):
            low, high = (self.bind(item) for item in node.items)
            if left.kind is Kind.DATETIME and high.kind is Kind.TIMESPAN:
                high = arithmetic("+", low, high, node.at)
            left, low = comparable(left, low, node.at, "between")
            left, high = comparable(left, high, node.at, "between")
            left, low = comparable(left, low, node.at, "between")
            return call(node.op, (left, low, high), Kind.BOOL)
        negated = node.op.startswith("!")
        op = node.op.lstrip("!")
        items = self._items(node, left.kind)
        if op in {"has_any", "has_all"}:
            made = call(op, (convert(left, Kind.STRING), items), Kind.BOOL)
            return call("not", (made,), Kind.BOOL) if negated else made
        if op == "in~":
            left = convert(left, Kind.STRING)
        if isinstance(items, Const):
            values = items.value or []
            if op == "in~":
                values = [v.lower() for v in values if isinstance(v, str)]
            return Contains(Kind.BOOL, left, frozenset(hashable(v) for v in values), op == "in~", negated)
        made = call("among" if op == "in" else "among~", (left, items), Kind.BOOL)
        return call("not", (made,), Kind.BOOL) if negated else made

    def _items(self, node: Among, kind: Kind) -> Typed:
        """What stands in the parentheses, as one array."""
        values: list[Any] = []
        typed: list[Typed] = []
        for item in node.items:
            listed = self.world.list_of(item, self.names) if len(node.items) == 1 else None
            if listed is not None:
                return Const(Kind.DYNAMIC, listed[0])
            value = self.bind(item)
            if value.kind is Kind.DYNAMIC and isinstance(value, Const):
                values.extend(value.value if isinstance(value.value, list) else [value.value])
                typed.append(value)
                continue
            if value.kind is Kind.DYNAMIC:
                if len(node.items) == 1:
                    return value
                value = convert(value, kind)
            elif kind is not Kind.DYNAMIC and node.op.lstrip("!") in {"in", "in~"}:
                value, _ = comparable(value, Const(kind, None), item.at, node.op)
            typed.append(value)
            if isinstance(value, Const):
                values.append(value.value)
        if all(isinstance(value, Const) for value in typed):
            return Const(Kind.DYNAMIC, values)
        return call("pack_array", tuple(typed), Kind.DYNAMIC)

    # ---- calls -----------------------------------------------------------------------------------------------------

    def _call(self, node: Call) -> Typed:
        name = node.name
        if node.on is not None:
            raise unsupported("other clusters and databases are not supported: there is one store", node.at)
        if name in self.names and not isinstance(self.names[name], Typed):
            made = self.world.called(self.names[name], node, self._arguments(node))
            if isinstance(made, Typed):
                return made
            raise wrong(f"`{name}` gives a table, and a value is needed here", node.at, f"toscalar({name}(...))")
        if name in OWN:
            return OWN[name](self, node)
        if name in WINDOWS:
            return self._window(node)
        if self.gathered is not None and (name in AGGREGATES or name == "percentile"):
            return self.gathered.bound(node)
        if name in SCALARS and SCALARS[name].family not in {"operators", "inner"}:
            return self._scalar(SCALARS[name], node)
        if name in AGGREGATES or name in SPECIAL:
            raise wrong(f"{name}() looks at many rows", node.at, "summarize " + name + "(...)")
        from fairlead.logs.kql.catalogue import REFUSED_FUNCTIONS

        if name in REFUSED_FUNCTIONS:
            raise unsupported(f"{name}() is not supported", node.at, REFUSED_FUNCTIONS[name])
        known = (
            [n for n, f in SCALARS.items() if f.family not in {"operators", "inner"}] + list(AGGREGATES) + list(WINDOWS)
        )
        raise unknown(
            f"no function `{name}`", Span(node.at.start, node.at.start + len(name)), did_you_mean(name, known)
        )

    def _arguments(self, node: Call) -> list[Any]:
        """Of a `let`'s function: values, and tables where names or queries of tables stand."""
        found: list[Any] = []
        for arg in node.args:
            value = arg.value if isinstance(arg, Named) else arg
            found.append(self.world.relation(value, self.names) if self._tabular(value) else self.bind(value))
        return found

    def _tabular(self, node: Node) -> bool:
        if isinstance(node, Pipe | Step | Datatable):
            return True
        if isinstance(node, Name) and node.name not in self.places:
            found = self.names.get(node.name)
            return self.world.is_tabular(found) if found is not None else self.world.table_exists(node.name)
        return False

    def _scalar(self, fn: Scalar, node: Call) -> Typed:
        args = list(node.args)
        if args and isinstance(args[-1], TypeOf):
            kind = NAMES[args.pop().kinds[0]]  # type: ignore[attr-defined]
            return convert(applied(self, fn, node, args), kind)
        return applied(self, fn, node, args)

    def _window(self, node: Call) -> Typed:
        few, many = WINDOWS[node.name]
        if not few <= len(node.args) <= many:
            raise wrong(f"{node.name}() takes {few} to {many} arguments", node.at)
        args = tuple(self.bind(arg) for arg in node.args)
        if node.name in {"prev", "next"}:
            for arg, value in zip(node.args[1:], args[1:], strict=True):
                const_of(value, arg.at, f"this argument of {node.name}()")
        if node.name.startswith("row_") and node.name not in {"row_cumsum", "row_window_session"}:
            kind = Kind.LONG
        else:
            kind = args[0].kind
            if node.name == "row_cumsum" and kind is Kind.INT:
                kind = Kind.LONG
        return Window(kind, node.name, args)

"""Runs a query: statements in order, names of `let`, sources, and one operator after the other (`steps/`).

A table is bound before any of its rows is read, so what is wrong with a query is said first. `toscalar`, the lists of
`in` and plugins whose columns depend on rows are run where they stand.

Must not know: what a store is, beyond a function that gives its tables.
"""

from __future__ import annotations

import fnmatch
import time
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from fairlead.base.suggest import did_you_mean
from fairlead.logs.kql import registry
from fairlead.logs.kql.binding import HIDDEN_TABLE, Binder
from fairlead.logs.kql.kinds import NAMES, Column, Kind
from fairlead.logs.kql.names import Namer
from fairlead.logs.kql.parser import parse
from fairlead.logs.kql.problems import Refused, Span, query_error, unknown, unsupported, wrong
from fairlead.logs.kql.relation import Limits, Meter, Relation, Row
from fairlead.logs.kql.times import EPOCH
from fairlead.logs.kql.tree import (
    Call,
    Datatable,
    Function,
    Let,
    Literal,
    Name,
    Named,
    Node,
    Parameter,
    Pipe,
    Query,
    Star,
    Step,
    Unary,
    mentions,
)
from fairlead.logs.kql.typed import Const, Typed, compiled, widen

Env = Mapping[str, Any]


class Tables(Protocol):
    """Where the tables of a query are: the store."""

    def names(self) -> list[str]:
        """Of all tables."""

    def table(self, name: str) -> Relation | None:
        """One of them; None where there is none."""


class NoTables:
    """No store: `print`, `range` and `datatable` need none."""

    def names(self) -> list[str]:
        return []

    def table(self, name: str) -> Relation | None:
        return None


@dataclass(frozen=True, slots=True)
class Closure:
    """A function of a `let`, and the names it sees."""

    function: Function
    names: Env

    @property
    def is_view(self) -> bool:
        """Whether a union calls its rows by its name."""
        return self.function.view


@dataclass(frozen=True, slots=True)
class Render:
    """How the answer is to be drawn."""

    kind: str
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """Columns and rows, and how to draw them."""

    columns: tuple[Column, ...]
    rows: list[Row]
    render: Render | None = None
    cut: bool = False
    """There were more rows than an answer may have."""
    sql: tuple[str, ...] = ()
    """What the store was asked."""


@dataclass(slots=True)
class Evaluator:
    """The world of one query."""

    tables: Tables
    limits: Limits = field(default_factory=Limits)
    parameters: Mapping[str, str] = field(default_factory=dict)
    now: int = field(default_factory=lambda: EPOCH + time.time_ns() // 100)
    render: Render | None = None
    meter: Meter = field(init=False)
    depth: int = 0

    def __post_init__(self) -> None:
        registry.load()
        self.meter = Meter(self.limits)

    # ---- statements ------------------------------------------------------------------------------------------------

    def run(self, query: Query) -> Relation:
        """The table that a query gives."""
        found = self.block(query, {})
        if isinstance(found, Relation):
            return found
        if isinstance(found, Typed):  # a bare expression is printed
            return self._print((found,), ("print_0",))
        raise wrong("this gives neither a table nor a value", query.at)

    def block(self, query: Query, names: Env) -> Any:
        """The value of the last statement; those before it give names."""
        inside: ChainMap[str, Any] = ChainMap({}, dict(names))
        result: Any = None
        for statement in query.statements:
            match statement:
                case Let(name=name, value=value):
                    inside[name] = self._let(name, value, inside)
                case Parameter():
                    inside[statement.name] = self._parameter(statement)
                case _:
                    result = self.value(statement, inside)
        return result

    def _let(self, name: str, value: Node, names: Env) -> Any:
        if isinstance(value, Function):
            return Closure(value, dict(names))
        return self.value(value, names)

    def _parameter(self, parameter: Parameter) -> Typed:
        """A value that came beside the query: never a part of its text."""
        from fairlead.logs.kql.lexer import literal

        kind = NAMES.get(parameter.kind)
        if kind is None:
            raise unsupported("a parameter of a query is a value", parameter.at)
        if parameter.name in self.parameters:
            text = self.parameters[parameter.name]
            if kind is Kind.STRING:
                return Const(kind, text)
            if kind is Kind.DYNAMIC:
                from fairlead.logs.kql.functions.dynamics import parsed

                return Const(kind, parsed(text))
            value = literal(text, kind)
            if value is None:
                raise wrong(f"the parameter `{parameter.name}` is no {kind}: `{text}`", parameter.at)
            return Const(kind, value)
        if parameter.default is None:
            raise wrong(f"the parameter `{parameter.name}` has no value", parameter.at, f"--param {parameter.name}=...")
        return self.binder((), {}).bind(parameter.default)

    # ---- values and tables -----------------------------------------------------------------------------------------

    def value(self, node: Node, names: Env) -> Any:
        """What a node stands for: a table, a value, a function."""
        self.depth += 1
        if self.depth > 150:
            raise wrong("queries and functions are nested deeper than 150 levels", node.at)
        try:
            return self._value(node, names)
        finally:
            self.depth -= 1

    def _value(self, node: Node, names: Env) -> Any:
        match node:
            case Pipe(source=source, steps=steps):
                return self.piped(
                    self.value(source, names) if not _is_nothing(source) else None, steps, names, source.at
                )
            case Step(name="print", has=has):
                return self.printed(has["items"], names)
            case Step(name="range", has=has):
                return self.ranged(has, names)
            case Datatable():
                return self.datatable(node, names)
            case Name(name=name) if name in names:
                return names[name]
            case Name(name=name):
                found = self.tables.table(name)
                if found is None:
                    known = [*self.tables.names(), *(n for n, v in names.items() if isinstance(v, Relation))]
                    raise unknown(f"no table `{name}`", node.at, did_you_mean(name, known) if known else _NO_STORE)
                return found
            case Call(name="materialize" | "view", args=(inner,)):
                return self.materialized(self.value(inner, names), node.at)
            case Call(name="table", args=(inner, *_)):
                return self.value(Name(node.at, str(self.binder((), names).constant(inner, "the name"))), names)
            case Call(name="cluster" | "database" | "external_table" | "workspace" | "app" | "resource" as name):
                raise unsupported(
                    f"{name}() is not supported: there is one store", node.at, "the name of the table alone"
                )
            case Call(name=name, on=None) if name in names and isinstance(names[name], Closure):
                return self.called(names[name], node, self.binder((), names)._arguments(node))  # noqa: SLF001
            case Call(on=on) if on is not None:
                raise unsupported("other clusters and databases are not supported: there is one store", node.at)
            case Star():
                raise wrong("`*` stands here alone", node.at, "union *")
            case _:
                return self.binder((), names).bind(node)

    def binder(self, columns: tuple[Column, ...], names: Env, table: str = "", **more: Any) -> Binder:
        """For expressions over some columns."""
        return Binder(self, columns, names, table=table, **more)

    def piped(self, value: Any, steps: tuple[Step, ...], names: Env, at: Span) -> Relation:
        """A table, and every operator in turn."""
        from fairlead.logs.kql.steps import STEPS
        from fairlead.logs.kql.steps.rows import chosen

        if value is not None and not isinstance(value, Relation):
            if isinstance(value, Closure) and not value.function.parameters:
                value = self.block(value.function.body, value.names)
            if isinstance(value, Typed) or not isinstance(value, Relation):
                raise wrong("a table is needed before `|`", at)
        current: Any = value
        for place, step in enumerate(steps):
            if step.name == "union" and mentions(steps[place + 1 :], "$table") and not step.has.get("withsource"):
                step = Step(step.at, step.name, {**step.has, "withsource": HIDDEN_TABLE})  # noqa: PLW2901
            try:
                current = STEPS[step.name](self, current, step, names)
            except Refused as refused:
                if refused.at is None:
                    refused.at = step.at
                raise
            if step.name == "as":
                assert isinstance(names, ChainMap | dict)
                names = ChainMap({step.has["name"]: self.materialized(current, step.at)}, dict(names))
                current = names[step.has["name"]]
        assert isinstance(current, Relation)
        shown = [i for i, column in enumerate(current.columns) if column.name != HIDDEN_TABLE]
        return current if len(shown) == len(current.columns) else chosen(self, current, shown, steps[-1])

    def relation(self, node: Node, names: Env) -> Relation:
        """A node that must be a table."""
        found = self.value(node, names)
        if isinstance(found, Closure) and not found.function.parameters:
            found = self.block(found.function.body, found.names)
        if not isinstance(found, Relation):
            raise wrong("a table is needed here", node.at)
        return found

    def materialized(self, value: Any, at: Span) -> Relation:
        """A table whose rows are read once, however often they are asked for."""
        if not isinstance(value, Relation):
            raise wrong("a table is needed here", at)
        kept: list[list[Row]] = []

        def rows() -> Iterator[Row]:
            if not kept:
                kept.append(self.meter.hold(value.rows()))
            return iter(kept[0])

        return Relation(value.columns, rows, value.ordered, value.name)

    def called(self, function: Any, node: Call, args: list[Any]) -> Any:
        """What a function of a `let` gives for some arguments."""
        if not isinstance(function, Closure):
            raise wrong(f"`{node.name}` is no function", node.at)
        parameters = function.function.parameters
        inside: dict[str, Any] = {}
        said = {arg.names[0]: i for i, arg in enumerate(node.args) if isinstance(arg, Named)}
        for position, parameter in enumerate(parameters):
            place = said.get(parameter.name, position)
            if place >= len(args) or (isinstance(node.args[place], Named) and parameter.name not in said):
                if parameter.default is None:
                    raise wrong(f"{node.name}() lacks its argument `{parameter.name}`", node.at)
                inside[parameter.name] = self.binder((), function.names).bind(parameter.default)
                continue
            inside[parameter.name] = self._argument(parameter, args[place], node, place)
        if len(args) > len(parameters):
            raise wrong(f"{node.name}() takes {len(parameters)} arguments, and these are {len(args)}", node.at)
        return self.block(function.function.body, ChainMap(inside, dict(function.names)))

    def _argument(self, parameter: Parameter, value: Any, node: Call, place: int) -> Any:
        from fairlead.logs.kql.typed import accepts, fitted

        if parameter.tabular:
            table = value if isinstance(value, Relation) else None
            if table is None:
                raise wrong(f"`{parameter.name}` is a table", node.args[place].at)
            missing = [n for n, _ in parameter.columns or () if table.place(n) is None]
            if missing:
                raise wrong(f"the table for `{parameter.name}` lacks the column `{missing[0]}`", node.args[place].at)
            return table
        kind = NAMES[parameter.kind]
        if not isinstance(value, Typed):
            raise wrong(f"`{parameter.name}` is a {kind}", node.args[place].at)
        if kind is Kind.DYNAMIC:
            return value
        from fairlead.logs.kql.signs import widened
        from fairlead.logs.kql.typed import widest

        if kind is Kind.INT and value.kind is Kind.LONG:
            from fairlead.logs.kql.typed import convert

            return convert(value, kind)
        if widest((value.kind, kind)) == kind:
            return widened(value, kind)
        if not accepts(str(kind), value.kind):
            raise wrong(
                f"`{parameter.name}` is a {kind}, and this is {value.kind}", node.args[place].at, f"to{kind}(...)"
            )
        return fitted(str(kind), value)

    # ---- what expressions ask --------------------------------------------------------------------------------------

    def is_tabular(self, value: Any) -> bool:
        return isinstance(value, Relation)

    def table_exists(self, name: str) -> bool:
        return self.tables.table(name) is not None

    def scalar_of(self, node: Node, names: Env) -> Typed:
        found = self.value(node, names)
        if isinstance(found, Typed):
            return Const(found.kind, compiled(found)(()))
        if not isinstance(found, Relation):
            raise wrong("toscalar() takes a query", node.at)
        kind = found.columns[0].kind
        first = next(iter(found.rows()), None)
        return Const(kind, ("" if kind is Kind.STRING else None) if first is None else first[0])

    def list_of(self, node: Node, names: Env) -> tuple[list[Any], Kind] | None:
        tabular = isinstance(node, Pipe | Datatable | Step)
        if isinstance(node, Name):
            tabular = isinstance(names.get(node.name), Relation) or (
                node.name not in names and self.table_exists(node.name)
            )
        if isinstance(node, Call):
            tabular = node.name in {"materialize", "view"} or isinstance(names.get(node.name), Closure)
        if not tabular:
            return None
        found = self.value(node, names)
        if not isinstance(found, Relation):
            return None
        values = [row[0] for row in self.meter.watched(found.rows())]
        if found.columns[0].kind is Kind.DYNAMIC:
            values = [v for value in values for v in (value if isinstance(value, list) else [value])]
        return values, found.columns[0].kind

    # ---- sources ---------------------------------------------------------------------------------------------------

    def printed(self, items: list[Node], names: Env) -> Relation:
        binder = self.binder((), names)
        values: list[Typed] = []
        wanted: list[str] = []
        for place, item in enumerate(items):
            value = item.value if isinstance(item, Named) else item
            values.append(binder.bind(value))
            wanted.append(item.names[0] if isinstance(item, Named) else f"print_{place}")
        return self._print(tuple(values), tuple(wanted))

    def _print(self, values: tuple[Typed, ...], wanted: tuple[str, ...]) -> Relation:
        namer = Namer()
        columns = [Column(namer.column(name), value.kind) for name, value in zip(wanted, values, strict=True)]
        fns = [compiled(value) for value in values]
        return Relation(tuple(columns), lambda: iter([tuple(fn(()) for fn in fns)]))

    def ranged(self, has: Mapping[str, Any], names: Env) -> Relation:
        binder = self.binder((), names)
        ends = [binder.bind(has[word]) for word in ("from", "to", "step")]
        kinds = [end.kind for end in ends]
        from fairlead.logs.kql.signs import widened
        from fairlead.logs.kql.typed import const_of, widest

        wide = widest(tuple(kinds))
        if wide:
            kind = Kind.LONG if wide is Kind.INT else wide
            ends = [widened(end, kind) for end in ends]
        elif kinds[0] is kinds[1] and kinds[2] is Kind.TIMESPAN and kinds[0] in {Kind.DATETIME, Kind.TIMESPAN}:
            kind = kinds[0]
        else:
            raise wrong(f"range does not take {kinds[0]}, {kinds[1]} and {kinds[2]}", has["from"].at)
        start, stop, step = (const_of(end, has["from"].at, "the bounds of a range") for end in ends)
        if step is not None and not step:
            raise wrong("the step of a range is not zero", has["step"].at)

        def rows() -> Iterator[Row]:
            if start is None or stop is None or step is None:
                return
            place = 0
            while True:
                value = start + place * step
                if value > stop if step > 0 else value < stop:
                    return
                yield (value,)
                place += 1

        return Relation((Column(has["name"], kind),), rows, True)

    def datatable(self, node: Datatable, names: Env) -> Relation:
        columns = tuple(Column(name, NAMES[kind]) for name, kind in node.columns)
        namer = Namer()
        if len({namer.column(c.name) for c in columns} & {c.name for c in columns}) < len(columns):
            raise wrong("two columns of this datatable have one name", node.at)
        binder = self.binder((), names)
        cells = [self._cell(value, columns[i % len(columns)], binder) for i, value in enumerate(node.values)]
        width = len(columns)
        table = [tuple(cells[i : i + width]) for i in range(0, len(cells), width)]
        return Relation(columns, lambda: iter(table))

    def _cell(self, node: Node, column: Column, binder: Binder) -> Any:
        value = binder.bind(node)
        plain = (
            isinstance(node, Literal | Name)
            or (isinstance(node, Unary) and isinstance(node.of, Literal))
            or isinstance(node, Call)
        )
        if not isinstance(value, Const) or not plain:
            raise wrong("a datatable holds constants", node.at)
        from fairlead.logs.kql.typed import convert

        if value.value is None:
            return "" if column.kind is Kind.STRING else None
        if column.kind in {Kind.DYNAMIC, Kind.REAL, Kind.DECIMAL} and value.kind is not Kind.STRING:
            made = widen(value.value, value.kind, column.kind) if column.kind is Kind.DYNAMIC else None
            if made is not None:
                return made
        if column.kind is Kind.DYNAMIC:
            from fairlead.logs.kql.functions.dynamics import parsed

            return parsed(value.value) if value.kind is Kind.STRING else value.value
        if value.kind is column.kind:
            return value.value
        made_kind = convert(value, column.kind)
        assert isinstance(made_kind, Const)
        return made_kind.value

    def matching(self, pattern: str, names: Env) -> list[Relation]:
        """The tables of the store that a pattern names."""
        return [
            found
            for name in sorted(self.tables.names())
            if fnmatch.fnmatchcase(name, pattern) and (found := self.tables.table(name)) is not None
        ]


_NO_STORE = "print, range and datatable need no store; --store says where one is"


def _is_nothing(node: Node) -> bool:
    return isinstance(node, Name) and not node.name


def answer(
    text: str,
    tables: Tables | None = None,
    *,
    limits: Limits | None = None,
    now: int | None = None,
    parameters: Mapping[str, str] | None = None,
    name: str = "query",
    told: Callable[[int], None] | None = None,
) -> Answer:
    """The answer to a query. Raises QueryError, with the place of what is wrong."""
    found = Evaluator(tables or NoTables(), limits or Limits(), parameters or {})
    if now is not None:
        found.now = now
    try:
        relation = found.run(parse(text))
        rows: list[Row] = []
        cut = False
        for row in found.meter.watched(relation.rows()):
            if len(rows) == found.limits.answer_rows:
                cut = True
                break
            rows.append(row)
            if told and not len(rows) % 10_000:
                told(len(rows))
        return Answer(relation.columns, rows, found.render, cut)
    except Refused as refused:
        raise query_error(refused, text, name) from None
    except RecursionError:
        raise query_error(Refused("kql/limit", "this query is nested too deeply", None), text, name) from None

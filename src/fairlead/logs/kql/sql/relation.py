"""A table of the store, and what was said about it in SQL so far: one SELECT, and around it the next where one must
nest.

Must not know: which engine it is, beyond something that takes SQL and gives rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from fairlead.logs.kql.kinds import Column, Kind
from fairlead.logs.kql.relation import Relation, Row
from fairlead.logs.kql.sql import words
from fairlead.logs.kql.sql.functions import expression
from fairlead.logs.kql.sql.text import column_sql, from_engine, kind_of_type, named, quoted, row_sql
from fairlead.logs.kql.typed import Col, Typed

_COLUMNS = {"project", "project-away", "project-keep", "project-rename", "project-reorder", "extend"}
_ROWS = {"where", "search", "sort", "take", "top", "count", "distinct", "summarize", "union"}
PUSHED = frozenset(_COLUMNS | _ROWS)
"""Operators that may run in the engine."""


class Engine(Protocol):
    """Whatever answers SQL of ClickHouse: embedded, or a server."""

    def rows(self, sql: str) -> Iterator[list[Any]]:
        """The rows of a SELECT, each a list as JSON gives it (JSONCompactEachRow, whole numbers unquoted)."""

    def tables(self) -> Iterable[str]:
        """The tables that a query may read."""

    def columns(self, table: str) -> list[tuple[str, str]]:
        """Names and types of ClickHouse."""


@dataclass(frozen=True, slots=True)
class Select:
    """SELECT ... FROM source WHERE tests ORDER BY order LIMIT limit, of which expressions are columns."""

    engine: Engine
    source: str
    columns: tuple[tuple[Column, str], ...]
    tests: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    limit: int | None = None
    name: str = ""
    asked: list[str] = field(default_factory=list)
    """The SQL that was sent."""
    level: int = 0
    """How deep it nests. Each level has names of its own, as an alias hides a column of its name even in WHERE."""

    def alias(self, place: int) -> str:
        """The name under which a column leaves this level."""
        return named(f"c{self.level}_{place}")

    def sql(self, *, leaving: bool) -> str:
        """The SELECT; `leaving` the engine, values are in the form in which they do."""
        shown = [
            f"{row_sql(sql, column.kind) if leaving else sql} AS {self.alias(place)}"
            for place, (column, sql) in enumerate(self.columns)
        ]
        text = f"SELECT {', '.join(shown) or '1'} FROM {self.source}"  # noqa: S608 - all of it was made by text.py
        if self.tests:
            text += " WHERE " + " AND ".join(f"({test})" for test in self.tests)
        if self.order:
            text += " ORDER BY " + ", ".join(self.order)
        return text + (f" LIMIT {self.limit}" if self.limit is not None else "")

    def nested(self) -> Select:
        """The same as a source of its own."""
        columns = tuple((column, self.alias(place)) for place, (column, _) in enumerate(self.columns))
        text = f"({self.sql(leaving=False)})"
        return Select(self.engine, text, columns, name=self.name, asked=self.asked, level=self.level + 1)

    def relation(self, table: Relation, *, ordered: bool | None = None) -> Relation:
        """As a table of the evaluator."""
        columns = tuple(column for column, _ in self.columns)
        return Relation(columns, self.rows, table.ordered if ordered is None else ordered, table.name, self)

    def rows(self) -> Iterator[Row]:
        """The rows."""
        sql = self.sql(leaving=True)
        self.asked.append(sql)
        kinds = [column.kind for column, _ in self.columns]
        for row in self.engine.rows(sql):
            yield tuple([from_engine(value, kind) for value, kind in zip(row, kinds, strict=True)])

    # ---- operators: each gives the next SELECT, or None where it has no exact form -----------------------------------

    def _exprs(self) -> list[str]:
        return [sql for _, sql in self.columns]

    def where(self, test: Typed) -> Select | None:
        base = self.nested() if self.limit is not None else self
        sql = expression(test, base._exprs())  # noqa: SLF001
        return None if sql is None else replace(base, tests=(*base.tests, sql))

    def project(self, made: Sequence[tuple[Column, Typed]]) -> Select | None:
        found = [expression(value, self._exprs()) for _, value in made]
        if any(sql is None for sql in found):
            return None
        return replace(self, columns=tuple((column, str(sql)) for (column, _), sql in zip(made, found, strict=True)))

    def sort(self, keys: Sequence[tuple[Typed, bool, bool]]) -> Select | None:
        base = self.nested() if self.limit is not None else self
        order = []
        for value, ascending, nulls_first in keys:
            sql = expression(value, base._exprs())  # noqa: SLF001
            if sql is None or value.kind in {Kind.DYNAMIC, Kind.REAL}:  # NaN stands elsewhere there
                return None
            order.append(f"{sql} {'ASC' if ascending else 'DESC'} NULLS {'FIRST' if nulls_first else 'LAST'}")
        return replace(base, order=tuple(order))

    def take(self, num: int) -> Select | None:
        return replace(self, limit=num if self.limit is None else min(num, self.limit))

    def count(self, column: Column) -> Select | None:
        base = self.nested() if self.limit is not None else self
        return replace(base, columns=((column, "toInt64(count())"),), order=()).nested()

    def summarize(self, plan: Any) -> Select | None:
        """Groups and aggregates, where all of them can be said."""
        base = self.nested() if self.limit is not None else self
        exprs = base._exprs()  # noqa: SLF001
        keys = [expression(value, exprs) for _, value in plan.keys]
        if any(sql is None for sql in keys) or any(column.kind is Kind.DYNAMIC for column, _ in plan.keys):
            return None
        inner: list[tuple[Column, str]] = [(column, str(sql)) for (column, _), sql in zip(plan.keys, keys, strict=True)]
        for place, (found, args, constants) in enumerate(plan.gathered.found):
            made = _aggregate(found.name, args, constants, exprs)
            if made is None:
                return None
            inner.append((Column(f"a{place}", made[1]), made[0]))
        shown = [f"{sql} AS {base.alias(place)}" for place, (_, sql) in enumerate(inner)]
        text = f"SELECT {', '.join(shown) or '1'} FROM {base.source}"  # noqa: S608 - all of it was made by text.py
        if base.tests:
            text += " WHERE " + " AND ".join(f"({test})" for test in base.tests)
        if keys:
            text += " GROUP BY " + ", ".join(base.alias(place) for place in range(len(keys)))
        outer = [base.alias(place) for place in range(len(inner))]
        columns = [(column, outer[place]) for place, (column, _) in enumerate(plan.keys)]
        for column, value in plan.out:
            sql = expression(value, outer) if isinstance(value, Col) or type(value).__name__ == "Apply" else None
            if sql is None:
                return None
            columns.append((column, sql))
        return Select(self.engine, f"({text})", tuple(columns), asked=self.asked, level=base.level + 1)

    def union(
        self, legs: Sequence[Relation], columns: Sequence[Column], maps: Sequence[Sequence[int | None]], source: str
    ) -> Select | None:
        """UNION ALL of what the legs are; missing columns are empty."""
        parts: list[str] = []
        bases: list[tuple[Select, list[str]]] = []
        for leg, places in zip(legs, maps, strict=True):
            select: Select = leg.pushed
            if select.engine is not self.engine:
                return None
            base = select.nested() if select.limit is not None else replace(select, order=())
            shown = [quoted(leg.name)] if source else []
            for place, column in zip(places, columns, strict=True):
                if place is None and column.kind in {Kind.DYNAMIC, Kind.DECIMAL}:
                    return None
                shown.append(base.columns[place][1] if place is not None else _EMPTY[column.kind])
            bases.append((base, shown))
        level = max(base.level for base, _ in bases)
        for base, shown in bases:
            made: list[tuple[Column, str]] = [(Column("", Kind.LONG), sql) for sql in shown]
            parts.append(replace(base, columns=tuple(made), level=level).sql(leaving=False))
        every = ([Column(source, Kind.STRING)] if source else []) + list(columns)
        names = tuple((column, named(f"c{level}_{place}")) for place, column in enumerate(every))
        return Select(self.engine, "(" + " UNION ALL ".join(parts) + ")", names, asked=self.asked, level=level + 1)


_EMPTY = {
    Kind.STRING: "''", Kind.BOOL: "CAST(NULL AS Nullable(Bool))", Kind.INT: "CAST(NULL AS Nullable(Int64))",
    Kind.LONG: "CAST(NULL AS Nullable(Int64))", Kind.REAL: "CAST(NULL AS Nullable(Float64))",
    Kind.TIMESPAN: "CAST(NULL AS Nullable(Int64))", Kind.DATETIME: "CAST(NULL AS Nullable(DateTime64(9, 'UTC')))",
    Kind.GUID: "CAST(NULL AS Nullable(UUID))",
}  # fmt: skip


def _aggregate(
    name: str, args: Sequence[Typed], constants: Sequence[Any], columns: Sequence[str]
) -> tuple[str, Kind] | None:
    """An aggregate in SQL, and what it gives."""
    made = [expression(arg, columns) for arg in args]
    if any(sql is None for sql in made) or any(arg.kind is Kind.DYNAMIC for arg in args):
        return None
    sql = [str(m) for m in made]
    kind = args[0].kind if args else Kind.LONG
    real = kind is Kind.REAL
    match name:
        case "count":
            return "toInt64(count())", Kind.LONG
        case "countif":
            return f"toInt64(countIf(ifNull({sql[0]}, 0)))", Kind.LONG
        case "dcount" | "count_distinct":
            return f"toInt64(uniqExact({sql[0]}))", Kind.LONG
        case "sum" if kind in {Kind.INT, Kind.LONG}:
            return f"ifNull(sum(toInt64({sql[0]})), 0)", Kind.LONG
        case "avg" if kind in {Kind.INT, Kind.LONG}:
            return f"ifNull(avg(toInt64({sql[0]})), nan)", Kind.REAL
        case "min" | "max" if not real and kind not in {Kind.BOOL, Kind.DECIMAL}:
            whole = f"{name}OrNull({sql[0]})"
            return (f"ifNull({whole}, '')" if kind is Kind.STRING else whole), kind
        case _:
            return None


class StoreTables:
    """The tables of a store, for the evaluator."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.asked: list[str] = []
        self._names = list(engine.tables())
        self._found: dict[str, Relation] = {}
        self._has_words = bool(next(iter(engine.rows(words.THERE)))[0])

    def names(self) -> list[str]:
        return self._names

    def table(self, name: str) -> Relation | None:
        if name not in self._names:
            return None
        if name not in self._found:
            columns = []
            for column, type_name in self.engine.columns(name):
                kind = kind_of_type(type_name)
                if kind is not None:
                    sql = column_sql(column, type_name)
                    searched = self._has_words and column == words.COLUMN
                    columns.append((Column(column, kind), words.Searched(sql) if searched else sql))
            select = Select(self.engine, named(name), tuple(columns), name=name, asked=self.asked)
            shown = tuple(column for column, _ in columns)
            self._found[name] = Relation(shown, select.rows, False, name, select)
        return self._found[name]


class Embedded:
    """The engine inside of this process."""

    def __init__(self, session: Any) -> None:
        self.session = session

    def rows(self, sql: str) -> Iterator[list[Any]]:
        found = self.session.query(f"{sql} {_SETTINGS}", "JSONCompactEachRow")
        for line in found.bytes().split(b"\n"):
            if line:
                yield json.loads(line.decode("utf-8", "replace"))

    def tables(self) -> Iterable[str]:
        return [row[0] for row in self.rows("SELECT name FROM system.tables WHERE database = currentDatabase()")]

    def columns(self, table: str) -> list[tuple[str, str]]:
        sql = "SELECT name, type FROM system.columns WHERE database = currentDatabase() AND table = " + quoted(table)  # noqa: S608
        return [(row[0], row[1]) for row in self.rows(f"{sql} ORDER BY position")]


_SETTINGS = "SETTINGS output_format_json_quote_64bit_integers = 0, output_format_json_quote_denormals = 1"

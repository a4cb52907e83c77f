"""Operators that make rows of what stands inside of values: mv-expand, mv-apply."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any

from fairlead.logs.kql.kinds import NAMES, Column, Kind
from fairlead.logs.kql.names import own_name
from fairlead.logs.kql.problems import wrong
from fairlead.logs.kql.relation import Relation, Row
from fairlead.logs.kql.tree import Named, Step
from fairlead.logs.kql.typed import Col, Typed, compiled, convert

Env = Mapping[str, Any]


class Expansion:
    """What is expanded into which columns."""

    def __init__(self, ev: Any, table: Relation, step: Step, names: Env) -> None:
        binder = ev.binder(table.columns, names)
        self.columns = list(table.columns)
        self.index = step.has.get("with_itemindex", "")
        self.limit = step.has["limit"]
        self.arrays = step.has.get("bagexpansion", step.has.get("kind", "bag")) == "array"
        self.parts: list[tuple[Any, int, Any]] = []
        for item, kind_name in step.has["items"]:
            value = item.value if isinstance(item, Named) else item
            typed = binder.bind(value)
            if typed.kind is not Kind.DYNAMIC:
                raise wrong(f"what is expanded is dynamic, and this is {typed.kind}", item.at, "parse_json(...)")
            kind = NAMES[kind_name] if kind_name else Kind.DYNAMIC
            name = item.names[0] if isinstance(item, Named) else own_name(value)
            place = table.place(name)
            if place is None:
                place = len(self.columns)
                self.columns.append(Column(name or "Column1", kind))
            else:
                self.columns[place] = Column(name, kind)
            cast = None if kind is Kind.DYNAMIC else compiled(convert(_Item, kind))
            self.parts.append((compiled(typed), place, cast))
        self.at = None
        if self.index:
            self.at = table.place(self.index)
            if self.at is None:
                self.at = len(self.columns)
                self.columns.append(Column(self.index, Kind.LONG))
        self.width = len(self.columns)

    def of(self, row: Row) -> Iterator[Row]:
        """The rows that a row becomes."""
        lists = [self._items(fn(row)) for fn, _, _ in self.parts]
        num = max(len(items) for items in lists)
        base = [*row, *([None] * (self.width - len(row)))]
        for place in range(num if self.limit is None else min(num, self.limit)):
            made = list(base)
            for items, (_, column, cast) in zip(lists, self.parts, strict=True):
                value = items[place] if place < len(items) else None
                made[column] = cast((value,)) if cast else value
            if self.at is not None:
                made[self.at] = place
            yield tuple(made)

    def _items(self, value: Any) -> list[Any]:
        if isinstance(value, list):
            return value
        if isinstance(value, dict):
            return (
                [[key, inner] for key, inner in value.items()]
                if self.arrays
                else [{key: inner} for key, inner in value.items()]
            )
        return [value]


_Item: Typed = Col(Kind.DYNAMIC, 0, "item")


def mv_expand(ev: Any, table: Relation, step: Step, names: Env) -> Relation:
    """An empty array leaves no row."""
    expansion = Expansion(ev, table, step, names)

    def rows() -> Iterator[Row]:
        for row in table.rows():
            yield from expansion.of(row)

    return table.with_rows(expansion.columns, rows)


def mv_apply(ev: Any, table: Relation, step: Step, names: Env) -> Relation:
    """A sub-query over the items of every row; its columns stand behind the row's own that were not expanded."""
    expansion = Expansion(ev, table, step, names)
    body = step.has["body"].steps
    width = len(table.columns)
    inner = tuple(expansion.columns)
    shape = ev.piped(Relation(inner, lambda: iter(()), True), body, names, step.at).columns
    fresh = {c.name for c in shape}
    keep = [i for i in range(width) if table.columns[i].name not in fresh]
    columns = [table.columns[i] for i in keep] + list(shape)

    def rows() -> Iterator[Row]:
        for row in table.rows():
            made = list(islice(expansion.of(row), 1_000_000))
            found = ev.piped(Relation(inner, partial(iter, made), True), body, names, step.at)
            head = tuple(row[i] for i in keep)
            for inside in found.rows():
                yield head + inside

    return table.with_rows(columns, rows)

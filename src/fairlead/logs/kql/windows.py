"""Functions of neighbouring rows: computed for all rows of a table in order, before the expressions that use them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from fairlead.logs.kql.kinds import Column, Kind, wrap_long
from fairlead.logs.kql.problems import Span, wrong
from fairlead.logs.kql.relation import Relation, Row
from fairlead.logs.kql.typed import Apply, Col, Const, Contains, Typed, Window, compiled


def settle(ev: Any, table: Relation, exprs: tuple[Typed, ...], at: Span) -> tuple[Relation, tuple[Typed, ...], int]:
    """The table with a column more for each window function in these expressions, and expressions that read those.

    Also returns how many columns the table had.
    """
    num = len(table.columns)
    found: list[Window] = []
    made = tuple(replaced(expr, found, num) for expr in exprs)
    if not found:
        return table, exprs, num
    if not table.ordered:
        raise wrong(f"{found[0].name}() needs rows in an order", at, "put `| serialize` or `| sort by ...` before it")
    columns = table.columns + tuple(Column(f"{w.name}_{i}", w.kind) for i, w in enumerate(found))

    def rows() -> Iterator[Row]:
        held = ev.meter.hold(table.rows())
        for window in found:
            values = values_of(window, held)
            held = [(*row, value) for row, value in zip(held, values, strict=True)]
        return iter(held)

    return replace(table, columns=columns, rows=rows, pushed=None), made, num


def replaced(expr: Typed, found: list[Window], num: int) -> Typed:
    match expr:
        case Window(kind=kind, name=name, args=args):
            inner = Window(kind, name, tuple(replaced(arg, found, num) for arg in args))
            found.append(inner)
            return Col(kind, num + len(found) - 1, name)
        case Apply(kind=kind, fn=fn, args=args):
            made = tuple(replaced(arg, found, num) for arg in args)
            return expr if made == args else Apply(kind, fn, made)
        case Contains(value=value):
            return replace(expr, value=replaced(value, found, num))
        case _:
            return expr


def values_of(window: Window, rows: list[Row]) -> list[Any]:
    fns = [compiled(arg) for arg in window.args]
    match window.name:
        case "prev" | "next":
            return _neighbours(window, rows)
        case "row_number":
            return _numbers(window, rows)
        case "row_cumsum":
            total: Any = None
            out: list[Any] = []
            for row in rows:
                value = fns[0](row)
                again = len(fns) > 1 and fns[1](row)
                total = value if total is None or again else total if value is None else total + value
                out.append(wrap_long(total) if isinstance(total, int) else total)
            return out
        case "row_rank_dense" | "row_rank_min":
            return _ranks(window, rows)
        case _:
            return _sessions(window, rows)


def _neighbours(window: Window, rows: list[Row]) -> list[Any]:
    fn = compiled(window.args[0])
    values = [fn(row) for row in rows]
    shift = window.args[1].value if len(window.args) > 1 and isinstance(window.args[1], Const) else 1
    default = compiled(window.args[2]) if len(window.args) > 2 else None
    empty = "" if window.kind is Kind.STRING else None
    step = -shift if window.name == "prev" else shift
    return [
        values[i + step] if 0 <= i + step < len(values) else default(row) if default else empty
        for i, row in enumerate(rows)
    ]


def _numbers(window: Window, rows: list[Row]) -> list[Any]:
    start = window.args[0].value if window.args and isinstance(window.args[0], Const) else 1
    again = compiled(window.args[1]) if len(window.args) > 1 else None
    out, now = [], start - 1
    for row in rows:
        now = start if again and again(row) else now + 1
        out.append(now)
    return out


def _ranks(window: Window, rows: list[Row]) -> list[Any]:
    fn = compiled(window.args[0])
    again = compiled(window.args[1]) if len(window.args) > 1 else None
    dense = window.name == "row_rank_dense"
    out: list[int] = []
    last: Any = object()
    rank = seen = 0
    for row in rows:
        value = fn(row)
        if again and again(row):
            rank, seen, last = 0, 0, object()
        seen += 1
        if value != last:
            rank = rank + 1 if dense else seen
        last = value
        out.append(rank)
    return out


def _sessions(window: Window, rows: list[Row]) -> list[Any]:
    fn, most, gap = (compiled(arg) for arg in window.args[:3])
    again = compiled(window.args[3]) if len(window.args) > 3 else None
    out: list[Any] = []
    start = last = None
    for row in rows:
        value = fn(row)
        fresh = start is None or last is None or value - start > most(row) or value - last > gap(row)
        if fresh or (again and again(row)):
            start = value
        last = value
        out.append(start)
    return out

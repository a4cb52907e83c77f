"""Operators that look at one row at a time, and those that order or choose rows."""

from __future__ import annotations

import fnmatch
import math
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, cast

from fairlead.logs.kql.binding import Binder
from fairlead.logs.kql.kinds import CLR, Column, Kind
from fairlead.logs.kql.names import Namer, own_name
from fairlead.logs.kql.problems import unknown, wrong
from fairlead.logs.kql.relation import Relation, Row
from fairlead.logs.kql.texts import json_text
from fairlead.logs.kql.tree import Call, Name, Named, Node, Order, Star, Step
from fairlead.logs.kql.typed import Col, Const, Fn, Typed, compiled
from fairlead.logs.kql.windows import settle

Env = Mapping[str, Any]


def where(ev: Any, table: Relation, step: Step, names: Env) -> Relation:
    binder = ev.binder(table.columns, names, table.name)
    test = binder.test(step.has["test"])
    if table.pushed and (pushed := table.pushed.where(test)):
        return cast("Relation", pushed.relation(table))
    table, (test,), dropped = settle(ev, table, (test,), step.at)
    fn = compiled(test)
    return table.with_rows(
        table.columns[:dropped],
        lambda: (
            (row[:dropped] for row in table.rows() if fn(row))
            if dropped < len(table.columns)
            else (row for row in table.rows() if fn(row))
        ),
    )


def items_of(binder: Binder, items: Sequence[Node], step: Step) -> list[tuple[tuple[str, ...], Typed, str]]:
    """Names wanted, value, and the name of its own, of every `name = value`."""
    found: list[tuple[tuple[str, ...], Typed, str]] = []
    for item in items:
        value = item.value if isinstance(item, Named) else item
        wanted = item.names if isinstance(item, Named) else ()
        several = _several(binder, value)
        if several:
            for place, (name, typed) in enumerate(several[: len(wanted)] if wanted else several):
                own = wanted[place] if wanted else name
                found.append(((own,), typed, own))
            continue
        if len(wanted) > 1:
            raise wrong("this gives one value, and several names wait for it", item.at)
        found.append((wanted, binder.bind(value), own_name(value)))
    return found


def _several(binder: Binder, value: Node) -> list[tuple[str, Typed]]:
    """The columns of a call that gives more than one: series_fit_line and its like."""
    if not isinstance(value, Call):
        return []
    from fairlead.logs.kql.functions.multiple import columns_of

    return columns_of(binder, value)


def project(ev: Any, table: Relation, step: Step, names: Env) -> Relation:
    binder = ev.binder(table.columns, names, table.name)
    namer = Namer()
    made: list[tuple[Column, Typed]] = []
    for item in step.has["items"]:
        if isinstance(item, Star):
            chosen = [c for c in table.columns if fnmatch.fnmatchcase(c.name, item.pattern)]
            for column in chosen:
                place = table.place(column.name)
                assert place is not None
                made.append((Column(namer.column(column.name), column.kind), Col(column.kind, place, column.name)))
            continue
        for wanted, value, own in items_of(binder, [item], step):
            name = wanted[0] if wanted else own
            if name and name in namer.taken and wanted:
                raise wrong(f"two columns would be called `{name}`", item.at)
            made.append((Column(namer.column(name), value.kind), value))
    return _projected(ev, table, made, step)


def _projected(ev: Any, table: Relation, made: list[tuple[Column, Typed]], step: Step) -> Relation:
    if table.pushed and (pushed := table.pushed.project(made)):
        return cast("Relation", pushed.relation(table))
    table, values, _ = settle(ev, table, tuple(value for _, value in made), step.at)
    fns = [compiled(value) for value in values]
    columns = tuple(column for column, _ in made)
    if len(fns) == 1:
        only = fns[0]
        return table.with_rows(columns, lambda: ((only(row),) for row in table.rows()))
    return table.with_rows(columns, lambda: (tuple([fn(row) for fn in fns]) for row in table.rows()))


def extend(ev: Any, table: Relation, step: Step, names: Env) -> Relation:
    binder = ev.binder(table.columns, names, table.name)
    made: list[tuple[Column, Typed]] = [
        (column, Col(column.kind, place, column.name)) for place, column in enumerate(table.columns)
    ]
    namer = Namer([column.name for column in table.columns])
    for item in step.has["items"]:
        for wanted, value, own in items_of(binder, [item], step):
            name = wanted[0] if wanted else own
            place = table.place(name) if name else None
            if place is not None:
                made[place] = (Column(name, value.kind), value)
            else:
                made.append((Column(namer.column(name), value.kind), value))
    return _projected(ev, table, made, step)


def serialize(ev: Any, table: Relation, step: Step, names: Env) -> Relation:
    ordered = Relation(table.columns, table.rows, True, table.name)
    return extend(ev, ordered, step, names) if step.has["items"] else ordered


def _matched(table: Relation, items: Sequence[Node]) -> list[int]:
    """Places of the columns that names and patterns choose, in the order of the items."""
    found: list[int] = []
    for item in items:
        pattern = item.pattern if isinstance(item, Star) else None
        if isinstance(item, Name):
            place = table.place(item.name)
            if place is None:
                from fairlead.base.suggest import did_you_mean

                raise unknown(
                    f"no column `{item.name}`", item.at, did_you_mean(item.name, [c.name for c in table.columns])
                )
            if place not in found:
                found.append(place)
            continue
        assert pattern is not None
        found += [i for i, c in enumerate(table.columns) if fnmatch.fnmatchcase(c.name, pattern) and i not in found]
    return found


def chosen(ev: Any, table: Relation, places: Sequence[int], step: Step) -> Relation:
    """Some of the columns, in this order."""
    made: list[tuple[Column, Typed]] = [
        (table.columns[p], Col(table.columns[p].kind, p, table.columns[p].name)) for p in places
    ]
    return _projected(ev, table, made, step)


def project_away(ev: Any, table: Relation, step: Step, names: Env) -> Relation:
    away = set(_matched(table, step.has["items"]))
    return chosen(ev, table, [i for i in range(len(table.columns)) if i not in away], step)


def project_keep(ev: Any, table: Relation, step: Step, names: Env) -> Relation:
    return chosen(ev, table, sorted(_matched(table, step.has["items"])), step)


def project_rename(ev: Any, table: Relation, step: Step, names: Env) -> Relation:
    columns = list(table.columns)
    for item in step.has["items"]:
        if not isinstance(item, Named) or not isinstance(item.value, Name):
            raise wrong("project-rename takes `new = old`", item.at)
        (place,) = _matched(table, [item.value])
        columns[place] = Column(item.names[0], columns[place].kind)
    if len({column.name for column in columns}) < len(columns):
        raise wrong("two columns would have one name", step.at)
    made: list[tuple[Column, Typed]] = [(c, Col(c.kind, i, table.columns[i].name)) for i, c in enumerate(columns)]
    return _projected(ev, table, made, step)


def project_reorder(ev: Any, table: Relation, step: Step, names: Env) -> Relation:
    order: list[int] = []
    for item, direction in step.has["items"]:
        found = [place for place in _matched(table, [item]) if place not in order]
        if direction:
            key: Callable[[int], Any] = (
                (lambda i: _granny(table.columns[i].name))
                if "granny" in direction
                else (lambda i: table.columns[i].name)
            )
            found.sort(key=key, reverse=direction.endswith("desc"))
        order += found
    return chosen(ev, table, order + [i for i in range(len(table.columns)) if i not in order], step)


def _granny(name: str) -> list[Any]:
    """a1, a2, a10."""
    return [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in re.split(r"(\d+)", name) if part]


# ---- order ---------------------------------------------------------------------------------------------------------


def order_key(value: Any) -> Any:
    """Orders values of one kind; NaN comes before all numbers, what is dynamic by number, then by text."""
    if isinstance(value, float) and math.isnan(value):
        return -math.inf
    if isinstance(value, dict | list):
        return json_text(value)
    return value


def sorter(keys: Sequence[tuple[Fn, bool, bool, bool]]) -> Callable[[list[Row]], list[Row]]:
    """Sorts rows by (value, ascending, nulls first, dynamic), stable."""

    def run(rows: list[Row]) -> list[Row]:
        for fn, ascending, nulls_first, mixed in reversed(keys):
            nulls = [row for row in rows if fn(row) is None]
            known = [row for row in rows if fn(row) is not None] if nulls else rows
            if mixed:
                from fairlead.logs.kql.functions.dynamics import sort_key

                known = sorted(known, key=lambda row: sort_key(fn(row)), reverse=not ascending)
            else:
                known = sorted(known, key=lambda row: order_key(fn(row)), reverse=not ascending)
            rows = nulls + known if nulls_first else known + nulls
        return rows

    return run


def bound_keys(binder: Binder, keys: Sequence[Order]) -> list[tuple[Typed, bool, bool]]:
    """The keys of `sort by`, with kinds."""
    found = []
    for key in keys:
        value = binder.bind(key.value)
        if value.kind is Kind.DYNAMIC:
            raise wrong("rows are not sorted by dynamic values", key.value.at, "tostring(...), tolong(...)")
        found.append((value, key.ascending, key.nulls_first))
    return found


def _keys(bound: Sequence[tuple[Typed, bool, bool]]) -> list[tuple[Fn, bool, bool, bool]]:
    return [(compiled(value), up, first, value.kind is Kind.DYNAMIC) for value, up, first in bound]


def sort(ev: Any, table: Relation, step: Step, names: Env) -> Relation:
    bound = bound_keys(ev.binder(table.columns, names, table.name), step.has["keys"])
    if table.pushed and (pushed := table.pushed.sort(bound)):
        return cast("Relation", pushed.relation(table, ordered=True))
    run = sorter(_keys(bound))
    return table.with_rows(table.columns, lambda: iter(run(ev.meter.hold(table.rows()))), ordered=True)


def number(ev: Any, node: Node, names: Env, what: str) -> int:
    """A count of rows."""
    value = ev.binder((), names).bind(node)
    if not isinstance(value, Const) or not isinstance(value.value, int) or value.value < 0:
        raise wrong(f"{what} takes a number of rows", node.at)
    return int(value.value)


def take(ev: Any, table: Relation, step: Step, names: Env) -> Relation:
    num = number(ev, step.has["num"], names, "take")
    if table.pushed and (pushed := table.pushed.take(num)):
        return cast("Relation", pushed.relation(table, ordered=table.ordered))
    return table.with_rows(table.columns, lambda: islice(table.rows(), num))


def top(ev: Any, table: Relation, step: Step, names: Env) -> Relation:
    num = number(ev, step.has["num"], names, "top")
    bound = bound_keys(ev.binder(table.columns, names, table.name), step.has["keys"])
    if table.pushed and (pushed := table.pushed.sort(bound)) and (pushed := pushed.take(num)):
        return cast("Relation", pushed.relation(table, ordered=True))
    run = sorter(_keys(bound))

    def rows() -> Iterator[Row]:
        kept: list[Row] = []
        for row in ev.meter.watched(table.rows()):
            kept.append(row)
            if len(kept) >= 4 * num + 10_000:
                kept = run(kept)[:num]
        return iter(run(kept)[:num])

    return table.with_rows(table.columns, rows, ordered=True)


def sample(ev: Any, table: Relation, step: Step, names: Env) -> Relation:
    """By reservoir: every row with the same chance."""
    num = number(ev, step.has["num"], names, "sample")

    def rows() -> Iterator[Row]:
        kept: list[Row] = []
        for place, row in enumerate(ev.meter.watched(table.rows())):
            if place < num:
                kept.append(row)
            elif (at := random.randrange(place + 1)) < num:  # noqa: S311 - a sample is no secret
                kept[at] = row
        return iter(kept)

    return table.with_rows(table.columns, rows, ordered=False)


# ---- the rest ------------------------------------------------------------------------------------------------------


def getschema(ev: Any, table: Relation, step: Step, names: Env) -> Relation:
    columns = (
        Column("ColumnName", Kind.STRING), Column("ColumnOrdinal", Kind.LONG),
        Column("DataType", Kind.STRING), Column("ColumnType", Kind.STRING),
    )  # fmt: skip
    rows = [(c.name, i, CLR[c.kind], str(c.kind)) for i, c in enumerate(table.columns)]
    return Relation(columns, lambda: iter(rows))


def as_(ev: Any, table: Relation, step: Step, names: Env) -> Relation:
    return table.named(step.has["name"])


def consume(ev: Any, table: Relation, step: Step, names: Env) -> Relation:
    def rows() -> Iterator[Row]:
        for _ in table.rows():
            pass
        return iter(())

    return table.with_rows(table.columns, rows)


def render(ev: Any, table: Relation, step: Step, names: Env) -> Relation:
    from fairlead.logs.kql.charts import check_kind
    from fairlead.logs.kql.evaluate import Render

    check_kind(step.has["kind"], step.at)
    ev.render = Render(step.has["kind"], step.has["options"])
    return table


def invoke(ev: Any, table: Relation, step: Step, names: Env) -> Relation:
    call: Call = step.has["call"]
    function = names.get(call.name)
    if function is None:
        raise unknown(f"no function `{call.name}`", call.at, "let f = (T: (*)) { ... };")
    args = [table, *ev.binder((), names)._arguments(call)]  # noqa: SLF001
    shifted = Call(call.at, call.name, (Name(step.at, ""), *call.args))
    found = ev.called(function, shifted, args)
    if not isinstance(found, Relation):
        raise wrong(f"`{call.name}` gives no table", call.at)
    return found

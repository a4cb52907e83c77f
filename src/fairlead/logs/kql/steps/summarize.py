"""Operators that make one row of many."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

from fairlead.logs.kql.functions.aggregates import Percentiles
from fairlead.logs.kql.gathered import Gathered
from fairlead.logs.kql.kinds import Column, Kind
from fairlead.logs.kql.names import Namer, number_name, own_name
from fairlead.logs.kql.problems import wrong
from fairlead.logs.kql.registry import Aggregate
from fairlead.logs.kql.relation import Relation, Row
from fairlead.logs.kql.steps.rows import number, order_key
from fairlead.logs.kql.tree import Call, Named, Node, Star, Step
from fairlead.logs.kql.typed import Col, Typed, compiled, const_of, hashable

Env = Mapping[str, Any]


class Chosen:
    """The row where an expression is greatest or least: `arg_max(x, a, b)`. A null is chosen only where all are."""

    def __init__(self, kinds: tuple[Kind, ...], greatest: bool) -> None:
        self.best: tuple[Any, ...] | None = None
        self.kinds, self.greatest = kinds, greatest

    def add(self, *values: Any) -> None:
        value = values[0]
        if self.best is None or (value is not None and (self.best[0] is None or value != value or self._beats(value))):  # noqa: PLR0124 - NaN wins
            self.best = values

    def _beats(self, value: Any) -> bool:
        new, old = order_key(value), order_key(self.best[0] if self.best else None)
        kept = self.best[0] if self.best else None
        return kept == kept and bool(new > old if self.greatest else new < old)  # noqa: PLR0124 - nothing beats NaN

    def result(self) -> tuple[Any, ...]:
        return self.best or tuple("" if kind is Kind.STRING else None for kind in self.kinds)


class AnyRow:
    """The values of some row."""

    def __init__(self, kinds: tuple[Kind, ...]) -> None:
        self.row: tuple[Any, ...] | None = None
        self.kinds = kinds

    def add(self, *values: Any) -> None:
        if self.row is None:
            self.row = values

    def result(self) -> tuple[Any, ...]:
        return self.row or tuple("" if kind is Kind.STRING else None for kind in self.kinds)


_ROWWISE = {"arg_max", "arg_min", "argmax", "argmin", "take_any", "any"}
_PERCENTILES = {"percentiles", "percentilesw", "percentiles_array", "percentilesw_array", "percentilew"}


class Plan:
    """The items of a `summarize`: what is gathered, and the columns made of it."""

    def __init__(self, ev: Any, table: Relation, keys: list[Node], items: list[Node], names: Env) -> None:
        self.ev, self.table, self.names = ev, table, names
        self.binder = ev.binder(table.columns, names, table.name)
        self.namer = Namer()
        self.keys: list[tuple[Column, Typed]] = []
        for key in keys:
            self._key(key)
        self.gathered = Gathered(len(self.keys), self.binder)
        self.out: list[tuple[Column, Typed]] = []
        for item in items:
            self._item(item)

    def _key(self, key: Node) -> None:
        if isinstance(key, Star):
            for place, column in enumerate(self.table.columns):
                self.keys.append(
                    (Column(self.namer.column(column.name), column.kind), Col(column.kind, place, column.name))
                )
            return
        value = key.value if isinstance(key, Named) else key
        typed = self.binder.bind(value)
        name = key.names[0] if isinstance(key, Named) else own_name(value)
        self.keys.append((Column(self.namer.column(name), typed.kind), typed))

    def _item(self, item: Node) -> None:
        value = item.value if isinstance(item, Named) else item
        wanted = item.names if isinstance(item, Named) else ()
        if isinstance(value, Call) and value.name in _ROWWISE:
            self._rowwise(value, wanted)
            return
        if isinstance(value, Call) and value.name in _PERCENTILES:
            self._percentiles(value, wanted)
            return
        binder = self.ev.binder(_keyed(self.keys), self.names, self.table.name, gathered=self.gathered)
        typed = binder.bind(value)
        name = wanted[0] if wanted else own_name(value)
        self.out.append((Column(self.namer.column(name), typed.kind), typed))

    def _rowwise(self, call: Call, wanted: tuple[str, ...]) -> None:
        chosen = call.name not in {"take_any", "any"}
        if not call.args:
            raise wrong(f"{call.name}() takes at least one argument", call.at)
        prefix = {"argmax": "max_", "argmin": "min_", "any": "any_"}.get(call.name, "")
        values: list[tuple[str, Typed]] = []
        for place, arg in enumerate(call.args):
            if isinstance(arg, Star):
                used = {t.index for _, t in values if isinstance(t, Col)} | {
                    t.index for _, t in self.keys if isinstance(t, Col)
                }
                for index, known in enumerate(self.table.columns):
                    if index not in used:
                        values.append((known.name, Col(known.kind, index, known.name)))
                continue
            typed = self.binder.bind(arg)
            own = own_name(arg)
            values.append(
                (
                    prefix + (own if not prefix or not chosen or not place else f"{own_name(call.args[0])}_{own}")
                    if own
                    else "",
                    typed,
                )
            )
        kinds = tuple(t.kind for _, t in values)
        greatest = call.name in {"arg_max", "argmax"}
        make = (lambda k: Chosen(k, greatest)) if chosen else AnyRow
        found = Aggregate(call.name, make, (), "dynamic", "")
        column = self.gathered.column(found, tuple(t for _, t in values), (), Kind.DYNAMIC)
        for place, ((name, _), kind) in enumerate(zip(values, kinds, strict=True)):
            given = wanted[place] if place < len(wanted) else name
            if not given and chosen:
                given = f"{call.name}_{place}" if place else ""
            self.out.append((Column(self.namer.column(given), kind), Part(kind, column, place)))

    def _percentiles(self, call: Call, wanted: tuple[str, ...]) -> None:
        weighted = "w" in call.name.removeprefix("percentiles").removeprefix("percentile")
        inputs = 2 if weighted else 1
        if len(call.args) <= inputs:
            raise wrong(f"{call.name}() takes an expression and percentiles", call.at)
        args = tuple(self.binder.bind(arg) for arg in call.args[:inputs])
        percents: list[Any] = []
        for arg in call.args[inputs:]:
            value = const_of(self.binder.bind(arg), arg.at, "a percentile")
            percents += value if isinstance(value, list) else [value]
        found = Aggregate(call.name, Percentiles, (), "dynamic", "")
        column = self.gathered.column(found, args, tuple(percents), Kind.DYNAMIC)
        own = own_name(call.args[0])
        if call.name.endswith("_array"):
            name = wanted[0] if wanted else f"percentile_{own}"
            self.out.append((Column(self.namer.column(name), Kind.DYNAMIC), column))
            return
        for place, percent in enumerate(percents):
            name = wanted[place] if place < len(wanted) else f"percentile_{own}_{number_name(percent)}"
            self.out.append((Column(self.namer.column(name), args[0].kind), Part(args[0].kind, column, place)))

    @property
    def columns(self) -> tuple[Column, ...]:
        return tuple(c for c, _ in self.keys) + tuple(c for c, _ in self.out)

    def rows(self) -> Iterator[Row]:
        """The groups, in the order in which they first came."""
        key_fns = [compiled(value) for _, value in self.keys]
        makers = [
            (found, tuple(arg.kind for arg in args), constants, [compiled(arg) for arg in args])
            for found, args, constants in self.gathered.found
        ]
        groups: dict[Any, tuple[Row, list[Any]]] = {}

        def fresh() -> list[Any]:
            return [found.make(kinds or (Kind.LONG,), *constants) for found, kinds, constants, _ in makers]

        arg_fns = [fns for _, _, _, fns in makers]
        if not key_fns:
            states = fresh()
            adders = [(state.add, fns) for state, fns in zip(states, arg_fns, strict=True)]
            for row in self.table.rows():
                for add, fns in adders:
                    add(*[fn(row) for fn in fns])
            groups[()] = ((), states)
        else:
            for row in self.table.rows():
                key = tuple([fn(row) for fn in key_fns])
                mark = tuple([hashable(part) for part in key])
                group = groups.get(mark)
                if group is None:
                    if not len(groups) % 4096:
                        self.ev.meter.check(len(groups))
                    group = groups[mark] = (key, fresh())
                for state, fns in zip(group[1], arg_fns, strict=True):
                    state.add(*[fn(row) for fn in fns])
        outs = [_part(value) for _, value in self.out]
        for key, states in groups.values():
            inner = (*key, *(state.result() for state in states))
            yield (*key, *(out(inner) for out in outs))


@dataclass(frozen=True, slots=True)
class Part(Typed):
    """One of the values that an aggregate gave."""

    column: Col
    place: int


def _part(value: Typed) -> Any:
    if isinstance(value, Part):
        index, place = value.column.index, value.place
        return lambda row: row[index][place]
    return compiled(value)


def _keyed(keys: list[tuple[Column, Typed]]) -> tuple[Column, ...]:
    return tuple(column for column, _ in keys)


def summarize(ev: Any, table: Relation, step: Step, names: Env) -> Relation:
    plan = Plan(ev, table, step.has["keys"], step.has["items"], names)
    if table.pushed and (pushed := table.pushed.summarize(plan)):
        return cast("Relation", pushed.relation(table, ordered=False))
    return Relation(plan.columns, plan.rows)


def count(ev: Any, table: Relation, step: Step, names: Env) -> Relation:
    columns = (Column(step.has["name"], Kind.LONG),)
    if table.pushed and (pushed := table.pushed.count(columns[0])):
        return cast("Relation", pushed.relation(table, ordered=False))
    return Relation(columns, lambda: iter([(sum(1 for _ in table.rows()),)]))


def distinct(ev: Any, table: Relation, step: Step, names: Env) -> Relation:
    plan = Plan(ev, table, step.has["items"], [], names)
    if table.pushed and (pushed := table.pushed.summarize(plan)):
        return cast("Relation", pushed.relation(table, ordered=False))
    return Relation(plan.columns, plan.rows)


def sample_distinct(ev: Any, table: Relation, step: Step, names: Env) -> Relation:
    num = number(ev, step.has["num"], names, "sample-distinct")
    plan = Plan(ev, table, [step.has["value"]], [], names)
    return Relation(plan.columns, lambda: islice(plan.rows(), num))


def top_hitters(ev: Any, table: Relation, step: Step, names: Env) -> Relation:
    """Exact, where Kusto estimates."""
    num = number(ev, step.has["num"], names, "top-hitters")
    at = step.at
    by = step.has["by"]
    value = step.has["value"]
    own = value.names[0] if isinstance(value, Named) else own_name(value)
    made: Node = Call(at, "sum", (by,)) if by is not None else Call(at, "count", ())
    name = f"approximate_sum_{own_name(by)}" if by is not None else f"approximate_count_{own}"
    plan = Plan(ev, table, [value], [Named(at, (name,), made)], names)

    def rows() -> Iterator[Row]:
        return iter(sorted(plan.rows(), key=lambda row: row[-1], reverse=True)[:num])

    return Relation(plan.columns, rows, ordered=True)


def top_nested(ev: Any, table: Relation, step: Step, names: Env) -> Relation:
    """Level by level: the best groups, and within each the best of the next level."""
    levels = step.has["levels"]
    made: list[tuple[Any, ...]] = []
    columns: list[Column] = []
    for level in levels:
        binder = ev.binder(table.columns, names, table.name)
        value = level["value"].value if isinstance(level["value"], Named) else level["value"]
        name = level["value"].names[0] if isinstance(level["value"], Named) else own_name(value) or "Column1"
        typed = binder.bind(value)
        by = level["by"].value if isinstance(level["by"], Named) else level["by"]
        by_name = level["by"].names[0] if isinstance(level["by"], Named) else f"aggregated_{name}"
        num = number(ev, level["num"], names, "top-nested") if level["num"] is not None else None
        others = ev.binder((), names).constant(level["others"], "others") if level["others"] is not None else None
        kind = Plan(ev, table, [], [by], names).columns[0].kind
        columns += [Column(name, typed.kind), Column(by_name, kind)]
        made.append((compiled(typed), by, num, others, level["ascending"]))
    namer = Namer()
    columns = [Column(namer.column(c.name), c.kind) for c in columns]

    def aggregated(rows: list[Row], by: Node) -> Any:
        inner = Relation(table.columns, lambda: iter(rows))
        return next(iter(Plan(ev, inner, [], [by], names).rows()))[0]

    def nested(rows: list[Row], depth: int) -> Iterator[Row]:
        if depth == len(made):
            yield ()
            return
        fn, by, num, others, ascending = made[depth]
        groups: dict[Any, tuple[Any, list[Row]]] = {}
        for row in rows:
            key = fn(row)
            groups.setdefault(hashable(key), (key, []))[1].append(row)
        scored = [(aggregated(inside, by), key, inside) for key, inside in groups.values()]
        scored.sort(
            key=lambda item: (item[0] is not None, order_key(item[0]) if item[0] is not None else 0),
            reverse=not ascending,
        )
        best = scored if num is None else scored[:num]
        for score, key, inside in best:
            for rest in nested(inside, depth + 1):
                yield (key, score, *rest)
        if others is not None:
            left = [row for _, _, inside in scored[len(best) :] for row in inside]
            tail: list[Any] = []
            for lower in made[depth + 1 :]:
                tail += [lower[3] if lower[3] is not None else "", None]
            yield (others, aggregated(left, by) if left else None, *tail)

    return Relation(tuple(columns), lambda: nested(ev.meter.hold(table.rows()), 0))

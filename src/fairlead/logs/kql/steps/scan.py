"""scan: matches sequences of rows by steps with state.

For every row the steps are tried from the last to the first. A row that fits a step takes the state of that step, or
of the one before it, and what the step sets: https://learn.microsoft.com/kusto/query/scan-operator.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from fairlead.logs.kql.kinds import NAMES, Column, Kind
from fairlead.logs.kql.problems import Span, unsupported, wrong
from fairlead.logs.kql.relation import Relation, Row
from fairlead.logs.kql.signs import widened
from fairlead.logs.kql.tree import Binary, Call, Index, Member, Name, Named, Node, Step, Unary
from fairlead.logs.kql.typed import Col, Fn, Window, compiled, convert
from fairlead.logs.kql.windows import replaced, values_of

Env = Mapping[str, Any]


def scan(ev: Any, table: Relation, step: Step, names: Env) -> Relation:
    if not table.ordered:
        raise wrong("scan needs rows in an order", step.at, "put `| serialize` or `| sort by ...` before it")
    binder = ev.binder((), names)
    declared = [(p.name, NAMES[p.kind], p.default) for p in step.has["declared"]]
    defaults = []
    for _, kind, node in declared:
        value = widened(binder.bind(node), kind) if node is not None else None
        defaults.append(compiled(value)(()) if value is not None else "" if kind is Kind.STRING else None)
    match_id = step.has.get("with_match_id", "")
    extra = [Column(name, kind) for name, kind, _ in declared]
    columns = [*table.columns, *extra, *([Column(match_id, Kind.LONG)] if match_id else [])]
    steps = step.has["steps"]
    if any(s["optional"] for s in steps):
        raise unsupported("optional steps of scan are not supported", step.at)
    width = len(table.columns)
    state_width = width + len(declared)
    flat = [*table.columns, *extra]
    order = [s["name"] for s in steps]
    for _ in steps:
        flat = [*flat, *(Column(f"\0{c.name}", c.kind) for c in (*table.columns, *extra))]
    bound = ev.binder(tuple(flat), names)

    windows: list[Window] = []

    def compile_(node: Node, kind: Kind | None = None) -> Fn:
        typed = bound.bind(_resolved(node, order, [*table.columns, *extra], state_width))
        if kind is not None:
            typed = widened(typed, kind) if typed.kind is not kind else typed
            typed = convert(typed, kind)
        return compiled(replaced(typed, windows, len(flat)))

    tests = [compile_(s["test"], Kind.BOOL) for s in steps]
    kinds = {name: (i, kind) for i, (name, kind, _) in enumerate(declared)}
    sets: list[list[tuple[int, Fn]]] = []
    for s in steps:
        made = []
        for item in s["sets"]:
            if not isinstance(item, Named) or item.names[0] not in kinds:
                raise wrong("a step of scan sets declared columns", item.at)
            place, kind = kinds[item.names[0]]
            made.append((place, compile_(item.value, kind)))
        sets.append(made)
    outputs = [s.get("output", "all") for s in steps]

    def rows() -> Iterator[Row]:
        empty = tuple([None] * width) + tuple(defaults)
        states: list[tuple[int, tuple[Any, ...], list[Row]] | None] = [None] * len(steps)
        next_id = 0

        held_rows = ev.meter.hold(table.rows())
        beside = list(zip(*[values_of(window, held_rows) for window in windows], strict=True)) or [()] * len(held_rows)

        def view(row: Row, carried: list[Row], more: Row) -> Row:
            out = (*row, *defaults)
            for state in carried:
                out += state
            return out + more

        for row, more in zip(held_rows, beside, strict=True):
            for place in range(len(steps) - 1, -1, -1):
                for origin in (place, place - 1) if place else (0, -1):
                    held = states[origin] if origin >= 0 else None
                    if origin >= 0 and held is None:
                        continue
                    carried = list(held[2]) if held else [empty] * len(steps)
                    seen = view(row, carried, more)
                    if not tests[place](seen):
                        continue
                    values = list(defaults)
                    for at, fn in sets[place]:
                        values[at] = fn(seen)
                    if held is None:
                        ident, next_id = next_id, next_id + 1
                    else:
                        ident = held[0]
                    carried[place] = (*row, *values)
                    states[place] = (ident, tuple(values), carried)
                    if origin == place - 1 and origin >= 0:
                        states[origin] = None
                    if outputs[place] != "none":
                        yield (*row, *values, *((ident,) if match_id else ()))
                    break

    return Relation(tuple(columns), rows, True)


def _resolved(node: Node, order: list[str], columns: list[Column], width: int) -> Node:
    """`step.column` as a place among the states behind the row."""
    match node:
        case Member(at=at, of=Name(name=name), name=member) if name in order:
            inside = next((i for i, c in enumerate(columns) if c.name == member), None)
            if inside is None:
                raise wrong(f"no column `{member}` in the state of `{name}`", at)
            return _State(at, width + order.index(name) * width + inside, columns[inside].kind)
        case Member(at=at, of=of, name=name):
            return Member(at, _resolved(of, order, columns, width), name)
        case Index(at=at, of=of, index=index):
            return Index(at, _resolved(of, order, columns, width), _resolved(index, order, columns, width))
        case Unary(at=at, op=op, of=of):
            return Unary(at, op, _resolved(of, order, columns, width))
        case Binary(at=at, op=op, left=left, right=right):
            return Binary(at, op, _resolved(left, order, columns, width), _resolved(right, order, columns, width))
        case Call(at=at, name=name, args=args):
            return Call(at, name, tuple(_resolved(arg, order, columns, width) for arg in args))
        case _:
            return node


class _State(Name):
    """A column of the state of a step."""

    __slots__ = ("_typed",)

    def __init__(self, at: Span, place: int, kind: Kind) -> None:
        super().__init__(at, "")
        object.__setattr__(self, "_typed", Col(kind, place, ""))

    def typed(self) -> Col:
        """The column that it is."""
        return cast("Col", self._typed)  # type: ignore[attr-defined]

"""make-series: a value for every step of an axis, as arrays."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from fairlead.logs.kql.functions.dynamics import MAX_ITEMS
from fairlead.logs.kql.kinds import Column, Kind, boxed
from fairlead.logs.kql.names import own_name
from fairlead.logs.kql.problems import too_much, wrong
from fairlead.logs.kql.relation import Relation, Row
from fairlead.logs.kql.steps.summarize import Plan
from fairlead.logs.kql.tree import Named, Node, Step
from fairlead.logs.kql.typed import Const, compiled, hashable, widen

Env = Mapping[str, Any]


def make_series(ev: Any, table: Relation, step: Step, names: Env) -> Relation:
    binder = ev.binder(table.columns, names)
    axis_node = step.has["axis"]
    axis = binder.bind(axis_node.value if isinstance(axis_node, Named) else axis_node)
    axis_name = axis_node.names[0] if isinstance(axis_node, Named) else own_name(axis_node) or "Column1"
    bounds = {word: _bound(binder, step.has.get(word), word, axis.kind) for word in ("from", "to", "step")}
    size = bounds["step"]
    if not size or size < 0:
        raise wrong("the step of make-series is more than zero", step.has["step"].at)
    items = [item for item, _ in step.has["items"]]
    plan = Plan(ev, table, [*step.has["keys"]], items, names)
    defaults = []
    for (_, node), (_, typed) in zip(step.has["items"], plan.out, strict=True):
        value = binder.bind(node) if node is not None else Const(typed.kind, 0 if typed.kind is not Kind.REAL else 0.0)
        assert isinstance(value, Const)
        defaults.append(
            boxed(
                widen(value.value, value.kind, Kind.REAL)
                if typed.kind is Kind.REAL and isinstance(value.value, int)
                else value.value,
                typed.kind,
            )
        )
    keys = [column for column, _ in plan.keys]
    columns = keys + [Column(c.name, Kind.DYNAMIC) for c, _ in plan.out] + [Column(axis_name, Kind.DYNAMIC)]
    axis_fn = compiled(axis)
    key_fns = [compiled(value) for _, value in plan.keys]
    out_kinds = [typed.kind for _, typed in plan.out]

    def rows() -> Iterator[Row]:
        low, high = bounds["from"], bounds["to"]
        held = ev.meter.hold(table.rows())
        known = [v for row in held if (v := axis_fn(row)) is not None]
        if low is None:
            low = min(known) // size * size if known else 0
        inclusive = high is None or step.has.get("inclusive")
        if high is None:
            high = max(known) if known else low
        num = max(0, math.floor((high - low) / size) + 1 if inclusive else math.ceil((high - low) / size))
        if num > MAX_ITEMS:
            raise too_much(f"make-series would make {num:,} steps, and {MAX_ITEMS:,} are the most", "a longer step")
        points = [boxed(low + i * size, axis.kind) for i in range(num)]
        groups: dict[Any, tuple[Row, dict[int, list[Row]]]] = {}
        for row in held:
            at = axis_fn(row)
            if at is None:
                continue
            place = math.floor((at - low) / size)
            key = tuple(fn(row) for fn in key_fns)
            mark = tuple(hashable(k) for k in key)
            cells = groups.setdefault(mark, (key, {}))[1]
            if 0 <= place < num:
                cells.setdefault(place, []).append(row)
        if not num:
            return
        if not groups and not key_fns and step.has.get("kind") == "nonempty":
            groups[()] = ((), {})
        for key, cells in groups.values():
            if key_fns and not cells:
                continue
            arrays = [[default] * num for default in defaults]
            for place, inside in cells.items():
                plan.table = Relation(table.columns, partial(iter, inside))
                made = next(iter(plan.rows()))[len(keys) :]
                for array, value, kind in zip(arrays, made, out_kinds, strict=True):
                    array[place] = boxed(value, kind)
            yield (*key, *arrays, points)

    return Relation(tuple(columns), rows)


def _bound(binder: Any, node: Node | None, word: str, kind: Kind) -> Any:
    """Where a series begins, ends, or its step; None where it is not said."""
    if node is None:
        return None
    value = binder.bind(node)
    if not isinstance(value, Const):
        raise wrong(f"`{word}` of make-series is a constant", node.at)
    return widen(value.value, value.kind, kind) if kind is Kind.REAL else value.value

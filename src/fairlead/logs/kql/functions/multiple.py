"""Functions that give several columns at once, where they stand alone in `extend` or `project`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fairlead.logs.kql.functions import dynamics, series
from fairlead.logs.kql.kinds import Kind
from fairlead.logs.kql.names import own_name
from fairlead.logs.kql.registry import SCALARS, Scalar, params_of
from fairlead.logs.kql.tree import Call
from fairlead.logs.kql.typed import Typed, call


def _part(name: str, whole: Callable[..., Any], place: int, kind: str) -> str:
    """A hidden function for one of the columns."""
    hidden = f"_{name}_{place}"
    if hidden not in SCALARS:

        def run(*args: Any) -> Any:
            made = whole(*args)
            return made[place] if made is not None and place < len(made) else None

        SCALARS[hidden] = Scalar(hidden, run, params_of("any+"), kind, "inner", strict=False)
    return hidden


_LINE = ("rsquare", "slope", "variance", "rvariance", "interception", "line_fit")
_STATS = ("min", "min_idx", "max", "max_idx", "avg", "stdev", "variance")


def columns_of(binder: Any, node: Call) -> list[tuple[str, Typed]]:
    """Names and values of the columns of such a call; none where it gives one value."""
    if node.name == "series_fit_line" and len(node.args) == 1:
        return _columns(
            binder, node, series.fit_line, [(n, Kind.DYNAMIC if n == "line_fit" else Kind.REAL) for n in _LINE]
        )
    if node.name == "series_stats" and node.args:
        return _columns(
            binder,
            node,
            lambda items, *_: series.stats(items),
            [(n, Kind.LONG if n.endswith("idx") else Kind.REAL) for n in _STATS],
        )
    if node.name in {"array_sort_asc", "array_sort_desc"} and len(node.args) > 1:
        args = tuple(binder.bind(arg) for arg in node.args)
        arrays = [arg for arg, typed in zip(node.args, args, strict=True) if typed.kind is Kind.DYNAMIC]
        if len(arrays) < 2:
            return []
        whole: Callable[..., Any] = lambda *values: dynamics.sorted_arrays(node.name, values)  # noqa: E731
        return [
            (
                f"{node.name}_{own_name(arg)}" if own_name(arg) else "",
                call(_part(f"{node.name}{len(arrays)}", whole, i, "dynamic"), args, Kind.DYNAMIC),
            )
            for i, arg in enumerate(arrays)
        ]
    return []


def _columns(
    binder: Any, node: Call, whole: Callable[..., Any], parts: list[tuple[str, Kind]]
) -> list[tuple[str, Typed]]:
    args = tuple(binder.bind(arg) for arg in node.args)
    own = own_name(node.args[0])
    prefix = f"{node.name}_{own}_" if own else f"{node.name}_"
    return [
        (prefix + name, call(_part(node.name, whole, place, str(kind)), args, kind))
        for place, (name, kind) in enumerate(parts)
    ]

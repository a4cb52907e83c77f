"""Calls of scalar functions: arguments made to fit, what comes out, and functions with rules of their own.

Must not know: how rows are read, aggregates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fairlead.logs.kql.kinds import Kind
from fairlead.logs.kql.problems import wrong
from fairlead.logs.kql.registry import MANY, Scalar
from fairlead.logs.kql.signs import alike
from fairlead.logs.kql.tree import Call, Name, Node
from fairlead.logs.kql.typed import Col, Const, Typed, accepts, call, fitted, widest

if TYPE_CHECKING:
    from fairlead.logs.kql.binding import Binder


def applied(binder: Binder, fn: Scalar, node: Call, nodes: list[Node]) -> Typed:
    """A call with its arguments bound, counted and made to fit. Raises Refused."""
    few, many = fn.bounds()
    values = [binder.bind(arg) for arg in nodes]
    if not few - ("typeof" in str(fn.params)) <= len(values) <= many:
        wanted = f"{few}" if few == many else f"{few} to {many}" if many < MANY else f"at least {few}"
        raise wrong(f"{fn.name}() takes {wanted} arguments, and these are {len(values)}", node.at)
    if fn.name == "case":
        if len(values) % 2 == 0:
            raise wrong("case() takes pairs of a test and a value, and one more value", node.at)
        tests = [binder.test(nodes[i]) for i in range(0, len(nodes) - 1, 2)]
        chosen = alike([values[i] for i in range(1, len(values), 2)] + [values[-1]], node.name, node.at)
        args = [part for pair in zip(tests, chosen[:-1], strict=True) for part in pair] + [chosen[-1]]
        return call("case", tuple(args), chosen[-1].kind)
    chosen_from = [place for place in range(len(values)) if fn.param(place) == "common"]
    if chosen_from:
        for place, value in zip(chosen_from, alike([values[p] for p in chosen_from], node.name, node.at), strict=True):
            values[place] = value
    made = []
    for place, (arg, value) in enumerate(zip(nodes, values, strict=True)):
        sort = fn.param(place)
        if not accepts(sort, value.kind) and sort != "dynamic_or_string":
            kind = {"whole": "long", "array": "dynamic", "bag": "dynamic", "number": "double"}.get(sort, sort)
            raise wrong(f"{fn.name}() takes {sort} here, and this is {value.kind}", arg.at, f"to{kind}(...)")
        made.append(fitted(sort, value))
    if fn.name in {"extract", "extract_all", "replace_regex", "matches_regex"} or "regex" in fn.name:
        _checked_patterns(fn, made, node)
    if fn.name in {"format_datetime", "format_timespan"} and isinstance(made[1], Const):
        _checked_form(fn.name, made[1], nodes[1])
    return call(fn.name, tuple(made), _gives(fn, made, node))


def _checked_form(name: str, form: Const, node: Node) -> None:
    from fairlead.logs.kql.times import format_datetime, format_timespan

    if (format_datetime if name == "format_datetime" else format_timespan)(0, str(form.value)) is None:
        raise wrong(f"{name}() knows no such form", node.at, "yyyy-MM-dd HH:mm:ss.fffffff")


def _checked_patterns(fn: Scalar, args: list[Typed], node: Call) -> None:
    from fairlead.logs.kql.regexes import pattern

    place = 0 if fn.name in {"extract", "extract_all", "extractall"} else 1
    if fn.name != "regex_quote" and place < len(args) and isinstance(args[place], Const):
        found = pattern(str(args[place].value))  # type: ignore[attr-defined]
        if fn.name in {"extract_all", "extractall"} and not found.groups:
            raise wrong(f"the pattern of {fn.name}() has at least one group", node.at, "(...)")


def _gives(fn: Scalar, args: list[Typed], node: Call) -> Kind:
    match fn.gives:
        case "same":
            return args[0].kind
        case "same_long":
            return Kind.LONG if args[0].kind is Kind.INT else args[0].kind
        case "common":
            return args[-1].kind
        case "bin":
            return _bin_kind(args, node)
        case kind:
            return Kind(kind)


def _bin_kind(args: list[Typed], node: Call) -> Kind:
    wide = widest(tuple(arg.kind for arg in args))
    if wide:
        return wide
    if args[0].kind in {Kind.DATETIME, Kind.TIMESPAN} and args[1].kind is Kind.TIMESPAN:
        return args[0].kind
    raise wrong(f"{node.name}() does not take {args[0].kind} and {args[1].kind}", node.at, "a timespan such as 1h")


def _now(binder: Binder, node: Call) -> Typed:
    shift = binder.constant(node.args[0], "the shift of now()") if node.args else 0
    return Const(Kind.DATETIME, binder.world.now + shift)


def _ago(binder: Binder, node: Call) -> Typed:
    if len(node.args) != 1:
        raise wrong("ago() takes a timespan", node.at)
    back = binder.bind(node.args[0])
    if back.kind is not Kind.TIMESPAN:
        raise wrong(f"ago() takes a timespan, and this is {back.kind}", node.args[0].at, "ago(1h)")
    return call("datetime-timespan", (Const(Kind.DATETIME, binder.world.now), back), Kind.DATETIME)


def _toscalar(binder: Binder, node: Call) -> Typed:
    if len(node.args) != 1:
        raise wrong("toscalar() takes one query", node.at)
    return binder.world.scalar_of(node.args[0], binder.names)


def _column_ifexists(binder: Binder, node: Call) -> Typed:
    if len(node.args) != 2:
        raise wrong("column_ifexists() takes a name and a value", node.at)
    name = binder.constant(node.args[0], "the name of the column")
    return binder.named(name, node.at) if name in binder.places else binder.bind(node.args[1])


def _pack_all(binder: Binder, node: Call) -> Typed:
    skip = bool(node.args) and bool(binder.constant(node.args[0], "this flag"))
    args: list[Typed] = []
    for place, column in enumerate(binder.columns):
        args += [Const(Kind.STRING, column.name), Col(column.kind, place, column.name)]
    made = call("bag_pack", tuple(args), Kind.DYNAMIC)
    return call("_without_empty", (made,), Kind.DYNAMIC) if skip else made


def _bag_pack_columns(binder: Binder, node: Call) -> Typed:
    args: list[Typed] = []
    for arg in node.args:
        if not isinstance(arg, Name):
            raise wrong("bag_pack_columns() takes names of columns", arg.at)
        args += [Const(Kind.STRING, arg.name), binder.bind(arg)]
    return call("bag_pack", tuple(args), Kind.DYNAMIC)


def _ingestion_time(binder: Binder, node: Call) -> Typed:
    if "IngestTime" in binder.places:
        return binder.named("IngestTime", node.at)
    return Const(Kind.DATETIME, None)


def _iff(binder: Binder, node: Call) -> Typed:
    if len(node.args) != 3:
        raise wrong("iff() takes a test and two values", node.at)
    test = binder.test(node.args[0])
    yes, no = alike([binder.bind(arg) for arg in node.args[1:]], node.name, node.at)
    return call("iff", (test, yes, no), yes.kind)


OWN: dict[str, Callable[[Binder, Call], Typed]] = {
    "now": _now,
    "ago": _ago,
    "toscalar": _toscalar,
    "column_ifexists": _column_ifexists,
    "columnifexists": _column_ifexists,
    "pack_all": _pack_all,
    "bag_pack_columns": _bag_pack_columns,
    "ingestion_time": _ingestion_time,
    "iff": _iff,
    "iif": _iff,
}
"""Functions with rules of their own."""

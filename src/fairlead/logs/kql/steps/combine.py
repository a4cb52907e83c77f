"""Operators of several tables: join, lookup, union, search, partition."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, cast

from fairlead.base.suggest import did_you_mean
from fairlead.logs.kql.kinds import Column, Kind
from fairlead.logs.kql.names import Namer, own_name
from fairlead.logs.kql.problems import unknown, unsupported, wrong
from fairlead.logs.kql.relation import Relation, Row
from fairlead.logs.kql.signs import widened
from fairlead.logs.kql.texts import text_of
from fairlead.logs.kql.tree import Binary, Call, Literal, Member, Name, Node, Star, Step
from fairlead.logs.kql.typed import Const, Typed, call, compiled, convert, hashable, widest

Env = Mapping[str, Any]

JOINS = (
    "innerunique", "inner", "leftouter", "rightouter", "fullouter", "leftanti", "rightanti", "leftsemi", "rightsemi",
    "anti", "leftantisemi", "rightantisemi",
)  # fmt: skip
_SAME = {"anti": "leftanti", "leftantisemi": "leftanti", "rightantisemi": "rightanti", "": "innerunique"}


def join(ev: Any, table: Relation, step: Step, names: Env) -> Relation:
    right = ev.relation(step.has["right"], names)
    said = step.has["kind"]
    if said and said not in JOINS:
        raise wrong(f"no kind of join `{said}`", step.at, did_you_mean(said, JOINS))
    kind = _SAME.get(said, said)
    keys = _keys(ev, table, right, step, names)
    return _joined(
        ev, table, right, keys, kind, _both(table, right, range(len(right.columns))), list(range(len(right.columns)))
    )


def lookup(ev: Any, table: Relation, step: Step, names: Env) -> Relation:
    right = ev.relation(step.has["right"], names)
    kind = step.has["kind"] or "leftouter"
    if kind not in {"leftouter", "inner"}:
        raise wrong("lookup is leftouter or inner", step.at)
    keys = _keys(ev, table, right, step, names)
    used = {right.place(own_name(condition)) for condition in _rights(step)}
    places = [i for i in range(len(right.columns)) if i not in used]
    return _joined(ev, table, right, keys, kind, _both(table, right, places), places)


def _rights(step: Step) -> list[Node]:
    found: list[Node] = []
    for condition in step.has["on"]:
        if isinstance(condition, Binary):
            sides = [condition.left, condition.right]
            found += [s for s in sides if isinstance(s, Member) and isinstance(s.of, Name) and s.of.name == "$right"]
        else:
            found.append(condition)
    return found


def _both(left: Relation, right: Relation, places: Any) -> tuple[Column, ...]:
    namer = Namer()
    columns = [*left.columns, *(right.columns[p] for p in places)]
    return tuple(Column(namer.column(c.name), c.kind) for c in columns)


def _keys(ev: Any, left: Relation, right: Relation, step: Step, names: Env) -> tuple[list[Any], list[Any]]:
    """Functions of a row of each side that must agree."""
    lefts: list[Any] = []
    rights: list[Any] = []
    lb, rb = ev.binder(left.columns, names), ev.binder(right.columns, names)
    for condition in step.has["on"]:
        if isinstance(condition, Name):
            one, two = lb.bind(condition), rb.bind(condition)
        elif isinstance(condition, Binary) and condition.op == "==":
            sides = {_side(condition.left): condition.left, _side(condition.right): condition.right}
            if set(sides) != {"$left", "$right"}:
                raise wrong("both sides of `==` name theirs", condition.at, "$left.a == $right.b")
            one = lb.bind(_without_side(sides["$left"]))
            two = rb.bind(_without_side(sides["$right"]))
        else:
            raise unsupported(
                "only equality joins tables", condition.at, "on a, or $left.a == $right.b; test the rest with `where`"
            )
        if one.kind is not two.kind:
            wide = widest((one.kind, two.kind))
            if not wide:
                raise wrong(
                    f"these keys are {one.kind} and {two.kind}", condition.at, f"to{one.kind}(...) before the join"
                )
            one, two = widened(one, wide), widened(two, wide)
        if one.kind is Kind.DYNAMIC:
            raise wrong("a key is not dynamic", condition.at, "tostring(...) before the join")
        lefts.append(compiled(one))
        rights.append(compiled(two))
    return lefts, rights


def _side(node: Node) -> str:
    while isinstance(node, Call) and node.args:
        node = node.args[0]
    return node.of.name if isinstance(node, Member) and isinstance(node.of, Name) else ""


def _without_side(node: Node) -> Node:
    if isinstance(node, Call):
        return Call(node.at, node.name, tuple(_without_side(arg) for arg in node.args))
    if isinstance(node, Member) and isinstance(node.of, Name) and node.of.name in {"$left", "$right"}:
        return Name(node.at, node.name)
    return node


def _joined(
    ev: Any,
    left: Relation,
    right: Relation,
    keys: tuple[list[Any], list[Any]],
    kind: str,
    columns: Any,
    places: list[int],
) -> Relation:
    lefts, rights = keys
    whole = places == list(range(len(right.columns)))
    empty_left = tuple("" if c.kind is Kind.STRING else None for c in left.columns)
    empty_right = tuple("" if right.columns[p].kind is Kind.STRING else None for p in places)

    def key(fns: list[Any], row: Row) -> Any:
        return tuple([hashable(fn(row)) for fn in fns])

    def grouped(rows: Iterator[Row], fns: list[Any]) -> dict[Any, list[Row]]:
        found: dict[Any, list[Row]] = {}
        for row in ev.meter.watched(rows):
            found.setdefault(key(fns, row), []).append(row)
        return found

    def cut(row: Row) -> Row:
        return row if whole else tuple([row[p] for p in places])

    def one_sided() -> Iterator[Row]:
        ours, other, mine, theirs = (
            (left, right, lefts, rights) if kind.startswith("left") else (right, left, rights, lefts)
        )
        known = {key(theirs, row) for row in ev.meter.watched(other.rows())}
        semi = kind.endswith("semi")
        return (row for row in ours.rows() if (key(mine, row) in known) is semi)

    def rows() -> Iterator[Row]:
        by_key = grouped(right.rows(), rights)
        matched: set[Any] = set()
        seen: set[Any] = set()
        for row in ev.meter.watched(left.rows()):
            mark = key(lefts, row)
            if kind == "innerunique":
                if mark in seen:
                    continue
                seen.add(mark)
            found = by_key.get(mark)
            if found:
                matched.add(mark)
                for other in found:
                    yield row + cut(other)
            elif kind in {"leftouter", "fullouter"}:
                yield row + empty_right
        if kind in {"rightouter", "fullouter"}:
            for mark, others in by_key.items():
                if mark not in matched:
                    for other in others:
                        yield empty_left + cut(other)

    if kind.endswith(("semi", "anti")):
        ours = left if kind.startswith("left") else right
        return Relation(ours.columns, one_sided)
    return Relation(columns, rows)


# ---- union ---------------------------------------------------------------------------------------------------------


def union(ev: Any, table: Relation | None, step: Step, names: Env) -> Relation:
    legs = [table] if table is not None else []
    fuzzy = step.has.get("isfuzzy") == "true"
    for leg in step.has["legs"]:
        legs += _leg(ev, leg, names, fuzzy=fuzzy)
    if not legs:
        raise unknown("no table is left of this union", step.at)
    for place, leg in enumerate(legs):
        if not leg.name:
            legs[place] = leg.named(f"union_arg{place}")
    source = step.has.get("withsource") or step.has.get("with_source") or ""
    columns, maps = _aligned(legs, inner=step.has.get("kind") == "inner")
    return _together(legs, columns, maps, source)


def _leg(ev: Any, leg: Node, names: Env, *, fuzzy: bool) -> list[Relation]:
    if isinstance(leg, Star):
        return list(ev.matching(leg.pattern, names))
    try:
        found = names.get(leg.name) if isinstance(leg, Name) else None
        made = ev.relation(leg, names)
        return [made.named(leg.name) if isinstance(leg, Name) and getattr(found, "is_view", False) else made]
    except Exception as refused:
        if fuzzy and getattr(refused, "code", "") == "kql/unknown-name":
            return []
        raise


def _aligned(legs: list[Relation], *, inner: bool) -> tuple[list[Column], list[list[int | None]]]:
    """The columns of a union, and where each leg has them. Equal names of other kinds are columns apart."""
    kinds: dict[str, list[Kind]] = {}
    for leg in legs:
        for column in leg.columns:
            found = kinds.setdefault(column.name, [])
            if column.kind not in found:
                found.append(column.kind)
    columns: list[Column] = []
    wanted: list[tuple[str, Kind]] = []
    namer = Namer([name for name, several in kinds.items() if len(several) == 1 or inner])
    for name, several in kinds.items():
        for kind in several:
            if inner and not all(any(c == (name, kind) for c in leg.columns) for leg in legs):
                continue
            columns.append(Column(name if len(several) == 1 or inner else namer.column(f"{name}_{kind}"), kind))
            wanted.append((name, kind))
    maps = [[next((i for i, c in enumerate(leg.columns) if c == want), None) for want in wanted] for leg in legs]
    return columns, maps


def _together(legs: list[Relation], columns: list[Column], maps: list[list[int | None]], source: str) -> Relation:
    empty = ["" if c.kind is Kind.STRING else None for c in columns]
    shown = ([Column(source, Kind.STRING)] if source else []) + columns

    def rows() -> Iterator[Row]:
        for leg, places in zip(legs, maps, strict=True):
            head = (leg.name,) if source else ()
            if not source and places == list(range(len(leg.columns))):
                yield from leg.rows()
                continue
            for row in leg.rows():
                yield (*head, *(empty[i] if p is None else row[p] for i, p in enumerate(places)))

    pushed = None
    if all(leg.pushed for leg in legs):
        pushed = legs[0].pushed.union(legs, columns, maps, source)
        if pushed:
            return cast("Relation", pushed.relation(Relation(tuple(shown), rows), ordered=False))
    return Relation(tuple(shown), rows)


# ---- search --------------------------------------------------------------------------------------------------------


def search(ev: Any, table: Relation | None, step: Step, names: Env) -> Relation:
    exact = step.has.get("kind") == "case_sensitive"
    nodes = step.has["tables"]
    if table is not None:
        legs = [table if table.name else table.named("search_arg0")]
    elif nodes is None:
        legs = ev.matching("*", names)
    else:
        legs = [found for node in nodes for found in _leg(ev, node, names, fuzzy=False)]
    if not legs:
        raise unknown("there is no table to search", step.at)
    found = [_searched(ev, leg, step.has["test"], names, exact=exact) for leg in legs]
    found = [made.named(leg.name) for made, leg in zip(found, legs, strict=True)]
    columns, maps = _aligned(found, inner=False)
    return _together(found, columns, maps, "$table")


def _searched(ev: Any, table: Relation, node: Node, names: Env, *, exact: bool) -> Relation:
    test = _test(ev.binder(table.columns, names, table.name), table, node, exact=exact)
    if table.pushed and (pushed := table.pushed.where(test)):
        return cast("Relation", pushed.relation(table))
    fn = compiled(test)
    return table.with_rows(table.columns, lambda: (row for row in table.rows() if fn(row)))


def _test(binder: Any, table: Relation, node: Node, *, exact: bool) -> Typed:
    """A predicate of `search`: a bare text is looked for as a term in every column."""
    if isinstance(node, Literal) and node.kind is Kind.STRING:
        return _anywhere(table, node.value, exact)
    if isinstance(node, Literal) and node.kind is not Kind.BOOL:
        return _anywhere(table, text_of(node.value, node.kind), exact)
    if isinstance(node, Binary) and node.op in {"and", "or"}:
        sides = tuple(_test(binder, table, side, exact=exact) for side in (node.left, node.right))
        return call(node.op, sides, Kind.BOOL)
    if isinstance(node, Call) and node.name == "not" and len(node.args) == 1:
        return call("not", (_test(binder, table, node.args[0], exact=exact),), Kind.BOOL)
    if isinstance(node, Binary) and node.op == ":":
        value = binder.constant(node.right, "what is searched for")
        if isinstance(node.left, Star) and node.left.pattern == "*":
            return _anywhere(table, str(value), exact)
        return _term(convert(binder.bind(node.left), Kind.STRING), str(value), exact)
    return binder.test(node)  # type: ignore[no-any-return]


def _anywhere(table: Relation, text: str, exact: bool) -> Typed:
    from fairlead.logs.kql.typed import Col

    made: Typed = Const(Kind.BOOL, False)
    for place, column in enumerate(table.columns):
        if column.kind in {Kind.BOOL, Kind.REAL, Kind.DECIMAL}:
            continue
        one = _term(convert(Col(column.kind, place, column.name), Kind.STRING), text, exact)
        made = one if isinstance(made, Const) else call("or", (made, one), Kind.BOOL)
    return made


def _term(value: Typed, text: str, exact: bool) -> Typed:
    """A term; with `*` at an end the beginning or the end of one, with `*` at both a part of the text."""
    cs = "_cs" if exact else ""
    if text in {"*", ""}:
        return Const(Kind.BOOL, True)
    core = text.strip("*")
    if "*" in core:
        parts = ".*".join(re.escape(part) for part in text.split("*"))
        regex = ("" if exact else "(?i)") + parts
        return call("matches_regex", (value, Const(Kind.STRING, regex)), Kind.BOOL)
    if text.startswith("*") and text.endswith("*"):
        op = "contains"
    else:
        op = "hassuffix" if text.startswith("*") else "hasprefix" if text.endswith("*") else "has"
    return call(op + cs, (value, Const(Kind.STRING, core)), Kind.BOOL)


# ---- partition -----------------------------------------------------------------------------------------------------


def partition(ev: Any, table: Relation, step: Step, names: Env) -> Relation:
    fn = compiled(ev.binder(table.columns, names).bind(step.has["by"]))
    body = step.has["body"].steps
    columns = ev.piped(Relation(table.columns, lambda: iter(())), body, names, step.at).columns

    def rows() -> Iterator[Row]:
        groups: dict[Any, list[Row]] = {}
        for row in ev.meter.watched(table.rows()):
            groups.setdefault(hashable(fn(row)), []).append(row)
        for inside in groups.values():
            made = ev.piped(Relation(table.columns, partial(iter, inside), table.ordered), body, names, step.at)
            if made.columns != columns:
                raise wrong("the parts of this partition have columns of their own", step.at)
            yield from made.rows()

    return Relation(columns, rows)

"""evaluate and reduce: plugins whose columns may depend on the rows, so that those are read where they stand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from fairlead.base.suggest import did_you_mean
from fairlead.logs.kql.kinds import NAMES, Column, Kind, kind_of
from fairlead.logs.kql.names import Namer
from fairlead.logs.kql.problems import too_much, unknown, unsupported, wrong
from fairlead.logs.kql.relation import Relation, Row
from fairlead.logs.kql.steps.summarize import Plan
from fairlead.logs.kql.texts import text_of
from fairlead.logs.kql.tree import Call, Name, Named, Node, Step
from fairlead.logs.kql.typed import Col as TypedCol
from fairlead.logs.kql.typed import compiled, convert, hashable, widest

Env = Mapping[str, Any]
MAX_PIVOT = 5_000
"""Columns that pivot may make."""


def evaluate(ev: Any, table: Relation | None, step: Step, names: Env) -> Relation:
    call: Call = step.has["call"]
    plugin = PLUGINS.get(call.name)
    if plugin is None:
        if call.name in REFUSED_PLUGINS:
            raise unsupported(f"the plugin {call.name} is not supported", call.at, REFUSED_PLUGINS[call.name])
        raise unknown(f"no plugin `{call.name}`", call.at, did_you_mean(call.name, PLUGINS))
    if table is None:
        raise wrong(f"{call.name} needs a table before it", call.at, f"T | evaluate {call.name}(...)")
    made: Relation = plugin(ev, table, call, names)
    if step.has["columns"] is None:
        return made
    said = step.has["columns"]
    if step.has["star"]:
        said = [(c.name, str(c.kind)) for c in table.columns if c in made.columns and c.name not in dict(said)] + list(
            said
        )
    return _declared(made, said)


def _declared(made: Relation, columns: Sequence[tuple[str, str]]) -> Relation:
    """The columns that the query says, of what came out."""
    wanted = [Column(name, NAMES[kind]) for name, kind in columns]
    fns: list[Callable[[Row], Any]] = []
    for column in wanted:
        place = made.place(column.name)
        if place is None:
            fns.append(_constant("" if column.kind is Kind.STRING else None))
        else:
            fns.append(compiled(convert(TypedCol(made.columns[place].kind, place, column.name), column.kind)))
    return Relation(tuple(wanted), lambda: (tuple(fn(row) for fn in fns) for row in made.rows()))


def _constant(value: Any) -> Callable[[Row], Any]:
    return lambda row: value


def _column(table: Relation, node: Node) -> int:
    place = table.place(node.name) if isinstance(node, Name) else None
    if place is None:
        raise unknown(
            "a column of the table is needed here",
            node.at,
            did_you_mean(getattr(node, "name", ""), [c.name for c in table.columns]),
        )
    return place


def bag_unpack(ev: Any, table: Relation, call: Call, names: Env) -> Relation:
    place = _column(table, call.args[0])
    if table.columns[place].kind is not Kind.DYNAMIC:
        raise wrong("bag_unpack takes a dynamic column", call.args[0].at)
    binder = ev.binder((), names)
    said = {}
    for at, arg in enumerate(call.args[1:]):
        key = (
            arg.names[0]
            if isinstance(arg, Named)
            else ("OutputColumnPrefix", "columnsConflict", "ignoredProperties")[at]
        )
        said[key] = binder.constant(arg.value if isinstance(arg, Named) else arg, "this argument")
    prefix = str(said.get("OutputColumnPrefix") or "")
    ignored = set(said.get("ignoredProperties") or [])
    conflict = said.get("columnsConflict") or "error"
    held = ev.meter.hold(table.rows())
    kinds: dict[str, Kind] = {}
    for row in held:
        for key, value in (row[place] if isinstance(row[place], dict) else {}).items():
            if key in ignored:
                continue
            found = kind_of(value)
            if found is None:
                kinds.setdefault(key, None)  # type: ignore[arg-type]
            elif kinds.get(key) is None:
                kinds[key] = found
            elif kinds[key] is not found:
                kinds[key] = widest((kinds[key], found)) or Kind.DYNAMIC
    shown = {key: prefix + key for key in sorted(kinds)}
    own = {c.name: i for i, c in enumerate(table.columns)}
    clashes = [key for key, name in shown.items() if own.get(name, place) != place]
    if clashes and conflict == "error":
        raise wrong(
            f"the table has a column `{shown[clashes[0]]}` already", call.at, "columnsConflict='replace_source'"
        )
    if conflict == "keep_source":
        shown = {key: name for key, name in shown.items() if key not in clashes}
    # a column that a key replaces keeps its place, the others stand behind
    layout: list[tuple[Column, int | None, str]] = []
    for i, column in enumerate(table.columns):
        found_key = next((k for k, name in shown.items() if name == column.name), None)
        if found_key is not None:
            layout.append((Column(column.name, kinds[found_key] or Kind.STRING), None, found_key))
        elif i != place:
            layout.append((column, i, ""))
    placed = {key for _, i, key in layout if i is None}
    layout += [(Column(name, kinds[k] or Kind.STRING), None, k) for k, name in shown.items() if k not in placed]

    def cell(bag: Any, key: str) -> Any:
        kind = kinds[key] or Kind.STRING
        value = bag.get(key) if isinstance(bag, dict) else None
        if value is None:
            return "" if kind is Kind.STRING else None
        return float(value) if kind is Kind.REAL else value

    def rows() -> Iterator[Row]:
        for row in held:
            yield tuple(cell(row[place], key) if i is None else row[i] for _, i, key in layout)

    return Relation(tuple(column for column, _, _ in layout), rows)


def pivot(ev: Any, table: Relation, call: Call, names: Env) -> Relation:
    place = _column(table, call.args[0])
    aggregate: Node = call.args[1] if len(call.args) > 1 else Call(call.at, "count", ())
    if not isinstance(aggregate, Call):
        raise wrong("the second argument of pivot is an aggregate", aggregate.at, "pivot(column, count())")
    used = {_column(table, arg) for arg in aggregate.args if isinstance(arg, Name)}
    keys = [_column(table, arg) for arg in call.args[2:]] or [
        i for i in range(len(table.columns)) if i != place and i not in used
    ]
    held = ev.meter.hold(table.rows())
    inner = Relation(table.columns, lambda: iter(held))
    at = call.at
    by: list[Node] = [Name(at, table.columns[i].name) for i in keys] + [call.args[0]]
    plan = Plan(ev, inner, by, [aggregate], names)
    kind = plan.columns[-1].kind
    pivot_kind = table.columns[place].kind
    groups: dict[Any, tuple[Row, dict[str, Any]]] = {}
    seen: dict[str, None] = {}
    for row in plan.rows():
        key, value, cell = row[: len(keys)], row[len(keys)], row[-1]
        name = text_of(value, pivot_kind)
        seen[name] = None
        groups.setdefault(tuple(hashable(k) for k in key), (key, {}))[1][name] = cell
    if len(seen) > MAX_PIVOT:
        raise too_much(f"pivot would make {len(seen):,} columns", "filter first")
    namer = Namer()
    heads = [Column(namer.column(table.columns[i].name), table.columns[i].kind) for i in keys]
    names_ = sorted(seen)
    columns = heads + [Column(namer.column(name), kind) for name in names_]
    empty: Any = (
        0
        if aggregate.name in {"count", "countif", "dcount", "sum", "dcountif", "sumif"}
        else ""
        if kind is Kind.STRING
        else None
    )
    rows = [(*key, *(cells.get(name, empty) for name in names_)) for key, cells in groups.values()]
    return Relation(tuple(columns), lambda: iter(rows))


def narrow(ev: Any, table: Relation, call: Call, names: Env) -> Relation:
    columns = (Column("Row", Kind.LONG), Column("Column", Kind.STRING), Column("Value", Kind.STRING))

    def rows() -> Iterator[Row]:
        for at, row in enumerate(table.rows()):
            for column, value in zip(table.columns, row, strict=True):
                yield (at, column.name, text_of(value, column.kind))

    return Relation(columns, rows)


# ---- patterns ------------------------------------------------------------------------------------------------------


def _categories(ev: Any, table: Relation) -> tuple[list[int], list[Row]]:
    """Columns with few values, which patterns are made of, and the rows."""
    held = ev.meter.hold(table.rows())
    places = [
        i for i, c in enumerate(table.columns) if c.kind not in {Kind.REAL, Kind.DECIMAL, Kind.DATETIME, Kind.DYNAMIC}
    ]
    few = max(20, len(held) // 2)
    return [i for i in places if len({hashable(row[i]) for row in held}) <= few], held


def _patterns(rows: list[Row], places: list[int], least: int) -> dict[tuple[tuple[int, Any], ...], int]:
    """Every set of (column, value) that at least so many rows have; level by level, as Apriori does."""
    singles = Counter((i, hashable(row[i])) for row in rows for i in places)
    level: dict[tuple[tuple[int, Any], ...], int] = {((i, v),): n for (i, v), n in singles.items() if n >= least}
    found = dict(level)
    while level and len(found) < 20_000:
        items = sorted({part for pattern in level for part in pattern}, key=str)
        size = len(next(iter(level))) + 1
        seen = {frozenset(p) for p in level}
        candidates = set()
        for pattern in level:
            for item in items:
                if item[0] not in {i for i, _ in pattern}:
                    new = tuple(sorted((*pattern, item), key=lambda part: part[0]))
                    if all(frozenset(sub) in seen for sub in combinations(new, size - 1)):
                        candidates.add(new)
        if len(candidates) > 50_000:
            raise too_much("there are too many patterns", "a higher threshold, or fewer columns by `project`")
        level = {}
        counted: Counter[Any] = Counter()
        for row in rows:
            have = {(i, hashable(row[i])) for i in places}
            for pattern in candidates:
                if have.issuperset(pattern):
                    counted[pattern] += 1
        level = {p: n for p, n in counted.items() if n >= least}
        found.update(level)
    return found


def _cell(table: Relation, place: int, pattern: dict[int, Any], wildcard: Any) -> Any:
    kind = table.columns[place].kind
    if place not in pattern:
        return wildcard if kind is Kind.STRING else None
    value = pattern[place]
    return value[1] if kind is Kind.BOOL and isinstance(value, tuple) else value


def basket(ev: Any, table: Relation, call: Call, names: Env) -> Relation:
    """Every frequent pattern, by Apriori."""
    binder = ev.binder((), names)
    threshold = float(binder.constant(call.args[0], "the threshold")) if call.args else 0.05
    if not 0.015 <= threshold <= 1:
        raise wrong("the threshold of basket lies between 0.015 and 1", call.at)
    places, held = _categories(ev, table)
    found = _patterns(held, places, max(1, int(threshold * len(held) + 0.999999)))
    order = sorted(found.items(), key=lambda item: (-item[1], len(item[0])))
    columns = [Column("SegmentId", Kind.LONG), Column("Count", Kind.LONG), Column("Percent", Kind.REAL)]
    columns += [table.columns[i] for i in places]
    rows = [
        (at, num, 100.0 * num / len(held), *(_cell(table, i, dict(pattern), "") for i in places))
        for at, (pattern, num) in enumerate(order)
    ]
    return Relation(tuple(columns), lambda: iter(rows))


def autocluster(ev: Any, table: Relation, call: Call, names: Env) -> Relation:
    """A few patterns that together cover most rows: greedily, each by the rows it adds and how much it says.

    Kusto's own algorithm is not published; the columns are the same, the segments may differ.
    """
    binder = ev.binder((), names)
    weight = float(binder.constant(call.args[0], "the weight")) if call.args else 0.5
    places, held = _categories(ev, table)
    found = _patterns(held, places, max(1, len(held) // 20))
    left = [({(i, hashable(row[i])) for i in places}) for row in held]
    rows: list[Row] = []
    while left and found and len(rows) < 10:

        def score(item: Any, left: list[set[Any]] = left) -> float:
            pattern, _ = item
            covers = sum(1 for have in left if have.issuperset(pattern))
            return float((covers / len(held)) ** weight * (len(pattern) / max(1, len(places))) ** (1 - weight))

        pattern, num = max(found.items(), key=score)
        remaining = [have for have in left if not have.issuperset(pattern)]
        if len(left) - len(remaining) < max(1, len(held) // 50):
            break
        left = remaining
        del found[pattern]
        rows.append((len(rows), num, 100.0 * num / len(held), *(_cell(table, i, dict(pattern), "") for i in places)))
    columns = [Column("SegmentId", Kind.LONG), Column("Count", Kind.LONG), Column("Percent", Kind.REAL)]
    columns += [table.columns[i] for i in places]
    return Relation(tuple(columns), lambda: iter(rows))


def diffpatterns(ev: Any, table: Relation, call: Call, names: Env) -> Relation:
    """Patterns that are much more frequent on one side of a split. Kusto's own choice of them is not published."""
    if len(call.args) < 3:
        raise wrong("diffpatterns takes a column and its two values", call.at)
    place = _column(table, call.args[0])
    binder = ev.binder((), names)
    one, two = (text_of(binder.bind(arg).value, binder.bind(arg).kind) for arg in call.args[1:3])
    threshold = 0.05
    if len(call.args) > 3 and isinstance(value := binder.constant(call.args[3], "the threshold"), float):
        threshold = value
    places, held = _categories(ev, table)
    places = [i for i in places if i != place]
    kind = table.columns[place].kind
    sides = [[row for row in held if text_of(row[place], kind) == side] for side in (one, two)]
    rows: list[Row] = []
    both = sides[0] + sides[1]
    found = _patterns(both, places, max(1, int(threshold * min(len(side) for side in sides)))) if all(sides) else {}
    scored = []
    for pattern in found:
        counts = [sum(1 for row in side if all(hashable(row[i]) == v for i, v in pattern)) for side in sides]
        shares = [100.0 * num / len(side) for num, side in zip(counts, sides, strict=True)]
        difference = abs(shares[0] - shares[1])
        if difference >= 100 * threshold:
            scored.append((difference, len(pattern), pattern, counts, shares))
    scored.sort(key=lambda item: (-item[0], -item[1]))
    for at, (difference, _, pattern, counts, shares) in enumerate(scored[:20]):
        rows.append((at, *counts, *shares, difference, *(_cell(table, i, dict(pattern), "") for i in places)))
    columns = [Column("SegmentId", Kind.LONG), Column("CountA", Kind.LONG), Column("CountB", Kind.LONG)]
    columns += [Column(name, Kind.REAL) for name in ("PercentA", "PercentB", "PercentDiffAB")] + [
        table.columns[i] for i in places
    ]
    return Relation(tuple(columns), lambda: iter(rows))


PLUGINS: dict[str, Callable[..., Relation]] = {
    "autocluster": autocluster,
    "bag_unpack": bag_unpack,
    "basket": basket,
    "diffpatterns": diffpatterns,
    "narrow": narrow,
    "pivot": pivot,
}
"""Behind `evaluate`."""

REFUSED_PLUGINS = {
    "active_users_count": "summarize dcount(...) by bin(...)",
    "activity_counts_metrics": "summarize dcount(...) by bin(...)",
    "activity_engagement": "summarize dcount(...) by bin(...)",
    "activity_metrics": "summarize dcount(...) by bin(...)",
    "ai_chat_completion": "nothing: no model is asked",
    "ai_embeddings": "nothing: no model is asked",
    "azure_digital_twins_query_request": "nothing: no network is asked",
    "cosmosdb_sql_request": "nothing: no network is asked",
    "dcount_intersect": "set_intersect(make_set(...), ...)",
    "diffpatterns_text": "reduce by",
    "funnel_sequence": "scan",
    "funnel_sequence_completion": "scan",
    "geoip": "nothing: addresses are not located",
    "http_request": "nothing: no network is asked",
    "http_request_post": "nothing: no network is asked",
    "infer_storage_schema": "getschema",
    "ipv4_lookup": "where ipv4_is_in_range(...)",
    "ipv6_lookup": "where ipv6_is_in_range(...)",
    "mysql_request": "nothing: no network is asked",
    "new_activity_metrics": "summarize dcount(...) by bin(...)",
    "postgresql_request": "nothing: no network is asked",
    "preview": "take",
    "python": "fairlead logs query --json, and any program behind it",
    "r": "fairlead logs query --json, and any program behind it",
    "rolling_percentile": "make-series, series_fir",
    "rows_near": "serialize, prev(), next()",
    "schema_merge": "union",
    "sequence_detect": "scan",
    "session_count": "row_window_session()",
    "sliding_window_counts": "summarize dcount(...) by bin(...)",
    "sql_request": "nothing: no network is asked",
}
"""Plugins of Kusto that are refused, and what comes nearest."""


# ---- reduce --------------------------------------------------------------------------------------------------------


def reduce(ev: Any, table: Relation, step: Step, names: Env) -> Relation:
    """Texts that differ in few words, as one pattern with `*`. Kusto's own algorithm is not published."""
    options = step.has["options"]
    threshold = float(options.get("threshold", 0.1))
    characters = str(options.get("characters", ""))
    value = compiled(convert(ev.binder(table.columns, names).bind(step.has["value"]), Kind.STRING))
    if step.has.get("kind", "") not in {"", "mining"}:
        raise unsupported("this kind of reduce is not supported", step.at, "reduce by")
    columns = (Column("Pattern", Kind.STRING), Column("Count", Kind.LONG), Column("Representative", Kind.STRING))

    def rows() -> Iterator[Row]:
        texts = [value(row) for row in ev.meter.watched(table.rows())]
        groups: dict[tuple[Any, ...], list[tuple[list[str], int, str]]] = {}
        for text, num in Counter(texts).items():
            words = _words(text, characters)
            shape = (len(words),)
            clusters = groups.setdefault(shape, [])
            for at, (pattern, count, first) in enumerate(clusters):
                same = sum(1 for a, b in zip(pattern, words, strict=True) if a == b)
                if words and same >= len(words) * max(threshold, 0.3):
                    clusters[at] = (
                        [a if a == b else "*" for a, b in zip(pattern, words, strict=True)],
                        count + num,
                        first,
                    )
                    break
            else:
                clusters.append((list(words), num, text))
        made = [(" ".join(p), n, f) for clusters in groups.values() for p, n, f in clusters]
        yield from sorted(made, key=lambda row: -row[1])

    return Relation(columns, rows, True)


def _words(text: str, characters: str) -> list[str]:
    for char in characters:
        text = text.replace(char, " ")
    return text.split()

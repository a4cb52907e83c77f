"""Expressions of the tree become typed ones: names are found, kinds decided, functions chosen, constants computed.

Whatever does not fit is refused with its place and, where there is one, what to write instead.

Must not know: how rows are read.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fairlead.base.suggest import did_you_mean
from fairlead.logs.kql.kinds import NAMES, NUMERIC, WHOLE, Column, Kind
from fairlead.logs.kql.problems import Refused, Span, unknown, unsupported, wrong
from fairlead.logs.kql.registry import AGGREGATES, MANY, SCALARS, Aggregate, Scalar
from fairlead.logs.kql.tree import (
    Among,
    Binary,
    Call,
    Datatable,
    Index,
    Literal,
    Member,
    Name,
    Named,
    Node,
    Pipe,
    Star,
    Step,
    TypeOf,
    Unary,
)
from fairlead.logs.kql.typed import (
    Apply,
    Col,
    Const,
    Contains,
    Typed,
    Window,
    accepts,
    call,
    common,
    const_of,
    convert,
    fitted,
    hashable,
    widen,
    widest,
)

WINDOWS = {
    "prev": (1, 3),
    "next": (1, 3),
    "row_number": (0, 2),
    "row_cumsum": (1, 2),
    "row_rank_dense": (1, 2),
    "row_rank_min": (1, 2),
    "row_window_session": (3, 4),
}
"""Functions of neighbouring rows, and how many arguments they take."""

SPECIAL = (
    "ago", "now", "toscalar", "materialize", "column_ifexists", "columnifexists", "pack_all", "bag_pack_columns",
    "ingestion_time", "cursor_after", "current_database", "estimate_data_size", "datatable", "view", "table",
    "column_names_of", "arg_max", "arg_min", "argmax", "argmin", "take_any", "any", "percentile", "percentiles",
    "percentilesw", "percentilew", "percentiles_array", "percentilesw_array",
)  # fmt: skip


HIDDEN_TABLE = "\0$table"
"""A column that no name of a query can reach: which table a row of a union is of. It never leaves a query."""


class World(Protocol):
    """What expressions need of the query around them."""

    now: int

    def scalar_of(self, node: Node, names: Names) -> Typed:
        """The single value of a sub-query, run now."""

    def relation(self, node: Node, names: Names) -> Any:
        """The table that a node stands for."""

    def list_of(self, node: Node, names: Names) -> tuple[list[Any], Kind] | None:
        """The first column of a sub-query, run now; None where the node is no query."""

    def called(self, function: Any, node: Call, args: list[Any]) -> Any:
        """What a function of a `let` gives."""

    def is_tabular(self, value: Any) -> bool:
        """Whether a name stands for a table."""

    def table_exists(self, name: str) -> bool:
        """Whether the store has it."""


Names = Mapping[str, Any]


@dataclass(slots=True)
class Gathered:
    """The aggregates inside of the items of a `summarize`, each once."""

    start: int
    found: list[tuple[Aggregate, tuple[Typed, ...], tuple[Any, ...]]] = field(default_factory=list)

    def column(self, aggregate: Aggregate, args: tuple[Typed, ...], constants: tuple[Any, ...], kind: Kind) -> Col:
        """Where its result will stand."""
        self.found.append((aggregate, args, constants))
        return Col(kind, self.start + len(self.found) - 1, aggregate.name)


class Binder:
    """Binds expressions over the columns of one table."""

    def __init__(
        self,
        world: World,
        columns: Sequence[Column],
        names: Names,
        *,
        gathered: Gathered | None = None,
        sides: tuple[Sequence[Column], Sequence[Column]] | None = None,
        table: str = "",
    ) -> None:
        self.world, self.columns, self.names = world, columns, names
        self.places = {column.name: place for place, column in enumerate(columns)}
        self.gathered = gathered
        self.sides = sides
        self.table = table
        self.windows = False

    def over(self, columns: Sequence[Column]) -> Binder:
        """The same world, other columns."""
        return Binder(self.world, columns, self.names, table=self.table)

    def bind(self, node: Node) -> Typed:
        """A typed expression. Raises Refused."""
        try:
            return self._bind(node)
        except Refused as refused:
            if refused.at is None:
                refused.at = node.at
            raise

    def test(self, node: Node) -> Typed:
        """An expression that must be a bool."""
        found = self.bind(node)
        if found.kind is Kind.DYNAMIC:
            return convert(found, Kind.BOOL)
        if found.kind is not Kind.BOOL:
            raise wrong(f"a bool is needed here, and this is {found.kind}", node.at, "compare it with something")
        return found

    def constant(self, node: Node, what: str) -> Any:
        return const_of(self.bind(node), node.at, what)

    def _bind(self, node: Node) -> Typed:
        match node:
            case Literal(value=value, kind=kind):
                return Const(kind, value)
            case Name(name=name):
                state = getattr(node, "typed", None)
                return state() if state else self._name(name, node.at)
            case Member():
                return self._member(node)
            case Index(of=of, index=index):
                return self._index(self.bind(of), self.bind(index), node.at)
            case Unary(of=of):
                return self._negative(self.bind(of), node.at)
            case Binary():
                return self._binary(node)
            case Among():
                return self._among(node)
            case Call():
                return self._call(node)
            case Named(value=value):
                return self.bind(value)
            case Pipe():
                raise wrong("a table stands where a value is needed", node.at, "toscalar(...)")
            case Star():
                raise wrong("`*` stands for columns, not for a value", node.at)
            case _:
                raise wrong("this is no expression", node.at)

    # ---- names -----------------------------------------------------------------------------------------------------

    def _name(self, name: str, at: Span) -> Typed:
        place = self.places.get(name)
        if place is not None:
            return Col(self.columns[place].kind, place, name)
        if name in self.names:
            found = self.names[name]
            if isinstance(found, Typed):
                return found
            if self.world.is_tabular(found):
                raise wrong(f"`{name}` is a table, and a value is needed here", at, f"toscalar({name} | ...)")
            made = self.world.called(found, Call(at, name, ()), [])  # one without arguments stands for its value
            if isinstance(made, Typed):
                return made
            raise wrong(f"`{name}` is a function", at, f"{name}(...)")
        if name == "$table":
            place = self.places.get(HIDDEN_TABLE)
            return Const(Kind.STRING, self.table) if place is None else Col(Kind.STRING, place, name)
        known = [column.name for column in self.columns] + [n for n, v in self.names.items() if isinstance(v, Typed)]
        raise unknown(f"no column `{name}`", at, did_you_mean(name, known) if known else "")

    def _member(self, node: Member) -> Typed:
        if isinstance(node.of, Name) and node.of.name in {"$left", "$right"} and self.sides:
            side = self.sides[node.of.name == "$right"]
            place = next((i for i, c in enumerate(side) if c.name == node.name), None)
            if place is None:
                raise unknown(
                    f"no column `{node.name}` there", node.at, did_you_mean(node.name, [c.name for c in side])
                )
            shift = len(self.sides[0]) if node.of.name == "$right" else 0
            return Col(side[place].kind, place + shift, node.name)
        of = self.bind(node.of)
        if of.kind is not Kind.DYNAMIC:
            raise wrong(f"a {of.kind} has no members", node.at, "parse_json(...) makes a dynamic of a text")
        return call("member", (of, Const(Kind.STRING, node.name)), Kind.DYNAMIC)

    def _index(self, of: Typed, index: Typed, at: Span) -> Typed:
        if of.kind is not Kind.DYNAMIC:
            raise wrong(f"a {of.kind} has no items", at, "parse_json(...) makes a dynamic of a text")
        if index.kind not in {Kind.STRING, Kind.DYNAMIC, *WHOLE}:
            raise wrong(f"an item is named by a number or a text, and this is {index.kind}", at)
        return call("index", (of, index), Kind.DYNAMIC)

    # ---- signs -----------------------------------------------------------------------------------------------------

    def _negative(self, of: Typed, at: Span) -> Typed:
        if of.kind not in {*NUMERIC, Kind.TIMESPAN}:
            raise wrong(f"a {of.kind} has no negative", at)
        return call("-negate", (of,), Kind.LONG if of.kind is Kind.INT else of.kind)

    def _binary(self, node: Binary) -> Typed:
        op = node.op
        if op in {"and", "or"}:
            return call(op, (self.test(node.left), self.test(node.right)), Kind.BOOL)
        if isinstance(node.left, Star):
            return self._anywhere(node)
        left, right = self.bind(node.left), self.bind(node.right)
        if op in {"+", "-", "*", "/", "%"}:
            return self._arithmetic(op, left, right, node.at)
        if op in {"==", "!=", "<", ">", "<=", ">="}:
            return self._compared(op, left, right, node.at)
        if op in {":", "like", "notlike"}:
            raise unsupported(f"`{op}` is not supported here", node.at, "has, or contains")
        if op not in SCALARS:
            raise unsupported(f"`{op}` is not supported", node.at, op.removesuffix("_cs"))
        for side, value in ((node.left, left), (node.right, right)):
            if value.kind not in {Kind.STRING, Kind.DYNAMIC}:
                raise wrong(f"`{op}` compares strings, and this is {value.kind}", side.at, "tostring(...)")
        if op == "matches_regex" and isinstance(right, Const):
            from fairlead.logs.kql.regexes import pattern

            pattern(str(right.value))
        return call(op, (convert(left, Kind.STRING), convert(right, Kind.STRING)), Kind.BOOL)

    def _anywhere(self, node: Binary) -> Typed:
        """`* has "x"`: in any column that holds text."""
        assert isinstance(node.left, Star)
        made: Typed = Const(Kind.BOOL, False)
        for column in self.columns:
            if column.kind in {Kind.STRING, Kind.DYNAMIC} and fnmatch.fnmatchcase(column.name, node.left.pattern):
                one = self.bind(Binary(node.at, node.op, Name(node.at, column.name), node.right))
                made = call("or", (made, one), Kind.BOOL)
        return made

    def _arithmetic(self, op: str, left: Typed, right: Typed, at: Span) -> Typed:
        kinds = (left.kind, right.kind)
        wide = widest(kinds)
        if wide:
            name = {Kind.REAL: "real", Kind.DECIMAL: "decimal"}.get(wide, "int")
            kind = wide if wide not in WHOLE else Kind.LONG
            return call(op + name, (widened(left, kind), widened(right, kind)), kind)
        found = _TIMES.get((op, _family(left.kind), _family(right.kind)))
        if found:
            name, kind, swap = found
            args = (right, left) if swap else (left, right)
            if name.endswith("real"):
                args = (args[0], widened(args[1], Kind.REAL))
            return call(name, args, kind)
        hint = "strcat(...)" if Kind.STRING in kinds and op == "+" else ""
        if Kind.DYNAMIC in kinds:
            other = kinds[0] if kinds[1] is Kind.DYNAMIC else kinds[1]
            target = other if other is not Kind.DYNAMIC else Kind.LONG
            if other is not Kind.DYNAMIC and (other in NUMERIC or other in {Kind.TIMESPAN, Kind.DATETIME}):
                number = Kind.REAL if other in NUMERIC else target
                one, two = (convert(v, number) if v.kind is Kind.DYNAMIC else v for v in (left, right))
                return self._arithmetic(op, one, two, at)
            hint = "todouble(...) or tolong(...) of what is dynamic"
        raise wrong(f"`{op}` does not take {kinds[0]} and {kinds[1]}", at, hint)

    def _compared(self, op: str, left: Typed, right: Typed, at: Span) -> Typed:
        left, right = self._comparable(left, right, at, op)
        if left.kind is Kind.DYNAMIC:
            if op in {"==", "!="}:
                raise wrong(f"`{op}` does not take two dynamic values", at, "tostring(...) or tolong(...) of both")
            raise wrong(f"`{op}` does not take dynamic values", at, "tolong(...), todouble(...) or tostring(...)")
        return call(op, (left, right), Kind.BOOL)

    def _comparable(self, left: Typed, right: Typed, at: Span, op: str) -> tuple[Typed, Typed]:
        """Both sides as one kind."""
        if left.kind is right.kind:
            return left, right
        wide = widest((left.kind, right.kind))
        if wide:
            return widened(left, wide), widened(right, wide)
        if left.kind is Kind.DYNAMIC:
            return convert(left, right.kind), right
        if right.kind is Kind.DYNAMIC:
            return left, convert(right, left.kind)
        if {left.kind, right.kind} == {Kind.BOOL, Kind.LONG} or {left.kind, right.kind} == {Kind.BOOL, Kind.INT}:
            return convert(left, Kind.LONG), convert(right, Kind.LONG)
        if {left.kind, right.kind} == {Kind.GUID, Kind.STRING}:
            return convert(left, Kind.STRING), convert(right, Kind.STRING)
        to = left.kind if left.kind is not Kind.STRING else right.kind
        raise wrong(f"`{op}` does not take {left.kind} and {right.kind}", at, f"to{to}(...)")

    def _among(self, node: Among) -> Typed:
        left = self.bind(node.left)
        if node.op.endswith("between"):
            low, high = (self.bind(item) for item in node.items)
            if left.kind is Kind.DATETIME and high.kind is Kind.TIMESPAN:
                high = self._arithmetic("+", low, high, node.at)
            left, low = self._comparable(left, low, node.at, "between")
            left, high = self._comparable(left, high, node.at, "between")
            left, low = self._comparable(left, low, node.at, "between")
            return call(node.op, (left, low, high), Kind.BOOL)
        negated = node.op.startswith("!")
        op = node.op.lstrip("!")
        items = self._items(node, left.kind)
        if op in {"has_any", "has_all"}:
            made = call(op, (convert(left, Kind.STRING), items), Kind.BOOL)
            return call("not", (made,), Kind.BOOL) if negated else made
        if op == "in~":
            left = convert(left, Kind.STRING)
        if isinstance(items, Const):
            values = items.value or []
            if op == "in~":
                values = [v.lower() for v in values if isinstance(v, str)]
            return Contains(Kind.BOOL, left, frozenset(hashable(v) for v in values), op == "in~", negated)
        made = call("among" if op == "in" else "among~", (left, items), Kind.BOOL)
        return call("not", (made,), Kind.BOOL) if negated else made

    def _items(self, node: Among, kind: Kind) -> Typed:
        """What stands in the parentheses, as one array."""
        values: list[Any] = []
        typed: list[Typed] = []
        for item in node.items:
            listed = self.world.list_of(item, self.names) if len(node.items) == 1 else None
            if listed is not None:
                return Const(Kind.DYNAMIC, listed[0])
            value = self.bind(item)
            if value.kind is Kind.DYNAMIC and isinstance(value, Const):
                values.extend(value.value if isinstance(value.value, list) else [value.value])
                typed.append(value)
                continue
            if value.kind is Kind.DYNAMIC:
                if len(node.items) == 1:
                    return value
                value = convert(value, kind)
            elif kind is not Kind.DYNAMIC and node.op.lstrip("!") in {"in", "in~"}:
                value, _ = self._comparable(value, Const(kind, None), item.at, node.op)
            typed.append(value)
            if isinstance(value, Const):
                values.append(value.value)
        if all(isinstance(value, Const) for value in typed):
            return Const(Kind.DYNAMIC, values)
        return call("pack_array", tuple(typed), Kind.DYNAMIC)

    # ---- calls -----------------------------------------------------------------------------------------------------

    def _call(self, node: Call) -> Typed:
        name = node.name
        if node.on is not None:
            raise unsupported("other clusters and databases are not supported: there is one store", node.at)
        if name in self.names and not isinstance(self.names[name], Typed):
            made = self.world.called(self.names[name], node, self._arguments(node))
            if isinstance(made, Typed):
                return made
            raise wrong(f"`{name}` gives a table, and a value is needed here", node.at, f"toscalar({name}(...))")
        special: Callable[[Call], Typed] | None = getattr(self, f"_do_{name}", None)
        if special:
            return special(node)
        if name in WINDOWS:
            return self._window(node)
        if self.gathered is not None and (name in AGGREGATES or name == "percentile"):
            return self._aggregate(node)
        if name in SCALARS and SCALARS[name].family not in {"operators", "inner"}:
            return self._scalar(SCALARS[name], node)
        if name in AGGREGATES or name in SPECIAL:
            raise wrong(f"{name}() looks at many rows", node.at, "summarize " + name + "(...)")
        from fairlead.logs.kql.catalogue import REFUSED_FUNCTIONS

        if name in REFUSED_FUNCTIONS:
            raise unsupported(f"{name}() is not supported", node.at, REFUSED_FUNCTIONS[name])
        known = (
            [n for n, f in SCALARS.items() if f.family not in {"operators", "inner"}] + list(AGGREGATES) + list(WINDOWS)
        )
        raise unknown(
            f"no function `{name}`", Span(node.at.start, node.at.start + len(name)), did_you_mean(name, known)
        )

    def _arguments(self, node: Call) -> list[Any]:
        """Of a `let`'s function: values, and tables where names or queries of tables stand."""
        found: list[Any] = []
        for arg in node.args:
            value = arg.value if isinstance(arg, Named) else arg
            found.append(self.world.relation(value, self.names) if self._tabular(value) else self.bind(value))
        return found

    def _tabular(self, node: Node) -> bool:
        if isinstance(node, Pipe | Step | Datatable):
            return True
        if isinstance(node, Name) and node.name not in self.places:
            found = self.names.get(node.name)
            return self.world.is_tabular(found) if found is not None else self.world.table_exists(node.name)
        return False

    def _scalar(self, fn: Scalar, node: Call) -> Typed:
        args = list(node.args)
        if args and isinstance(args[-1], TypeOf):
            kind = NAMES[args.pop().kinds[0]]  # type: ignore[attr-defined]
            return convert(self._applied(fn, node, args), kind)
        return self._applied(fn, node, args)

    def _applied(self, fn: Scalar, node: Call, nodes: list[Node]) -> Typed:
        few, many = fn.bounds()
        values = [self.bind(arg) for arg in nodes]
        if not few - ("typeof" in str(fn.params)) <= len(values) <= many:
            wanted = f"{few}" if few == many else f"{few} to {many}" if many < MANY else f"at least {few}"
            raise wrong(f"{fn.name}() takes {wanted} arguments, and these are {len(values)}", node.at)
        if fn.name == "case":
            if len(values) % 2 == 0:
                raise wrong("case() takes pairs of a test and a value, and one more value", node.at)
            tests = [self.test(nodes[i]) for i in range(0, len(nodes) - 1, 2)]
            chosen = self._alike([values[i] for i in range(1, len(values), 2)] + [values[-1]], node)
            args = [part for pair in zip(tests, chosen[:-1], strict=True) for part in pair] + [chosen[-1]]
            return call("case", tuple(args), chosen[-1].kind)
        alike = [place for place in range(len(values)) if fn.param(place) == "common"]
        if alike:
            for place, value in zip(alike, self._alike([values[p] for p in alike], node), strict=True):
                values[place] = value
        made = []
        for place, (arg, value) in enumerate(zip(nodes, values, strict=True)):
            sort = fn.param(place)
            if not accepts(sort, value.kind) and sort != "dynamic_or_string":
                kind = {"whole": "long", "array": "dynamic", "bag": "dynamic", "number": "double"}.get(sort, sort)
                raise wrong(f"{fn.name}() takes {sort} here, and this is {value.kind}", arg.at, f"to{kind}(...)")
            made.append(fitted(sort, value))
        if fn.name in {"extract", "extract_all", "replace_regex", "matches_regex"} or "regex" in fn.name:
            self._checked_patterns(fn, made, node)
        if fn.name in {"format_datetime", "format_timespan"} and isinstance(made[1], Const):
            self._checked_form(fn.name, made[1], nodes[1])
        return call(fn.name, tuple(made), self._gives(fn, made, node))

    def _checked_form(self, name: str, form: Const, node: Node) -> None:
        from fairlead.logs.kql.times import format_datetime, format_timespan

        if (format_datetime if name == "format_datetime" else format_timespan)(0, str(form.value)) is None:
            raise wrong(f"{name}() knows no such form", node.at, "yyyy-MM-dd HH:mm:ss.fffffff")

    def _checked_patterns(self, fn: Scalar, args: list[Typed], node: Call) -> None:
        from fairlead.logs.kql.regexes import pattern

        place = 0 if fn.name in {"extract", "extract_all", "extractall"} else 1
        if fn.name != "regex_quote" and place < len(args) and isinstance(args[place], Const):
            found = pattern(str(args[place].value))  # type: ignore[attr-defined]
            if fn.name in {"extract_all", "extractall"} and not found.groups:
                raise wrong(f"the pattern of {fn.name}() has at least one group", node.at, "(...)")

    def _alike(self, values: list[Typed], node: Call) -> list[Typed]:
        """Values of one kind, so that any of them can be the answer."""
        kind = common(values)
        if kind is None:
            kinds = ", ".join(sorted({str(v.kind) for v in values}))
            raise wrong(
                f"{node.name}() chooses between values of one kind, and these are {kinds}", node.at, "tostring(...)"
            )
        return [widened(value, kind) for value in values]

    def _gives(self, fn: Scalar, args: list[Typed], node: Call) -> Kind:
        match fn.gives:
            case "same":
                return args[0].kind
            case "same_long":
                return Kind.LONG if args[0].kind is Kind.INT else args[0].kind
            case "common":
                return args[-1].kind
            case "bin":
                return self._bin_kind(args, node)
            case kind:
                return Kind(kind)

    def _bin_kind(self, args: list[Typed], node: Call) -> Kind:
        wide = widest(tuple(arg.kind for arg in args))
        if wide:
            return wide
        if args[0].kind in {Kind.DATETIME, Kind.TIMESPAN} and args[1].kind is Kind.TIMESPAN:
            return args[0].kind
        raise wrong(f"{node.name}() does not take {args[0].kind} and {args[1].kind}", node.at, "a timespan such as 1h")

    def _aggregate(self, node: Call) -> Typed:
        assert self.gathered is not None
        inside = Binder(self.world, self.columns, self.names, table=self.table)
        if node.name == "percentile":
            return self._percentile(node, inside)
        found = AGGREGATES[node.name]
        few, many = found.bounds()
        if not few <= len(node.args) <= many:
            raise wrong(f"{node.name}() takes {few} to {many} arguments, and these are {len(node.args)}", node.at)
        args: list[Typed] = []
        constants: list[Any] = []
        plain = many - found.constants
        for place, arg in enumerate(node.args):
            value = inside.bind(arg)
            if place >= plain:
                constants.append(const_of(value, arg.at, "this argument"))
                continue
            sort = found.param(place)
            takes = (
                value.kind in {*NUMERIC, Kind.TIMESPAN, Kind.DATETIME, Kind.DYNAMIC, Kind.BOOL}
                if sort == "summing"
                else accepts(sort, value.kind)
            )
            if not takes:
                raise wrong(f"{node.name}() does not take {value.kind}", arg.at, "tolong(...) or todouble(...)")
            args.append(value if sort == "summing" else fitted(sort, value))
        return self.gathered.column(found, tuple(args), tuple(constants), self._aggregated(found, args))

    def _percentile(self, node: Call, inside: Binder) -> Typed:
        from fairlead.logs.kql.functions.aggregates import Percentiles

        assert self.gathered is not None
        if len(node.args) != 2:
            raise wrong("percentile() takes an expression and a percentile", node.at)
        value = inside.bind(node.args[0])
        percent = inside.constant(node.args[1], "the percentile")
        found = Aggregate("percentile", lambda kinds, p: _First(Percentiles(kinds, p)), (), "same", "percentile", 1)
        return self.gathered.column(found, (value,), (percent,), value.kind)

    def _aggregated(self, found: Aggregate, args: list[Typed]) -> Kind:
        match found.gives:
            case "same":
                return args[0].kind
            case "sum":
                kind = args[0].kind
                return Kind.LONG if kind in WHOLE or kind is Kind.BOOL else Kind.REAL if kind is Kind.DYNAMIC else kind
            case "avg":
                kind = args[0].kind
                return kind if kind in {Kind.DATETIME, Kind.TIMESPAN, Kind.DECIMAL} else Kind.REAL
            case kind:
                return Kind(kind)

    def _window(self, node: Call) -> Typed:
        few, many = WINDOWS[node.name]
        if not few <= len(node.args) <= many:
            raise wrong(f"{node.name}() takes {few} to {many} arguments", node.at)
        args = tuple(self.bind(arg) for arg in node.args)
        if node.name in {"prev", "next"}:
            for arg, value in zip(node.args[1:], args[1:], strict=True):
                const_of(value, arg.at, f"this argument of {node.name}()")
        self.windows = True
        if node.name.startswith("row_") and node.name not in {"row_cumsum", "row_window_session"}:
            kind = Kind.LONG
        else:
            kind = args[0].kind
            if node.name == "row_cumsum" and kind is Kind.INT:
                kind = Kind.LONG
        return Window(kind, node.name, args)

    # ---- calls with rules of their own -----------------------------------------------------------------------------

    def _do_now(self, node: Call) -> Typed:
        shift = self.constant(node.args[0], "the shift of now()") if node.args else 0
        return Const(Kind.DATETIME, self.world.now + shift)

    def _do_ago(self, node: Call) -> Typed:
        if len(node.args) != 1:
            raise wrong("ago() takes a timespan", node.at)
        back = self.bind(node.args[0])
        if back.kind is not Kind.TIMESPAN:
            raise wrong(f"ago() takes a timespan, and this is {back.kind}", node.args[0].at, "ago(1h)")
        return call("datetime-timespan", (Const(Kind.DATETIME, self.world.now), back), Kind.DATETIME)

    def _do_toscalar(self, node: Call) -> Typed:
        if len(node.args) != 1:
            raise wrong("toscalar() takes one query", node.at)
        return self.world.scalar_of(node.args[0], self.names)

    def _do_column_ifexists(self, node: Call) -> Typed:
        if len(node.args) != 2:
            raise wrong("column_ifexists() takes a name and a value", node.at)
        name = self.constant(node.args[0], "the name of the column")
        return self._name(name, node.at) if name in self.places else self.bind(node.args[1])

    _do_columnifexists = _do_column_ifexists

    def _do_pack_all(self, node: Call) -> Typed:
        skip = bool(node.args) and bool(self.constant(node.args[0], "this flag"))
        args: list[Typed] = []
        for place, column in enumerate(self.columns):
            args += [Const(Kind.STRING, column.name), Col(column.kind, place, column.name)]
        made = call("bag_pack", tuple(args), Kind.DYNAMIC)
        return call("_without_empty", (made,), Kind.DYNAMIC) if skip else made

    def _do_bag_pack_columns(self, node: Call) -> Typed:
        args: list[Typed] = []
        for arg in node.args:
            if not isinstance(arg, Name):
                raise wrong("bag_pack_columns() takes names of columns", arg.at)
            args += [Const(Kind.STRING, arg.name), self.bind(arg)]
        return call("bag_pack", tuple(args), Kind.DYNAMIC)

    def _do_ingestion_time(self, node: Call) -> Typed:
        if "IngestTime" in self.places:
            return self._name("IngestTime", node.at)
        return Const(Kind.DATETIME, None)

    def _do_iff(self, node: Call) -> Typed:
        if len(node.args) != 3:
            raise wrong("iff() takes a test and two values", node.at)
        test = self.test(node.args[0])
        yes, no = self._alike([self.bind(arg) for arg in node.args[1:]], node)
        return call("iff", (test, yes, no), yes.kind)

    _do_iif = _do_iff


class _First:
    """The only percentile of one."""

    def __init__(self, all_of_them: Any) -> None:
        self.all = all_of_them
        self.add = all_of_them.add

    def result(self) -> Any:
        return self.all.result()[0]


def widened(value: Typed, kind: Kind) -> Typed:
    """A value as a wider kind, without a word in the query."""
    if value.kind is kind:
        return value
    if isinstance(value, Const):
        return Const(kind, widen(value.value, value.kind, kind))
    if kind is Kind.DYNAMIC:
        return call("parse_json", (value,), kind) if value.kind is not Kind.STRING else Apply(kind, _TEXT, (value,))
    return convert(value, kind)


_TEXT = Scalar("_text", lambda value: value, (), "dynamic", "inner")
SCALARS["_without_empty"] = Scalar(
    "_without_empty", lambda bag: {k: v for k, v in bag.items() if v is not None and v != ""}, (), "dynamic", "inner"
)


def _family(kind: Kind) -> str:
    return "int" if kind in WHOLE else "real" if kind in {Kind.REAL, Kind.DECIMAL} else str(kind)


_SPAN, _TIME = Kind.TIMESPAN, Kind.DATETIME
_TIMES: dict[tuple[str, str, str], tuple[str, Kind, bool]] = {
    ("+", "datetime", "timespan"): ("datetime+timespan", _TIME, False),
    ("+", "timespan", "datetime"): ("datetime+timespan", _TIME, True),
    ("-", "datetime", "timespan"): ("datetime-timespan", _TIME, False),
    ("-", "datetime", "datetime"): ("datetime-datetime", _SPAN, False),
    ("+", "timespan", "timespan"): ("timespan+timespan", _SPAN, False),
    ("-", "timespan", "timespan"): ("timespan-timespan", _SPAN, False),
    ("*", "timespan", "real"): ("timespan*real", _SPAN, False),
    ("*", "real", "timespan"): ("timespan*real", _SPAN, True),
    ("*", "timespan", "int"): ("timespan*int", _SPAN, False),
    ("*", "int", "timespan"): ("timespan*int", _SPAN, True),
    ("/", "timespan", "real"): ("timespan/real", _SPAN, False),
    ("/", "timespan", "int"): ("timespan/real", _SPAN, False),
    ("/", "timespan", "timespan"): ("timespan/timespan", Kind.REAL, False),
    ("%", "timespan", "timespan"): ("timespan%timespan", _SPAN, False),
}
"""Arithmetic of times: the function, what it gives, whether the sides change places."""

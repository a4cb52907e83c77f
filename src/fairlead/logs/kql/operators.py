"""The grammar of operators: what may stand behind `|`.

An operator is one method that reads what follows its name, found in the table OPERATORS by that name. The docs list
what that table lists, so an operator is known in one place.

Must not know: types, tables, functions, statements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fairlead.base.suggest import did_you_mean
from fairlead.logs.kql.expressions import Expressions
from fairlead.logs.kql.problems import Refused, Span, syntax, unsupported
from fairlead.logs.kql.tree import Binary, Call, Literal, Name, Named, Node, Order, Parameter, Pipe, Star, Step

Has = dict[str, Any]


class Operators(Expressions):
    """Reads operators; queries are read by whoever has sources."""

    def operator(self) -> Step:
        token = self.now
        word = self.dashed()
        read = OPERATORS.get(word)
        if read is None:
            if word in REFUSED:
                raise unsupported(f"the operator `{word}` is not supported", token.at, REFUSED[word])
            if token.sort != "name":
                raise syntax(f"expected an operator behind `|`, found {self.shown()}", token.at)
            end = Span(token.at.start, token.at.start + len(word))
            raise Refused("kql/unknown-name", f"no operator `{word}`", end, did_you_mean(word, OPERATORS))
        for _ in range(1 + 2 * word.count("-")):
            self.step()
        has = read(self)
        return Step(self.since(token.at), ALIASES.get(word, word), has)

    # ---- operators -------------------------------------------------------------------------------------------------

    def op_where(self) -> Has:
        self.settings(())
        return {"test": self.expression()}

    def op_items(self) -> Has:
        return {"items": [] if self.now.sort == "end" else self.listed(self.maybe_named, ("|", ";", ")", "}"))}

    def op_patterns(self) -> Has:
        def pattern() -> Node:
            value = self.expression()
            if not isinstance(value, Name | Star):
                raise syntax("expected the name of a column, or a pattern such as `a*`", value.at)
            return value

        return {"items": self.listed(pattern)}

    def op_reorder(self) -> Has:
        def item() -> tuple[Node, str]:
            value = self.expression()
            order = self.dashed()
            if order in {"asc", "desc", "granny-asc", "granny-desc"}:
                for _ in range(1 + 2 * order.count("-")):
                    self.step()
                return value, order
            return value, ""

        return {"items": self.listed(item)}

    def op_count(self) -> Has:
        return {"name": self.name() if self.take("as") else "Count"}

    def op_number(self) -> Has:
        return {"num": self.expression()}

    def op_sort(self) -> Has:
        self.settings(())
        self.need("by")
        return {"keys": self.listed(self.order)}

    def order(self) -> Order:
        start = self.now.at
        value = self.expression()
        ascending = False
        if self.take("asc"):
            ascending = True
        else:
            self.take("desc")
        nulls_first = ascending
        if self.take("nulls"):
            if not self.at("first", "last"):
                raise syntax(f"expected `first` or `last`, found {self.shown()}", self.now.at)
            nulls_first = self.step().text == "first"
        return Order(self.since(start), value, ascending, nulls_first)

    def op_top(self) -> Has:
        num = self.expression()
        self.need("by")
        return {"num": num, "keys": self.listed(self.order)}

    def op_summarize(self) -> Has:
        self.settings(())
        items = [] if self.at("by") else self.listed(self.maybe_named, ("by",))
        keys = self.listed(self.maybe_named) if self.take("by") else []
        return {"items": items, "keys": keys}

    def op_join(self) -> Has:
        said = self.settings(("kind",))
        right = self._table()
        self.need("on", "and what the sides share")
        conditions: list[Node] = []
        for condition in self.listed(self.expression):
            conditions.extend(_conjuncts(condition))
        return {"kind": said.get("kind", ""), "right": right, "on": conditions}

    def _table(self) -> Node:
        """The other side of a join, or a leg of a union: a name, a pattern, a call, a query in parentheses."""
        if self.at("("):
            self.step()
            inner = self.query_or_expression()
            self.need(")")
            return inner
        return self._postfix()

    def op_union(self) -> Has:
        said = self.settings(("kind", "withsource", "with_source", "isfuzzy"))
        legs = self.listed(self._table)
        return said | {"legs": legs}

    def op_distinct(self) -> Has:
        self.settings(())
        return {"items": self.listed(self.maybe_named)}

    def op_parse(self) -> Has:
        said = self.settings(("kind", "flags"))
        value = self.expression()
        self.need("with")
        parts: list[Any] = []
        while not self.at("|", ";", ")", "}") and self.now.sort != "end":
            if self.take("*"):
                parts.append(None)
            elif self.now.sort == "text":
                parts.append(str(self.step().value))
            else:
                if parts and isinstance(parts[-1], tuple):
                    raise syntax("a column stands behind a text or `*`", self.now.at)
                name = self.name("a text, a name or `*`")
                parts.append((name, self.kind_name() if self.take(":") else "string"))
        if not any(isinstance(part, tuple) for part in parts):
            raise syntax("this pattern gives no column", value.at)
        return said | {"value": value, "parts": parts}

    def op_parse_kv(self) -> Has:
        value = self.expression()
        self.need("as")
        columns = self.columns()
        return {"value": value, "columns": columns, "options": self._options()}

    def _options(self) -> dict[str, Any]:
        """`with (a = 1, b = "x")`"""
        found: dict[str, Any] = {}
        if self.take("with"):
            self.need("(")
            found = dict(self.listed(self._option, (")",)))
            self.need(")")
        return found

    def _option(self) -> tuple[str, Any]:
        name = self.name()
        self.need("=")
        if self.now.sort in {"text", "value"} or self.at("true", "false", "-"):
            value = self.expression()
            return name, value.value if isinstance(value, Literal) else value
        words = [self.name()]
        while name in {"ycolumns", "series", "anomalycolumns"} and self.at(",") and self.ahead(2).text != "=":
            self.step()
            words.append(self.name())
        return name, words if len(words) > 1 else words[0]

    def op_expand(self) -> Has:
        said = self.settings(("bagexpansion", "with_itemindex", "kind"))
        has: Has = dict(said)
        has["items"] = self.listed(self._expanded)
        has["limit"] = self.number("a number of rows") if self.take("limit") else None
        return has

    def _expanded(self) -> tuple[Node, str | None]:
        value = self.maybe_named()
        if self.take("to"):
            return value, self.type_of().kinds[0]
        return value, None

    def op_apply(self) -> Has:
        has = self.op_expand()
        if self.take("id"):
            self.expression()
        self.need("on")
        self.need("(")
        start = self.now.at
        has["body"] = Pipe(start, Name(start, ""), tuple(self._sub()))
        self.need(")")
        return has

    def _sub(self) -> list[Step]:
        """The operators of a sub-query whose source is what is at hand."""
        steps = [self.operator()]
        while self.take("|"):
            steps.append(self.operator())
        return steps

    def op_make_series(self) -> Has:
        has: Has = dict(self.settings(("kind",)))
        has["items"] = self.listed(self._aggregate_with_default)
        self.need("on")
        has["axis"] = self._axis()
        if self.take("in"):
            bounds = self.expression()
            if not isinstance(bounds, Call) or bounds.name != "range" or len(bounds.args) != 3:
                raise syntax("expected range(from, to, step)", bounds.at)
            has["from"], has["to"], has["step"] = bounds.args
            has["inclusive"] = True
        else:
            for word in ("from", "to"):
                has[word] = self.expression() if self.take(word) else None
            self.need("step")
            has["step"] = self.expression()
        has["keys"] = self.listed(self.maybe_named) if self.take("by") else []
        return has

    def _axis(self) -> Node:
        """Above the level of `in`, which says something else here."""
        if self.now.sort == "name" and self.ahead().text == "=":
            start = self.now.at
            name = self.name()
            self.step()
            return Named(self.since(start), (name,), self._level(3))
        return self._level(3)

    def _aggregate_with_default(self) -> tuple[Node, Node | None]:
        item = self.maybe_named()
        if self.at("default") and self.ahead().text == "=":
            self.step()
            self.step()
            return item, self.expression()
        return item, None

    def op_evaluate(self) -> Has:
        self.settings(())
        call = self.expression()
        if not isinstance(call, Call):
            raise syntax("expected a plugin and its arguments", call.at)
        if not self.take(":"):
            return {"call": call, "columns": None}
        self.need("(")
        found = self.listed(lambda: None if self.take("*") else self.column(), (")",))
        self.need(")")
        return {"call": call, "columns": [column for column in found if column], "star": None in found}

    def op_render(self) -> Has:
        kind = self.name("the kind of a chart")
        options = self._options()
        while self.now.sort == "name" and self.ahead().text == "=":
            name, value = self._option()
            options[name] = value
        return {"kind": kind, "options": options}

    def op_as(self) -> Has:
        self.settings(())
        return {"name": self.name()}

    def op_nothing(self) -> Has:
        return {}

    def op_of(self) -> Has:
        num = self.expression()
        self.need("of")
        value = self.maybe_named()
        by = self.expression() if self.take("by") else None
        return {"num": num, "value": value, "by": by}

    def op_top_nested(self) -> Has:
        levels: list[Has] = []
        while True:
            level: Has = {"num": None if self.at("of") else self.expression()}
            self.need("of")
            level["value"] = self.maybe_named()
            level["others"] = None
            if self.take("with"):
                self.need("others")
                self.need("=")
                level["others"] = self.expression()
            self.need("by")
            by = self.maybe_named()
            level["by"] = by
            level["ascending"] = bool(self.take("asc")) or (self.take("desc") is not None and False)
            levels.append(level)
            if not self.take(","):
                return {"levels": levels}
            if self.dashed() != "top-nested":
                raise syntax(f"expected `top-nested`, found {self.shown()}", self.now.at)
            for _ in range(3):
                self.step()

    def op_search(self) -> Has:
        has: Has = dict(self.settings(("kind",)))
        has["tables"] = None
        if self.at("in") and self.ahead().text == "(":
            self.step()
            self.step()
            has["tables"] = self.listed(self._table, (")",))
            self.need(")")
        self.colon_is_operator = True
        try:
            has["test"] = self.expression()
        finally:
            self.colon_is_operator = False
        return has

    def op_reduce(self) -> Has:
        has: Has = dict(self.settings(("kind",)))
        self.need("by")
        has["value"] = self.expression()
        has["options"] = {}
        if self.take("with"):
            has["options"] = dict(self.listed(self._option))
        return has

    def op_partition(self) -> Has:
        self.settings(())
        self.need("by")
        by = Name(self.now.at, self.name("a column"))
        close = {"(": ")", "{": "}"}.get(self.now.text, "")
        if not close:
            raise syntax(f"expected a sub-query in parentheses, found {self.shown()}", self.now.at)
        start = self.step().at
        body = Pipe(start, Name(start, ""), tuple(self._sub()))
        self.need(close)
        return {"by": by, "body": body}

    def op_scan(self) -> Has:
        has: Has = dict(self.settings(("with_match_id",)))
        has["declared"] = []
        if self.take("declare"):
            self.need("(")
            has["declared"] = self.listed(self.parameter, (")",))
            self.need(")")
        self.need("with")
        self.need("(")
        has["steps"] = []
        while not self.take(")"):
            has["steps"].append(self._scan_step())
            self.take(";")
        return has

    def _scan_step(self) -> Has:
        start = self.need("step").at
        name = self.name("the name of the step")
        said = {}
        optional = bool(self.take("optional"))
        if self.at("output"):
            said = self.settings(("output",))
        self.need(":")
        test = self.expression()
        sets = self.listed(self.maybe_named) if self.take("=>") else []
        return {"name": name, "test": test, "sets": sets, "at": start, "optional": optional} | said

    def op_invoke(self) -> Has:
        call = self.expression()
        if not isinstance(call, Call):
            raise syntax("expected a function and its arguments", call.at)
        return {"call": call}

    def parameter(self) -> Parameter:
        start = self.now.at
        name = self.name("the name of a parameter")
        self.need(":", "and a type")
        if self.take("("):
            columns: tuple[tuple[str, str], ...] | None = None
            if not self.take("*"):
                columns = tuple(self.listed(self.column, (")",)))
            self.need(")")
            return Parameter(self.since(start), name, "table", columns)
        kind = self.kind_name()
        default = self.expression() if self.take("=") else None
        return Parameter(self.since(start), name, kind, default=default)


def _conjuncts(node: Node) -> list[Node]:
    if isinstance(node, Binary) and node.op == "and":
        return _conjuncts(node.left) + _conjuncts(node.right)
    return [node]


OPERATORS: dict[str, Callable[[Operators], Has]] = {
    "as": Operators.op_as,
    "consume": Operators.op_nothing,
    "count": Operators.op_count,
    "distinct": Operators.op_distinct,
    "evaluate": Operators.op_evaluate,
    "extend": Operators.op_items,
    "filter": Operators.op_where,
    "getschema": Operators.op_nothing,
    "invoke": Operators.op_invoke,
    "join": Operators.op_join,
    "limit": Operators.op_number,
    "lookup": Operators.op_join,
    "make-series": Operators.op_make_series,
    "mv-apply": Operators.op_apply,
    "mv-expand": Operators.op_expand,
    "mvexpand": Operators.op_expand,
    "order": Operators.op_sort,
    "parse": Operators.op_parse,
    "parse-kv": Operators.op_parse_kv,
    "parse-where": Operators.op_parse,
    "partition": Operators.op_partition,
    "project": Operators.op_items,
    "project-away": Operators.op_patterns,
    "project-keep": Operators.op_patterns,
    "project-rename": Operators.op_items,
    "project-reorder": Operators.op_reorder,
    "reduce": Operators.op_reduce,
    "render": Operators.op_render,
    "sample": Operators.op_number,
    "sample-distinct": Operators.op_of,
    "scan": Operators.op_scan,
    "search": Operators.op_search,
    "serialize": Operators.op_items,
    "sort": Operators.op_sort,
    "summarize": Operators.op_summarize,
    "take": Operators.op_number,
    "top": Operators.op_top,
    "top-hitters": Operators.op_of,
    "top-nested": Operators.op_top_nested,
    "union": Operators.op_union,
    "where": Operators.op_where,
}
"""What may stand behind `|`."""

ALIASES = {"filter": "where", "order": "sort", "limit": "take", "mvexpand": "mv-expand"}

REFUSED = {
    "assert-schema": "getschema shows the columns",
    "execute-and-cache": "let T = materialize(...)",
    "facet": "one `summarize count() by` a column",
    "find": 'search in (T1, T2) "text", or union withsource=',
    "fork": "one query each",
    "graph-mark-components": "join",
    "graph-match": "join",
    "graph-shortest-paths": "join",
    "graph-to-table": "join",
    "graph-where-edges": "join",
    "graph-where-nodes": "join",
    "macro-expand": "union",
    "make-graph": "join",
}
"""Operators of KQL that are refused, and what comes nearest."""

"""The grammar of queries: statements, sources and operators.

An operator is one method that reads what follows its name, found in the table OPERATORS by that name. The docs list
what that table lists, so an operator is known in one place.

Must not know: types, tables, functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fairlead.base.suggest import did_you_mean
from fairlead.logs.kql.expressions import Expressions
from fairlead.logs.kql.problems import Refused, Span, syntax, unsupported
from fairlead.logs.kql.tree import (
    Binary,
    Call,
    Datatable,
    Function,
    Let,
    Literal,
    Name,
    Named,
    Node,
    Order,
    Parameter,
    Pipe,
    Query,
    Star,
    Step,
)

Has = dict[str, Any]


def parse(text: str) -> Query:
    """The tree of a query. Raises Refused."""
    parser = Parser(text)
    query = parser.statements("end")
    if not any(not isinstance(s, Let | Parameter) for s in query.statements):
        raise syntax("here is no query: after its statements it needs a table or an operator", parser.now.at)
    return query


class Parser(Expressions):
    """Reads one text."""

    # ---- statements ------------------------------------------------------------------------------------------------

    def statements(self, end: str) -> Query:
        start = self.now.at
        found: list[Node] = []
        while True:
            while self.take(";"):
                pass
            if self.now.sort == "end" or self.at(end):
                break
            found.extend(self.statement())
            if not self.at(";", end) and self.now.sort != "end":
                raise syntax(f"expected `|`, `;` or the end, found {self.shown()}", self.now.at)
        if not found:
            raise syntax("this query is empty", start)
        return Query(self.since(start), tuple(found))

    def statement(self) -> list[Node]:
        token = self.now
        after = self.ahead()
        if token.text == "let" and token.sort == "name" and (after.sort == "name" or after.text == "["):
            return [self._let()]
        if token.sort == "name" and after.sort == "name":
            if token.text == "declare" and after.text == "query_parameters":
                return self._declared()
            if token.text in {"set", "alias", "restrict", "declare"}:
                raise self.refuse(f"the statement `{token.text}`", token.at.to(after.at), "leave it out")
        if token.sort == "op" and token.text == ".":
            raise self.refuse("a management command", token.at)
        return [self.query_or_expression()]

    def _let(self) -> Let:
        start = self.need("let").at
        name = self.name("a name for `let`")
        self.need("=")
        if self.at("view") and self.ahead().text == "(":
            self.step()
            value: Node = self._function(view=True)
        elif self.at("(") and self._is_function():
            value = self._function()
        else:
            value = self.query_or_expression()
        return Let(self.since(start), name, value)

    def _is_function(self) -> bool:
        """Whether the parentheses here are followed by a body in braces."""
        depth, num = 0, 0
        while self.ahead(num).sort != "end":
            token = self.ahead(num)
            if token.sort == "op":
                depth += (token.text in "([{") - (token.text in ")]}")
            num += 1
            if depth == 0:
                return self.ahead(num).text == "{" and self.ahead(num).sort == "op"
        return False

    def _function(self, *, view: bool = False) -> Function:
        start = self.need("(").at
        parameters = self.listed(self._parameter, (")",))
        self.need(")")
        self.need("{")
        body = self.statements("}")
        self.need("}")
        return Function(self.since(start), tuple(parameters), body, view)

    def _parameter(self) -> Parameter:
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

    def _declared(self) -> list[Node]:
        self.step()
        self.step()
        self.need("(")
        found: list[Node] = list(self.listed(self._parameter, (")",)))
        self.need(")")
        return found

    # ---- queries ---------------------------------------------------------------------------------------------------

    def query_or_expression(self) -> Node:
        start = self.now.at
        self.depth += 1
        if self.depth > 200:
            raise syntax("queries deeper than 200 levels are refused", start)
        source = self._source() or self.expression()
        steps: list[Step] = []
        while self.at("|"):
            self.step()
            steps.append(self._step())
        self.depth -= 1
        if steps and isinstance(source, Pipe):
            return Pipe(self.since(start), source.source, (*source.steps, *steps))
        return Pipe(self.since(start), source, tuple(steps)) if steps else source

    def _source(self) -> Node | None:
        """What can only begin a query; None where an expression begins here."""
        token, after = self.now, self.ahead()
        if token.sort != "name":
            return None
        if token.text == "datatable" and after.text == "(":
            return self._datatable()
        if token.text == "range" and (after.text == "[" or self.ahead(2).text == "from"):
            return self._bare("range", self._range())
        if token.text == "print" and after.text not in {"=", "|", ";", ")", "."}:
            return self._bare("print", {"items": self._after(lambda: self.listed(self.maybe_named))})
        if token.text in {"union", "search", "find", "evaluate"} and not (
            after.sort == "op" and after.text in {"=", "|", ";", ")", ",", "."}
        ):
            return Pipe(self.since(token.at), Name(token.at, ""), (self._step(),))
        if token.text in {"externaldata", "external_data"} and after.text == "(":
            raise self.refuse(
                "`externaldata`", token.at, "import the file with `fairlead logs import`, or use datatable(...)[...]"
            )
        return None

    def _after(self, read: Callable[[], Any]) -> Any:
        self.step()
        return read()

    def _bare(self, name: str, has: Has) -> Step:
        return Step(self.since(self.tokens[self.place - 1].at), name, has)

    def _datatable(self) -> Datatable:
        start = self.step().at
        columns = self.columns()
        self.need("[")
        values = self.listed(self.expression, ("]",))
        self.need("]")
        if not columns:
            raise syntax("a datatable has at least one column", self.since(start))
        if len(values) % len(columns):
            raise syntax(
                f"{len(values)} values do not fill rows of {len(columns)} columns",
                self.since(start),
                "add or take away values",
            )
        return Datatable(self.since(start), columns, tuple(values))

    def _range(self) -> Has:
        self.step()
        has: Has = {"name": self.name("the name of the column")}
        for word in ("from", "to", "step"):
            self.need(word, "in `range NAME from A to B step C`")
            has[word] = self.expression()
        return has

    def _step(self) -> Step:
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
        steps = [self._step()]
        while self.take("|"):
            steps.append(self._step())
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
            has["declared"] = self.listed(self._parameter, (")",))
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


def _conjuncts(node: Node) -> list[Node]:
    if isinstance(node, Binary) and node.op == "and":
        return _conjuncts(node.left) + _conjuncts(node.right)
    return [node]


OPERATORS: dict[str, Callable[[Parser], Has]] = {
    "as": Parser.op_as,
    "consume": Parser.op_nothing,
    "count": Parser.op_count,
    "distinct": Parser.op_distinct,
    "evaluate": Parser.op_evaluate,
    "extend": Parser.op_items,
    "filter": Parser.op_where,
    "getschema": Parser.op_nothing,
    "invoke": Parser.op_invoke,
    "join": Parser.op_join,
    "limit": Parser.op_number,
    "lookup": Parser.op_join,
    "make-series": Parser.op_make_series,
    "mv-apply": Parser.op_apply,
    "mv-expand": Parser.op_expand,
    "mvexpand": Parser.op_expand,
    "order": Parser.op_sort,
    "parse": Parser.op_parse,
    "parse-kv": Parser.op_parse_kv,
    "parse-where": Parser.op_parse,
    "partition": Parser.op_partition,
    "project": Parser.op_items,
    "project-away": Parser.op_patterns,
    "project-keep": Parser.op_patterns,
    "project-rename": Parser.op_items,
    "project-reorder": Parser.op_reorder,
    "reduce": Parser.op_reduce,
    "render": Parser.op_render,
    "sample": Parser.op_number,
    "sample-distinct": Parser.op_of,
    "scan": Parser.op_scan,
    "search": Parser.op_search,
    "serialize": Parser.op_items,
    "sort": Parser.op_sort,
    "summarize": Parser.op_summarize,
    "take": Parser.op_number,
    "top": Parser.op_top,
    "top-hitters": Parser.op_of,
    "top-nested": Parser.op_top_nested,
    "union": Parser.op_union,
    "where": Parser.op_where,
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

"""The grammar of queries: statements and sources.

Must not know: types, tables, functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fairlead.logs.kql.operators import Has, Operators
from fairlead.logs.kql.problems import syntax
from fairlead.logs.kql.tree import (
    Datatable,
    Function,
    Let,
    Name,
    Node,
    Parameter,
    Pipe,
    Query,
    Step,
)


def parse(text: str) -> Query:
    """The tree of a query. Raises Refused."""
    parser = Parser(text)
    query = parser.statements("end")
    if not any(not isinstance(s, Let | Parameter) for s in query.statements):
        raise syntax("here is no query: after its statements it needs a table or an operator", parser.now.at)
    return query


class Parser(Operators):
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
        parameters = self.listed(self.parameter, (")",))
        self.need(")")
        self.need("{")
        body = self.statements("}")
        self.need("}")
        return Function(self.since(start), tuple(parameters), body, view)

    def _declared(self) -> list[Node]:
        self.step()
        self.step()
        self.need("(")
        found: list[Node] = list(self.listed(self.parameter, (")",)))
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
            steps.append(self.operator())
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
            return Pipe(self.since(token.at), Name(token.at, ""), (self.operator(),))
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

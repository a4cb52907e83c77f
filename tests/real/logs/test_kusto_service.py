"""The official language service as the judge: it takes what we take, and names and types of columns are the same."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from fairlead.logs.kql.evaluate import Evaluator, NoTables
from fairlead.logs.kql.parser import parse
from fairlead.logs.kql.problems import Refused
from support.kusto import judged

pytestmark = pytest.mark.requires("kusto")

UNIT = Path(__file__).parents[2] / "unit" / "logs" / "kql"
OTHER_COLUMNS = ("bag_unpack", "pivot(", "scan ", "union kind=inner")
"""What depends on rows, which the service does not see; and where its columns are not those that the page shows."""
UNKNOWN_TO_IT = ("count(x)", "make_timespan(1,12,30,55.123)")
"""What the engine takes and this service does not: a column inside of count(), parts of seconds."""


def rules() -> list[str]:
    return [case["query"] for case in tomllib.loads((UNIT / "rules.toml").read_text(encoding="utf-8"))["case"]]


def test_our_rules_are_kql_and_have_its_columns() -> None:
    queries = [q for q in rules() if not any(word in q for word in UNKNOWN_TO_IT)]
    answers = judged(queries)
    assert len(answers) == len(queries) > 75
    for query, said in zip(queries, answers, strict=True):
        assert said["errors"] == [], query
        if any(word in query for word in OTHER_COLUMNS):
            continue
        ours = [(c.name, str(c.kind)) for c in Evaluator(NoTables()).run(parse(query)).columns]
        assert ours == [(n, "dynamic" if t.startswith("dynamic") else t) for n, t in said["columns"]], query


def test_documented_expressions_have_its_types() -> None:
    lines = (UNIT / "documented.tsv").read_text(encoding="utf-8").splitlines()
    found = [(line.split("\t")[1], line.split("\t")[2]) for line in lines]
    expressions = [pair for pair in found if pair[0] not in UNKNOWN_TO_IT]
    answers = judged([f"print x = {expression}" for expression, _ in expressions])
    wrong = [
        (expression, kind, said)
        for (expression, kind), said in zip(expressions, answers, strict=True)
        if said["errors"] or said["columns"][0][1].partition("(")[0] != kind
    ]
    assert wrong == []


WRONG = [
    "print 1 +", "print strlne(1)", "datatable(a:long)[1] | where b", "print 'a' + 'b'", "print sqrt('a')",
    "datatable(a:long)[1] | where a", "datatable(a:long)[1] | summarize sum('x')", "print 1 | join (print 2) on z",
    "datatable(a:long)[1] | extend b = sum(a)", "let f = (x:long) { x }; print f()",
    "datatable(a:dynamic)[1] | sort by a", "print substring('a')", "datatable(a:long)[1] | top by a",
    "range x from 1 to 2",
    "print hasprefix('a', 'b')", "print case(true, 1)", "print datetime(2020-01-01) + 1",
    "datatable(a:long)[1] | project-away zz", "datatable(a:long)[1] | mv-expand a", "print x:long", "T | count",
]  # fmt: skip


def test_what_it_refuses_we_refuse() -> None:
    for query, said in zip(WRONG, judged(WRONG), strict=True):
        assert said["errors"], query
        with pytest.raises(Refused):
            Evaluator(NoTables()).run(parse(query))

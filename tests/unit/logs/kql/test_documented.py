"""Values that the documentation of Kusto gives (https://learn.microsoft.com/kusto/query/PAGE), and rules it states.

`documented.tsv` holds page, expression, type and text of single values of documented examples; `rules.toml` states
rules of operators on tables of our own.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from fairlead.logs.kql import answer
from fairlead.logs.kql.faces import document
from fairlead.logs.kql.texts import text_of

HERE = Path(__file__).parent
VALUES = [line.split("\t") for line in (HERE / "documented.tsv").read_text(encoding="utf-8").splitlines()]
RULES = tomllib.loads((HERE / "rules.toml").read_text(encoding="utf-8"))["case"]


@pytest.mark.parametrize(("page", "expression", "kind", "text"), VALUES, ids=[f"{v[0]} {v[1]}" for v in VALUES])
def test_a_documented_value(page: str, expression: str, kind: str, text: str) -> None:
    found = answer(f"print x = {expression}")
    (column,), ((value,),) = found.columns, found.rows
    assert (str(column.kind), text_of(value, column.kind)) == (kind, text)


@pytest.mark.parametrize("case", RULES, ids=[f"{case['page']}: {case['about']}" for case in RULES])
def test_a_documented_rule(case: dict[str, Any]) -> None:
    found = document(answer(case["query"]))
    assert " ".join(f"{c['name']}:{c['type']}" for c in found["columns"]) == case["columns"]
    want = [[None if cell == "<null>" else cell for cell in row] for row in case["rows"]]
    assert found["rows"] == want


def test_there_are_hundreds() -> None:
    assert len(VALUES) >= 150
    assert len({page for page, *_ in VALUES}) >= 60
    assert len(RULES) >= 80

"""The tables of the fault matrix and of its peers are what their scripts make of the results beside them."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs/benchmarks"


@pytest.mark.parametrize("page", ["preflight-faults", "preflight-peers"])
def test_tables_are_made_from_the_results(page, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "bench")
    tables = runpy.run_path(str(ROOT / f"bench/{page.replace('-', '_')}.py"))["tables"]
    text = (DOCS / f"{page}.md").read_text()
    copy = tmp_path / "page.md"
    copy.write_text(text)
    results = [DOCS / f"{name}.jsonl" for name in dict.fromkeys([page, "preflight-faults"])]
    tables(*results, copy)
    assert copy.read_text() == text

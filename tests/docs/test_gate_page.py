"""The page about real clusters: every test it names is there, and every row names one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/explain/gate-on-real-clusters.md").read_text()
NAMED = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", TEXT)


@pytest.mark.parametrize(("file", "name"), sorted(set(NAMED)))
def test_it_is_there(file, name):
    assert (ROOT / file).is_file()
    assert not name or f"def {name}(" in (ROOT / file).read_text()


def test_every_row_names_a_test():
    rows = [line for line in TEXT.splitlines() if line.startswith("|") and set(line) - set("|-")]
    rows = [row for row in rows if not row.startswith(("| step |", "| cluster |"))]
    assert len(rows) > 25
    assert [row for row in rows if "tests/" not in row] == []

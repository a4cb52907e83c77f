"""The reference page is made from the catalogue and is fresh; every code the room raises is explained."""

from __future__ import annotations

import re
from pathlib import Path

from fairlead.lab.faults.catalog import KINDS
from fairlead.lab.reference import page
from fairlead.records.codes import explanations

ROOT = Path(__file__).parents[3]


def test_every_kind_and_setting_is_on_it():
    for kind in KINDS.values():
        row = next(line for line in page().splitlines() if line.startswith(f"| `{kind.name}` |"))
        assert all(f"`{name}`" in row for name in kind.settings)


def test_every_code_is_explained_and_every_explanation_is_raised():
    sources = [
        *(ROOT / "src/fairlead/lab").rglob("*.py"),
        *(ROOT / "src/fairlead/cluster").glob("*.py"),
        ROOT / "src/fairlead/cli/lab.py",
    ]
    raised = set(re.findall(r'"(lab/[a-z0-9-]+)"', "\n".join(p.read_text() for p in sources)))
    assert raised == {code for code in explanations() if code.startswith("lab/")}

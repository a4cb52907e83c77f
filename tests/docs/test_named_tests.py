"""Where a page says which test shows something, there is such a test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [page for page in (ROOT / "docs/howto").glob("*.md") if "::test_" in page.read_text("utf-8")]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_test_that_a_page_names_is_there(page):
    named = re.findall(r"`(test_\w+\.py)?::(test_\w+)`", page.read_text("utf-8"))
    assert named
    file = ""
    for said, name in named:
        file = said or file
        (found,) = (ROOT / "tests").rglob(file)
        assert f"def {name}(" in found.read_text("utf-8"), f"{file}::{name}"


def test_some_page_names_tests():
    assert PAGES

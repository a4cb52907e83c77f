"""Every path that a README beside the code names is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ROOT / "src/fairlead"
PAGES = sorted((ROOT / "src").rglob("README.md"))
PATH = re.compile(
    r"(?<![\w/.~$-])((?:[\w.*-]+/)*[\w*-]+\.(?:py|toml)|(?:[\w*-]+/){2,}|(?:tests|docs|bench|src|scripts)/[\w./*-]*\w)"
)
USERS = {"cluster.toml", "pyproject.toml"}
"""Files that a reader has, not this project."""


def named(text: str) -> list[str]:
    """Paths in code spans; what holds blanks is a call, and what begins with a slash is on a node."""
    spans = [span for span in re.findall(r"`([^`\n]+)`", text) if not re.search(r"[\s=<>{}:]|^/|^~|://", span)]
    links = re.findall(r"\]\((?!https?:)([^)#\s]+)", text)
    return [span for span in spans if PATH.fullmatch(span)] + links


def is_there(page: Path, path: str) -> bool:
    """Below the page or a room above it, or from the root; a bare name anywhere in the project."""
    path = re.sub(r"\b[A-Z]{3,}\b(?=[./])", "*", path)  # NAME stands for any
    if ".." in path:
        return (page.parent / path).exists()
    above = [folder for folder in page.parents if folder.is_relative_to(ROOMS)]
    deep = [page.parent] if "/" in path else [ROOMS, ROOT / "tests", ROOT / "bench"]
    return any(any(root.glob(path)) for root in (*above, ROOT)) or any(any(root.rglob(path)) for root in deep)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.parent.relative_to(ROOT / "src").as_posix())
def test_every_path_that_a_readme_names_is_there(page):
    missing = [p for p in named(page.read_text("utf-8")) if p not in USERS and not is_there(page, p)]
    assert missing == []


def test_a_path_that_is_not_there_is_seen():
    page = ROOMS / "plan/README.md"
    text = "| `lint/pods.py` | `bundle.py`, `tests/unit/plan/traps/`, [page](../../../docs/no.md); `kubectl apply x.py`"
    assert [p for p in named(text) if not is_there(page, p)] == [
        "lint/pods.py", "tests/unit/plan/traps/", "../../../docs/no.md",
    ]  # fmt: skip


def test_pages_name_files():
    assert sum(len(named(page.read_text("utf-8"))) for page in PAGES) > 200

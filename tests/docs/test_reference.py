"""The reference pages are those the program would write today; links and commands in the docs lead somewhere."""

from __future__ import annotations

import doctest
import importlib.util
import pkgutil
import re
from functools import cache
from pathlib import Path

import pytest

import fairlead
from fairlead.cli import reference, verbs
from fairlead.errors import Exit
from fairlead.records.codes import explanations

ROOT = Path(fairlead.__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.md")])
HAVE_BLOCKS = [p for p in PAGES if p.parent.name != "reference"]


REFERENCE = {p.name: p for p in (ROOT / "docs" / "reference").iterdir()}


@cache
def every_page():
    """What the program would write. It asks each verb for its help, so not where tests are only looked for."""
    return reference.every_page()


@pytest.mark.parametrize("name", REFERENCE)
def test_the_page_is_fresh(name):
    assert REFERENCE[name].read_text("utf-8") == every_page().get(name), "run: make docs"


def test_every_page_of_the_reference_is_made():
    assert set(REFERENCE) == set(every_page())


def test_every_verb_has_its_section():
    text = (ROOT / "docs/reference/cli.md").read_text("utf-8")
    for path in reference.command_paths():
        level = "#" * (len(path) + 1)
        assert f"\n{level} {' '.join(path)}\n" in text
    assert [v.name.split() for v in verbs.verbs()] == list(reference.command_paths())


def test_the_table_of_exits_is_the_enum():
    text = (ROOT / "docs/reference/exit-codes.md").read_text("utf-8")
    rows = re.findall(r"^\| (\d+) \| ([a-z]+) \| (.+) \|$", text, re.MULTILINE)
    assert rows == [(str(int(e)), e.name.lower(), e.meaning) for e in Exit]


def test_every_code_has_its_section():
    text = (ROOT / "docs/reference/codes.md").read_text("utf-8")
    assert re.findall(r"^### (\S+)", text, re.MULTILINE) == list(explanations())


def heading_of(line):
    """The anchor GitHub gives a heading."""
    words = re.sub(r"[^\w\- ]", "", line.lstrip("#").strip().lower())
    return words.replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_link_inside_the_repository_leads_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        place = (page.parent / path).resolve() if path else page
        assert place.exists(), target
        if anchor and place.suffix == ".md":
            headings = [heading_of(ln) for ln in place.read_text("utf-8").splitlines() if ln.startswith("#")]
            assert anchor in headings, target


@pytest.mark.parametrize("page", HAVE_BLOCKS, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_verb_the_docs_name_is_there(page):
    text = page.read_text("utf-8")
    code = "\n".join(re.findall(r"```.*?```", text, re.DOTALL) + re.findall(r"`fairlead [^`]+`", text))
    names = {" ".join(path) for path in reference.command_paths()}
    families = {n.split()[0] for n in names if " " in n}
    for words in re.findall(r"(?:^|[`$(] ?)fairlead ((?:[a-z]+ ?){1,2})(?![\w:])", code, re.MULTILINE):
        first, *rest = words.split()
        assert first in names, f"fairlead {first}"
        if first in families and rest:
            assert f"{first} {rest[0]}" in names, f"fairlead {words}"


MODULES = sorted(m.name for m in pkgutil.walk_packages(fairlead.__path__, "fairlead."))


def test_examples_in_docstrings_are_true():
    tried = 0
    for name in MODULES:
        if ".readers" in name or name == "fairlead.__main__" or ">>>" not in source_of(name):
            continue
        result = doctest.testmod(importlib.import_module(name))
        assert result.failed == 0, name
        tried += result.attempted
    assert tried > 10


def source_of(name):
    spec = importlib.util.find_spec(name)
    return Path(spec.origin).read_text("utf-8") if spec and spec.origin and spec.origin.endswith(".py") else ""

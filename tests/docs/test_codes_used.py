"""Every code that the program can utter is explained, and every explanation can be reached."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import fairlead
from fairlead.records.codes import explanations

SOURCE = Path(fairlead.__file__).parent
CODE = re.compile(r"[a-z][a-z0-9]*/[a-z0-9]+(?:-[a-z0-9]+)*")
ROOMS = {code.partition("/")[0] for code in explanations()} | {p.name for p in SOURCE.iterdir() if p.is_dir()}
NOT_CODES = {"fabric/torch", "fabric/sim", "fabric/mrc", "probe/readers"}
"""Places in the source tree that look like codes."""


@functools.cache
def texts() -> tuple[list[tuple[str, Path, int]], list[str]]:
    """The string constants of the source, as (text, file, line), and what strings that are put together begin with."""
    plain: list[tuple[str, Path, int]] = []
    heads: list[str] = []
    for path in sorted(SOURCE.rglob("*.py")):
        where = path.relative_to(SOURCE)
        for element in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(element, ast.Constant) and isinstance(element.value, str):
                if "/" in element.value:
                    plain.append((element.value, where, element.lineno))
            elif isinstance(element, ast.JoinedStr) and element.values and isinstance(element.values[0], ast.Constant):
                heads.append(str(element.values[0].value))
    return plain, heads


@functools.cache
def literals():
    """Every string constant that reads like a code: (code, file, line)."""
    return [
        (code, path, line)
        for code, path, line in texts()[0]
        if CODE.fullmatch(code) and code.partition("/")[0] in ROOMS and code not in NOT_CODES
    ]


@functools.cache
def made_up():
    """Beginnings of codes that are put together: `f"skew/{name}"`."""
    return {s for s in texts()[1] if re.fullmatch(r"[a-z][a-z0-9]*/[a-z0-9-]*", s) and s.partition("/")[0] in ROOMS}


@functools.cache
def in_data():
    """Codes in data files other than the explanations."""
    files = [path for path in SOURCE.rglob("*.toml") if path.name != "codes.toml"]
    return {code for path in files for code in CODE.findall(path.read_text("utf-8"))}


def test_there_is_something_to_look_at():
    assert len(literals()) > 100


def test_every_code_in_the_source_is_explained():
    missing = [f"{path}:{line}: {code}" for code, path, line in literals() if code not in explanations()]
    assert missing == []


def test_every_code_that_is_put_together_has_explanations():
    for start in made_up():
        assert any(code.startswith(start) for code in explanations()), start


def test_every_explanation_can_be_reached():
    uttered = {literal for literal, _, _ in literals()} | in_data()
    unsaid = [c for c in explanations() if c not in uttered and not any(c.startswith(s) for s in made_up())]
    assert unsaid == [], "nothing says these codes"


def test_an_explanation_names_no_other_code_that_is_not_there():
    known = explanations()
    for entry in known.values():
        for text in (entry.title, entry.cause, entry.evidence, entry.remedy):
            for quoted in re.findall(r"`([^`]+)`", text):
                if CODE.fullmatch(quoted) and quoted.partition("/")[0] in ROOMS:
                    assert quoted in known, f"{entry.code} names {quoted}"

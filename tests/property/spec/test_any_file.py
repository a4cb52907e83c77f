"""Whatever a file holds, it is read or refused with sentences: nothing but SpecError, every problem in file order."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairlead.errors import SpecError
from fairlead.spec.loader import Loaded, preset_names, preset_text, read
from fairlead.spec.write import toml_value, write
from support.depth import cases

TODAY = dt.date(2026, 11, 20)
WHOLE = [write(t, title="t") for t in ({"schema": 1, "access": {"via": "lab"}},)] + [
    preset_text(n) for n in preset_names()
]
KEYS = [
    "schema",
    "pool",
    "name",
    "nodes",
    "size",
    "access",
    "via",
    "fabric",
    "t0",
    "waiver",
    "expires",
    "planse",
    "token",
]
TEXTS = ["", "lab", "n[0-3]", "n[1-", "ssh", "Standard_ND96isr_H100_v5", "a\x00b", "é", "-x", "all", "n[0-99999999]"]
VALUES = st.recursive(
    st.one_of(
        st.integers(-(2**70), 2**70),
        st.floats(),
        st.booleans(),
        st.sampled_from(TEXTS),
        st.dates(min_value=dt.date(1, 1, 1)),
        st.text(max_size=5),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(KEYS), inner, max_size=4)),
    max_leaves=8,
)
quick = settings(
    max_examples=cases(150), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cluster.toml"


def outcome(path: Path) -> Loaded | SpecError:
    """Read a file; the only exception let through is the one it may raise."""
    try:
        return read(path, environ={}, today=TODAY)
    except SpecError as error:
        return error


def assert_told_well(found: Loaded | SpecError, path: Path) -> None:
    if isinstance(found, Loaded):
        return
    assert found.exit == 2
    lines = [p.line for p in found.problems]
    in_file = [n for n in lines if n]
    assert in_file == sorted(in_file)
    assert lines == in_file + [0] * (len(lines) - len(in_file))
    for problem in found.problems:
        assert problem.file == str(path)
        assert problem.code.startswith(("spec/", "nodes/"))
        assert str(problem).isprintable() or "\n" in str(problem)
        assert "\x00" not in str(problem)


@quick
@given(raw=st.binary(max_size=200))
def test_bytes(raw: bytes, path: Path) -> None:
    path.write_bytes(raw)
    found = outcome(path)
    assert isinstance(found, SpecError)  # no run of random bytes is a whole cluster file
    assert_told_well(found, path)


@quick
@given(text=st.text("[]{}=\"'\\\n#.,abc019-:\t\r\x00\x7f é", max_size=120))
def test_text_near_toml(text: str, path: Path) -> None:
    path.write_text(text, newline="")
    assert_told_well(outcome(path), path)


@quick
@given(
    tree=st.dictionaries(
        st.sampled_from(["schema", "pool", "access", "fabric", "waiver", "expect", "lab", "x"]), VALUES
    )
)
def test_any_tree(tree: dict[str, Any], path: Path) -> None:
    lines = [f"{name} = {inline(value)}" for name, value in tree.items()]
    path.write_text("\n".join(lines), "utf-8", "surrogatepass")
    assert_told_well(outcome(path), path)


@quick
@given(data=st.data())
def test_one_damage_to_a_good_file(data: st.DataObject, path: Path) -> None:
    text = data.draw(st.sampled_from(WHOLE))
    start = data.draw(st.integers(0, len(text) - 1))
    length = data.draw(st.integers(0, 12))
    path.write_text(
        text[:start] + data.draw(st.text(max_size=3)) + text[start + length :], "utf-8", "replace", newline=""
    )
    assert_told_well(outcome(path), path)


@pytest.mark.parametrize(
    "text",
    [
        "x = " + "[" * 5000,
        "x = " + "[" * 400 + "]" * 400,
        "a = " + "{a=" * 3000,
        "a" + ".a" * 5000 + " = 1",
        "x = " + "9" * 9000,
    ],
    ids=["open", "deep", "tables", "dotted", "digits"],
)
def test_what_breaks_parsers(text: str, path: Path) -> None:
    path.write_text(text)
    found = outcome(path)
    assert isinstance(found, SpecError)
    assert_told_well(found, path)


def inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k} = {inline(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(inline(v) for v in value) + "]"
    if isinstance(value, str):
        return toml_value(value).replace("\x7f", "\\u007f")
    return toml_value(value)

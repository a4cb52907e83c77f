"""What a script in `bench/` or `examples/` takes from this project is there: renaming breaks what no test runs."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted([*(ROOT / "bench").glob("*.py"), *(ROOT / "examples").rglob("*.py")])
ROOTS = {"fairlead": ROOT / "src", "support": ROOT / "tests", "unit": ROOT / "tests"}


def folder_of(module: str) -> Path:
    return ROOTS[module.partition(".")[0]].joinpath(*module.split("."))


def file_of(module: str) -> Path | None:
    """The file of a module of this project; None where there is none."""
    base = folder_of(module)
    found = [path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()]
    return found[0] if found else None


def names_in(tree: ast.AST) -> set[str]:
    """What a module defines or imports anywhere outside of functions; the keys and names of a lazy `__init__`, too."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                found.add(node.name)
            case ast.Name(ctx=ast.Store()):
                found.add(node.id)
            case ast.alias():
                found.add((node.asname or node.name).partition(".")[0])
            case ast.Constant(value=str()):
                found.add(node.value)
    return found


def missing(script: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(script)):
        if not isinstance(node, ast.ImportFrom) or (node.module or "").partition(".")[0] not in ROOTS:
            continue
        path = file_of(node.module)
        if path is None and not folder_of(node.module).is_dir():
            yield node.module
            continue
        known = names_in(ast.parse(path.read_text("utf-8"))) if path is not None else set()
        for alias in node.names:
            if alias.name not in known and file_of(f"{node.module}.{alias.name}") is None:
                yield f"{node.module}: {alias.name}"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_what_a_script_imports_is_there(script):
    assert list(missing(script.read_text("utf-8"))) == []


def test_a_name_that_is_gone_is_seen():
    text = "from fairlead.train import Engine, Grp\nfrom fairlead.nowhere import x\nfrom fairlead.train import layout\n"
    assert list(missing(text)) == ["fairlead.train: Grp", "fairlead.nowhere"]

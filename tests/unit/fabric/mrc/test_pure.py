"""The core does no I/O: no clock, socket, thread, log or chance, in whatever way they might be imported."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest

import fairlead.fabric.mrc

FOLDER = Path(fairlead.fabric.mrc.__file__).parent
SOURCES = sorted(FOLDER.glob("*.py"))
PYPROJECT = Path(__file__).parents[4] / "pyproject.toml"
CONTRACT = next(
    contract
    for contract in tomllib.loads(PYPROJECT.read_text())["tool"]["importlinter"]["contracts"]
    if contract["id"] == "mrc-is-sans-io"
)
FORBIDDEN = {
    *("asyncio", "concurrent", "datetime", "logging", "multiprocessing", "queue", "random", "sched", "secrets"),
    *("select", "selectors", "signal", "socket", "socketserver", "ssl", "subprocess", "threading", "time", "uuid"),
}
BEHIND_THEM = {"_asyncio", "_datetime", "_queue", "_random", "_socket", "_ssl", "_thread", "_uuid", "posix"}
MACHINE = {"os", "pathlib", "platform", "shutil", "sys", "io", "tempfile", "mmap", "ctypes"}
BUILTINS = {"open", "print", "input", "exec", "eval", "compile", "breakpoint"}
CHANCE = {"urandom", "getrandom", "default_rng", "RandomState", "SystemRandom"}
SCHEMA = {"layout", "rows"}
LAW = {"bits", "evs", "rotation", "comparators", "paths", "congestion", "window", "losses", "timers"}
LAW |= {"sending", "responder", "hearing", "law", "ways"}


def imports(path: Path) -> set[str]:
    """Full names of the modules a file imports, in any way a reader can see."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
    return found


def test_the_import_linter_forbids_the_same_to_the_whole_room() -> None:
    assert set(CONTRACT["forbidden_modules"]) == FORBIDDEN
    assert CONTRACT["source_modules"] == ["fairlead.fabric.mrc"]


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.stem)
def test_no_file_imports_io(path: Path) -> None:
    assert not {name.split(".")[0] for name in imports(path)} & (FORBIDDEN | BEHIND_THEM)
    text = path.read_text()
    assert "__import__" not in text
    assert "importlib" not in text


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.stem)
def test_no_file_asks_the_system_for_chance_or_calls_what_reads_or_writes(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            assert node.attr not in CHANCE | {"random"}, ast.dump(node)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in BUILTINS, ast.dump(node)


def test_only_the_cache_of_compiled_kernels_touches_the_machine() -> None:
    users = {p.stem: {name.split(".")[0] for name in imports(p)} & MACHINE for p in SOURCES}
    assert users.pop("rows") == {"ctypes"}  # a structure laid over words; no library is called
    assert {stem for stem, found in users.items() if found} == {"compile"}


@pytest.mark.parametrize("path", [p for p in SOURCES if p.stem in LAW | SCHEMA], ids=lambda p: p.stem)
def test_the_law_needs_the_standard_library_alone_and_itself(path: Path) -> None:
    for name in imports(path):
        own = name.startswith("fairlead.fabric.mrc")
        assert name.split(".")[0] in {"__future__", "typing", "ctypes", "math"} or own, name
        if own and name != "fairlead.fabric.mrc":
            assert name.split(".")[3] in LAW | SCHEMA, name


@pytest.mark.parametrize("path", [p for p in SOURCES if p.stem in LAW], ids=lambda p: p.stem)
def test_the_law_is_integer_arithmetic_without_objects(path: Path) -> None:
    """No float, no division that makes one, no container, no exception: what numba and Python share."""
    tree = ast.parse(path.read_text())
    for function in [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]:
        for node in ast.walk(function):
            if isinstance(node, ast.Constant):
                assert not isinstance(node.value, float), ast.dump(node)
            banned = (
                ast.Div | ast.Raise | ast.Try | ast.List | ast.Dict | ast.Set | ast.ListComp | ast.Lambda | ast.Assert
            )
            assert not isinstance(node, banned), f"{path.stem}.{function.name}: {ast.dump(node)[:80]}"


def test_only_one_file_imports_numba_and_only_two_numpy() -> None:
    users = {
        name: {p.stem for p in SOURCES if any(i.split(".")[0] == name for i in imports(p))}
        for name in ("numba", "numpy")
    }
    assert users["numba"] == {"compile"}
    assert users["numpy"] == {"state"}

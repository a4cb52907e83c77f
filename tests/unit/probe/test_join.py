"""The program that is sent to nodes: one file, standard library, Python 3.9, made of the readers."""

from __future__ import annotations

import ast
import sys
import zipfile
from collections import Counter
from importlib import resources
from pathlib import Path

import pytest

from fairlead.base import program as base_program
from fairlead.probe import arguments, program
from fairlead.probe.join import PACKAGE
from fairlead.records.facts import SCHEMA

READERS = sorted(
    f.name for f in resources.files(PACKAGE).iterdir() if f.name.endswith(".py") and f.name != "__init__.py"
)
SINCE_39 = {
    # names of the standard library that are newer than 3.9, of modules the readers use
    "pairwise",
    "batched",
    "bit_count",
    "EncodingWarning",
    "StrEnum",
    "ExceptionGroup",
    "TaskGroup",
    "UTC",
    "tomllib",
    "process_cpu_time",
    "pidfd_open",
    "eventfd",
    "splice",
    "add_note",
    "is_junction",
    "walk_up",
    "login_tty",
    "unshare",
    "setns",
    "posix_openpt",
}


def _source(name: str) -> str:
    return resources.files(PACKAGE).joinpath(name).read_text("utf-8")


@pytest.mark.parametrize("name", READERS)
def test_a_reader_is_python_39(name: str) -> None:
    tree = ast.parse(_source(name), feature_version=(3, 9))
    used = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)} | {
        n.id for n in ast.walk(tree) if isinstance(n, ast.Name)
    }
    assert not used & SINCE_39
    strict = [n for n in ast.walk(tree) if isinstance(n, ast.Call) for k in n.keywords if k.arg == "strict"]
    assert not strict, "zip(strict=...) came with 3.10"


@pytest.mark.parametrize("name", READERS)
def test_a_reader_imports_only_the_standard_library_and_its_siblings(name: str) -> None:
    for node in ast.walk(ast.parse(_source(name))):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [node.module or ""]
        else:
            continue
        for module in modules:
            assert module.split(".")[0] in sys.stdlib_module_names or module.startswith(PACKAGE + "."), module


def test_names_do_not_clash() -> None:
    """All readers share one name space in the program."""
    counts: Counter[str] = Counter()
    for name in READERS:
        for node in ast.parse(_source(name)).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                counts[node.name] += 1
            elif isinstance(node, ast.Assign):
                counts.update(n.id for t in node.targets for n in ast.walk(t) if isinstance(n, ast.Name))
    assert [name for name, num in counts.items() if num > 1] == []


def test_the_program_is_one_file_of_its_own() -> None:
    text = program().source.decode()
    tree = ast.parse(text, feature_version=(3, 9))
    assert "fairlead.probe" not in "".join(
        ast.dump(n) for n in ast.walk(tree) if isinstance(n, ast.Import | ast.ImportFrom)
    )
    assert [n.module for n in tree.body if isinstance(n, ast.ImportFrom) and n.module == "__future__"] == ["__future__"]
    for name in READERS:
        assert f"# ---- {name}\n" in text
    assert f'SCHEMA = "{SCHEMA}"' in text


def test_the_program_is_small_enough_to_send_to_a_thousand_nodes() -> None:
    assert len(program().stdin) < 120_000


def test_the_command_shuts_out_the_users_own_modules() -> None:
    python, *flags = program().words("/opt/py/bin/python3", arguments())
    assert python == "/opt/py/bin/python3"
    assert flags[:2] == ["-I", "-S"]
    assert flags[-2:] == ["--limit", "20"]
    assert arguments(imds=True, capture=True)[-2:] == ("--imds", "--capture")


def test_the_program_is_the_same_from_a_zip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file on disk is needed: a wheel and a zip import make the same text as an editable install."""
    import subprocess

    package = tmp_path / "lib.zip"
    with zipfile.ZipFile(package, "w") as archive:
        archive.writestr("fairlead/__init__.py", "")
        archive.writestr("fairlead/base/__init__.py", "")
        archive.writestr("fairlead/base/program.py", Path(base_program.__file__ or "").read_text())
        archive.writestr("fairlead/probe/__init__.py", "")
        archive.writestr("fairlead/probe/join.py", Path(sys.modules["fairlead.probe.join"].__file__ or "").read_text())
        for name in [*READERS, "__init__.py"]:
            archive.writestr(f"fairlead/probe/readers/{name}", _source(name))
    code = f"""import sys
sys.path.insert(0, {str(package)!r})
from fairlead.probe.join import program
sys.stdout.write(program().source.decode())"""
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == program().source.decode()

"""Public names of a package that load when they are used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import fairlead.cluster
import fairlead.launch
import fairlead.preflight
from fairlead.base.lazy import lazy


@pytest.mark.parametrize("package", [fairlead.cluster, fairlead.launch, fairlead.preflight], ids=lambda p: p.__name__)
def test_every_public_name_is_there_and_no_module_hides_one(package):
    code = (
        f"import importlib, pathlib, types, {package.__name__} as package\n"
        "for file in sorted(pathlib.Path(package.__file__).parent.glob('[a-z]*.py')):\n"
        "    importlib.import_module(f'{package.__name__}.{file.stem}')\n"
        "print([n for n in package.__all__ if isinstance(getattr(package, n), types.ModuleType)])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("name", ["cluster", "launch", "preflight"])
def test_importing_the_package_imports_nothing_of_it(name):
    code = f"import sys, fairlead.{name}; print([m for m in sys.modules if m.startswith('fairlead.{name}.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"module `fairlead\.cluster` has no attribute `conect`"):
        _ = fairlead.cluster.conect


def test_a_name_that_is_a_module_as_well_is_refused():
    with pytest.raises(AssertionError, match="page is a module as well"):
        lazy("fairlead.x", {"page": ("page",)})

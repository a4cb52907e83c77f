"""The promised public face: these names and no others, loaded only when used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import fairlead


def test_the_public_names() -> None:
    assert fairlead.__all__ == ["FairleadError", "Finding", "NodeSet", "Verdict", "__version__", "connect", "load"]
    for name in fairlead.__all__:
        assert getattr(fairlead, name) is not None
    assert dir(fairlead) == fairlead.__all__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute `lod`"):
        _ = fairlead.lod


def test_importing_costs_nothing() -> None:
    code = "import sys, fairlead; print([m for m in sys.modules if m.startswith(('fairlead', 'msgspec', 'asyncio'))])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "['fairlead']"

"""A package's public names, each loaded when it is first used: one file of a room does not cost all of it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy(package: str, homes: Mapping[str, tuple[str, ...]]) -> Callable[[str], Any]:
    """The `__getattr__` of a package; `homes` maps its modules to the names they hold.

    __getattr__ = lazy(__name__, {"connection": ("connect",), "protocol": ("Command", "Result")})
    """
    home = {name: module for module, names in homes.items() for name in names}
    same = sorted(home.keys() & homes.keys())
    assert not same, f"{package}: {', '.join(same)} is a module as well; importing that would hide the name"

    def find(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module `{package}` has no attribute `{name}`")
        value = getattr(importlib.import_module(f"{package}.{home[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return find

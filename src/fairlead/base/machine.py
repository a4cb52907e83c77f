"""What this machine can do: each capability that a room declares, looked for once; tried for real where a try is
harmless.

`fairlead doctor` prints this table; the test suite skips by it, and names what was missing.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from fairlead.base.rooms import Doctor, brought, load
from fairlead.base.trust import search_path


@dataclass(frozen=True)
class Capability:
    """One thing a machine may be able to do."""

    name: str
    ok: bool
    detail: str
    """What was found, or why not."""
    used_for: str
    get: str
    """What to type to have it."""


def names() -> list[str]:
    """Every capability, room by room."""
    return [line.name for line in _lines()]


def capability(name: str) -> Capability:
    """One capability by name, looked for once a process."""
    return _capability(next(line for line in _lines() if line.name == name))


def capabilities() -> list[Capability]:
    """All of them."""
    return [_capability(line) for line in _lines()]


def extra_of(module: str, room: str = "") -> str:
    """The extra that brings a module, or a package around or in one: the room's own, if it does; else empty."""

    def is_near(known: str) -> bool:
        return known == module or known.startswith(f"{module}.") or module.startswith(f"{known}.")

    found = [line.extra for line in _lines() if line.extra and any(map(is_near, line.modules))]
    return room if room in found else next(iter(found), "")


def pip_install(extra: str) -> str:
    """What to type to have an extra."""
    return f"{sys.executable} -m pip install 'fairlead[{extra}]'"


def _lines() -> tuple[Doctor, ...]:
    return brought("doctor")


@functools.cache
def _capability(line: Doctor) -> Capability:
    ok, detail = _look(line)
    return Capability(line.name, ok, detail, line.used_for, line.get or pip_install(line.extra))


def _look(line: Doctor) -> tuple[bool, str]:
    if line.look:
        found: tuple[bool, str] = load(line.look)()
        return found
    if line.path:
        root = Path(line.path).anchor or "."
        hit = next(Path(root).glob(line.path.removeprefix(root)), None)
        return hit is not None, str(hit) if hit else f"no {line.path}"
    if line.programs:
        path = search_path(os.environ, "/usr/sbin", "/sbin")
        missing = [n for n in line.programs if not shutil.which(n, path=path)]
        return not missing, f"not installed: {', '.join(missing)}" if missing else ", ".join(line.programs)
    # find_spec does not import: `doctor` must not pay for torch
    missing = [n for n in line.modules if not _is_there(n)]
    return not missing, f"not installed: {', '.join(missing)}" if missing else "installed"


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package around it is missing
        return False

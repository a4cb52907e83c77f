"""The probe as a program: its readers, `tree` first and `main` last. See base/program.py for how parts become one."""

from __future__ import annotations

import functools
from importlib import resources

from fairlead.base.program import Program

PACKAGE = "fairlead.probe.readers"
FIRST, LAST = "tree", "main"


@functools.cache
def program() -> Program:
    """The probe as one Python file: standard library, Python 3.9 syntax."""
    names = {f.name.removesuffix(".py") for f in resources.files(PACKAGE).iterdir() if f.name.endswith(".py")}
    middle = sorted(names - {FIRST, LAST, "__init__"})
    return Program.of("fairlead-probe", *(f"{PACKAGE}.{name}" for name in (FIRST, *middle, LAST)))

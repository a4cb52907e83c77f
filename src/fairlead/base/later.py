"""A part of programs for nodes: the parts that a program may end without are compiled when it needs them.

Where modules are imported as modules, everything is there already, and `later` does nothing.
"""

from __future__ import annotations

LATER = ""
"""The text of those parts; base/program.py puts it here."""


def later() -> None:
    """Have them. Costs nothing a second time; threads that might need them at once call it one after the other."""
    global LATER
    text, LATER = LATER, ""
    exec(compile(text, "later", "exec"), globals())  # noqa: S102 - our own text, which came with the program

r"""Text as people see it: what cannot be seen is written out, so that nothing from outside moves a cursor, sets a
title, changes a colour or turns the direction of reading. Every face prints through it.

    >>> shown("n1: \x1b[2J")
    'n1: \\x1b[2J'

Colours of our own are marks that no text from outside can hold, as each process draws them by chance; they become
colours where they are printed.
"""

from __future__ import annotations

import os
import re

_MARK = "\x1b" + "".join(chr(ord("g") + byte % 16) for byte in os.urandom(16))
_COLOUR = re.compile(r"\[([0-9;]{1,8})m")


def coloured(code: str, text: str) -> str:
    """Text in a colour of the terminal (ECMA-48, SGR), once it is printed."""
    return f"{_MARK}[{code}m{text}{_MARK}[0m"


def shown(text: str) -> str:
    """Text as it is printed: lines and tabs stay, our own colours are turned on, all else that cannot be seen is
    written as Python writes it.
    """
    first, *rest = text.split(_MARK)
    parts = [_written(first)]
    for part in rest:
        colour = _COLOUR.match(part)
        parts += [f"\x1b[{colour[1]}m", _written(part[colour.end() :])] if colour else [_written(part)]
    return "".join(parts)


def shown_json(text: str) -> str:
    """A JSON document that says the same, and that a terminal may be shown, too."""
    return "\n".join(line if line.isprintable() else "".join(map(_in_json, line)) for line in text.split("\n"))


def _written(text: str) -> str:
    return "\n".join(line if line.isprintable() else "".join(map(_as_escape, line)) for line in text.split("\n"))


def _as_escape(char: str) -> str:
    return char if char.isprintable() or char == "\t" else char.encode("unicode_escape", "surrogatepass").decode()


def _in_json(char: str) -> str:
    if char.isprintable() or char == "\t":
        return char
    units = char.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4))

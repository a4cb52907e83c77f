"""A command as a list of words, as a script has it: quoted, one option a line. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

Command = Sequence[str]
_WIDTH = 100

HEAD = """#!/bin/bash
# {title}
# Read it before you run it: it creates what costs money. Each step can be run again.
set -euo pipefail
"""


def script(title: str, parts: Sequence[str]) -> str:
    """A script of parts, each with a blank line above."""
    return HEAD.format(title=title) + "".join(f"\n{part.rstrip()}\n" for part in parts)


def line(words: Command) -> str:
    """A command, broken before its options where it is long. A word `$NAME` or `$(...)` stays the shell's."""
    shown = [_quoted(word) for word in words]
    whole = " ".join(shown)
    if len(whole) <= _WIDTH:
        return whole
    parts: list[list[str]] = [[]]
    for word in shown:
        if word.startswith("--"):
            parts.append([])
        parts[-1].append(word)
    return " \\\n    ".join(" ".join(part) for part in parts)


def step(about: str, *commands: Command) -> str:
    """A comment and what it is about."""
    return "\n".join([*(f"# {text}" for text in about.splitlines()), *(line(words) for words in commands)])


def _quoted(word: str) -> str:
    return f'"{word}"' if word.startswith("$") else shlex.quote(word)

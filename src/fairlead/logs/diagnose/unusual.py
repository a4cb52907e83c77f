"""Lines that nobody wrote a signature for: kinds that are new on the job's nodes when it ended. Pure.

A kind is a line with its numbers masked. The engine counts kinds (asking.py): a miner in Python would read every line,
at some 100,000 a second.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

_GRAVE = {"emerg", "alert", "crit", "error"}
_WORDS = re.compile(
    r"(?i)\b(error|fail(?:ed)?|failure|fatal|abort(?:ed)?|lost|timed? ?out|refused|denied|cannot|unable|corrupt\w*"
    r"|panic|killed|exceeded)\b"
)


class Template(NamedTuple):
    """A kind of line that is new."""

    text: str
    num: int
    first_ns: int
    num_nodes: int
    node: str
    level: str
    example: str


def unusual(found: Iterable[Template], most: int = 5) -> tuple[str, ...]:
    """The most telling of them: grave ones, on few nodes, early. One that says nothing of trouble is not told."""
    telling = [t for t in found if t.level in _GRAVE or _WORDS.search(t.text)]
    telling.sort(key=lambda t: (t.level not in _GRAVE, t.num_nodes, t.first_ns, t.text))
    return tuple(
        f"{t.node}: {t.example.partition(chr(10))[0][:300]}" + (f"  ({t.num} x)" if t.num > 1 else "")
        for t in telling[:most]
    )

"""`did you mean ...` for every name a user can mistype."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A sentence end naming the nearest known word, or the first few known ones.

    >>> did_you_mean("planse", ["planes", "link"])
    'did you mean `planes`?'
    """
    names = sorted(known)
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    if near:
        return f"did you mean `{near[0]}`?"
    return "known: " + ", ".join(names[:12]) + (", ..." if len(names) > 12 else "") if names else ""

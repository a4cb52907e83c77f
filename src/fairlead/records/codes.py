"""The explanations behind `fairlead explain CODE`: read from the `codes.toml` beside each room's code.

["ib/port-rate"]
id = "I4"                      # optional: number in a published check list
title = "..."                  # what it means, one line
cause = "..."                  # what usually brings it about
evidence = "..."               # where to look, and what good looks like
remedy = "..."                 # what to do
"""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path

import msgspec

from fairlead.base.rooms import files


class Explanation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a code means and what to do about it."""

    code: str
    title: str
    cause: str
    evidence: str
    remedy: str
    id: str = ""


def explanations() -> dict[str, Explanation]:
    """Every code of every room."""
    return _explanations(tuple(files("codes.toml")))


@functools.cache
def _explanations(places: tuple[Path, ...]) -> dict[str, Explanation]:
    found: dict[str, Explanation] = {}
    for path in places:
        for code, fields in tomllib.loads(path.read_text("utf-8")).items():
            found[code] = msgspec.convert({"code": code, **fields}, Explanation)
    return dict(sorted(found.items()))

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


class Listed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One id of a published check list (`A3`), and the codes that tell it."""

    id: str
    what: str
    good: str
    """What passes."""
    codes: tuple[str, ...] = ()
    gap: str = ""
    """Why no code tells it."""
    peers: tuple[str, ...] = ()
    """Other tools that have it, by their short names."""


def listed() -> dict[str, Listed]:
    """Every id of the check list, in its order: `ids.toml` beside a room's codes, and what codes say of themselves."""
    found = dict(_listed(tuple(files("ids.toml")))[0])
    for entry in explanations().values():
        known = found.get(entry.id)
        if known is not None and entry.code not in known.codes:
            found[entry.id] = msgspec.structs.replace(known, codes=(*known.codes, entry.code), gap="")
    return found


def peers() -> dict[str, str]:
    """Short name of a tool -> where it is."""
    return _listed(tuple(files("ids.toml")))[1]


@functools.cache
def _listed(places: tuple[Path, ...]) -> tuple[dict[str, Listed], dict[str, str]]:
    found: dict[str, Listed] = {}
    tools: dict[str, str] = {}
    for path in places:
        data = tomllib.loads(path.read_text("utf-8"))
        tools |= data["peer"]
        for name, fields in data["id"].items():
            found[name] = msgspec.convert({"id": name, **fields}, Listed)
    return found, tools


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

"""A Limit: one number that judges, with its unit, where it comes from and what to write to have another.

A room brings its limits through `Room.limits`, functions of the Spec; `fairlead limits` lists them all. What has no
number is reported, not judged.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

Number: TypeAlias = int | float
Judges: TypeAlias = Literal[
    "equal", "about", "one of", "at least", "at most", "warn below", "fail below", "warn above", "fail above"
]
"""How the number is used: the first five say what is well, the others what is not."""


class Limit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One number that judges."""

    name: str
    """The quantity, as findings and the cluster file name it: `hca_pair_gbps`."""
    what: str
    """What is compared, in one line."""
    judges: Judges
    value: Number | tuple[Number, ...]
    unit: str = ""
    """Empty for a count and a ratio."""
    source: str
    """Who says so: a page with its date, a file and line, the practice it follows, or what was measured."""
    holds_for: str = ""
    """The VM size, message size, number of nodes, ... it holds for; empty: always."""
    key: str = ""
    """What to write in the cluster file to have another: `preflight.timeout_s`, `[[expect]] hca_pair_gbps`. Empty where
    it cannot be changed."""
    code: str = ""
    """The finding that says how it went."""

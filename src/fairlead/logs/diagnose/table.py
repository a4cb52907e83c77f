"""classes.toml, read. What a class of cause blames, brings about, and needs to be believed."""

from __future__ import annotations

import functools
import tomllib
from importlib import resources
from typing import Literal

import msgspec


class Class(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A class of causes; classes.toml says what the fields mean."""

    blames: Literal["node", "job", "cluster"]
    tier: int
    acts_s: float
    drain: bool = False
    brings: frozenset[str] = frozenset()
    brings_anywhere: frozenset[str] = frozenset()
    symptoms: frozenset[str] = frozenset()


class _Symptom(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    says: str


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds and counts; classes.toml says what they mean."""

    lead_s: float
    tail_s: float
    slack_s: float
    clock_s: float
    survived_s: float
    heal_s: float
    flaps: int


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All of classes.toml."""

    limits: Limits
    cls: dict[str, Class] = msgspec.field(name="class")
    symptom: dict[str, _Symptom]
    finding: dict[str, str]
    """Code of a finding -> the class of cause it speaks of."""


@functools.cache
def table() -> Table:
    """The table."""
    text = resources.files("fairlead.logs.diagnose").joinpath("classes.toml").read_text("utf-8")
    return msgspec.convert(tomllib.loads(text), Table)

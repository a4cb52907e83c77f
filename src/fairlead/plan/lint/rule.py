"""What a rule is and what it says: a trap with its place, that something was well, or what it lacked. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from msgspec import Struct

from fairlead.plan.lint.bundle import Bundle
from fairlead.plan.lint.read import Place
from fairlead.records.verdict import Verdict


class Hit(Struct, frozen=True, kw_only=True):
    """A trap."""

    code: str
    place: Place
    about: str
    """The object or call: `MPIJob/nccl-test Worker`."""
    message: str
    read: str
    """What stands there."""
    remedy: str
    verdict: Verdict = Verdict.FAIL


class Well(Struct, frozen=True):
    """Something was looked at and is well."""

    code: str
    about: str


class Lacks(Struct, frozen=True):
    """Something could not be judged, and what for."""

    code: str
    why: str


Said: TypeAlias = Hit | Well | Lacks
Rule: TypeAlias = Callable[[Bundle], Iterator[Said]]
RULES: list[Rule] = []
OFFLINE: list[Rule] = []
"""Of sites without a way out; asked for by name."""


def rule(function: Rule) -> Rule:
    """Makes a function one of the rules."""
    RULES.append(function)
    return function


def offline(function: Rule) -> Rule:
    """Makes a function one of the rules for sites without a way out."""
    OFFLINE.append(function)
    return function

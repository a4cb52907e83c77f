"""What a rule is given and what it answers: a node's facts and expectations in, an Outcome out."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar, cast

from fairlead.checks.expect import Expect
from fairlead.records.facts import Facts, Unread, fact_path
from fairlead.records.verdict import Verdict

T = TypeVar("T")


class Outcome(NamedTuple):
    """What a rule says of a node or of one part of it. `verdict` None means: as bad as the check's severity."""

    verdict: Verdict | None
    message: str
    data: dict[str, Any]


def ok(message: str, **data: Any) -> Outcome:
    """Positive evidence that it is as it should be."""
    return Outcome(Verdict.PASS, message, data)


def bad(message: str, **data: Any) -> Outcome:
    """Positive evidence that it is not; how bad that is, the catalogue says."""
    return Outcome(None, message, data)


def warn(message: str, **data: Any) -> Outcome:
    """Worth a look, but no reason to stop."""
    return Outcome(Verdict.WARN, message, data)


def skip(reason: str) -> Outcome:
    """The rule has nothing to say here."""
    return Outcome(Verdict.SKIP, reason, {})


def unknown(why: str, **data: Any) -> Outcome:
    """Read, and still not possible to tell."""
    return Outcome(Verdict.UNKNOWN, why, data)


@dataclass(slots=True)
class Node:
    """One node under judgement. `facts` begins anew for every rule, so that it holds what that rule alone has read."""

    facts: Facts
    expect: Expect
    get: Callable[..., Any] = field(init=False)
    """A fact, by its path; raises Unread, which no rule catches."""
    memo: dict[str, Any] = field(default_factory=dict)
    """What is worked out once per node, each with the facts it was worked out from."""
    assumed: dict[str, list[Unread]] = field(default_factory=dict)
    """What was taken for granted because a fact could not be read -> the holes. It is said with the verdict."""

    def __post_init__(self) -> None:
        self.get = self.facts.get

    def begin(self) -> None:
        """What comes next is evidence of something else."""
        self.facts.begin()
        self.assumed = {}

    def peek(self, path: str, *keys: str) -> Any:
        """A fact, or None where it could not be read: for a rule that finds a fault in one of several facts alone."""
        try:
            return self.facts.get(path, *keys)
        except Unread:
            return None

    def show(self, path: str, text: str) -> None:
        """What of a long fact is the evidence: the line of a log that decided."""
        self.facts.read[tuple(path.split("."))] = text

    def hole(self, path: str, *keys: str) -> Unread | None:
        """Why a fact could not be read, where that is evidence itself: a tool that says what is broken."""
        try:
            self.facts.get(path, *keys)
        except Unread as why:
            self.facts.read[(*path.split("."), *keys)] = why.why
            return why
        return None

    def get_or(self, value: Any, assumed: str, path: str, *keys: str) -> Any:
        """A fact; where it could not be read, `value`, and the verdict says what was assumed.

        Only for a fact that bears on which things are judged, never for the one that is judged.
        """
        try:
            return self.facts.get(path, *keys)
        except Unread as hole:
            self.assumed.setdefault(assumed, []).append(hole)
            return value

    def assumptions(self) -> list[str]:
        """In words, each with the first reasons."""
        told = []
        for what, holes in self.assumed.items():
            named = "; ".join(f"{hole.path}: {hole.why}" for hole in holes[:2])
            more = f" and {len(holes) - 2} more" if len(holes) > 2 else ""
            told.append(f"{what} (could not read {named}{more})")
        return told

    def table(self, path: str, *keys: str) -> dict[str, Any]:
        """A fact that must be a table; a tool that prints a word in its place has not answered the question."""
        found = self.facts.get(path, *keys)
        if not isinstance(found, dict):
            full = (*path.split("."), *keys)
            raise Unread(fact_path(full), f"`{str(found)[:40]}` stands in its place", self.facts.source(full))
        return found

    def text(self, path: str, *keys: str) -> str:
        """A fact that must be a text."""
        found = self.facts.get(path, *keys)
        if not isinstance(found, str):
            full = (*path.split("."), *keys)
            raise Unread(fact_path(full), "is not a text", self.facts.source(full))
        return found

    def once(self, name: str, work: Callable[[Node], T]) -> T:
        """The result of `work`, done once; the facts it rests on count as read each time."""
        if name not in self.memo:
            inner = Node(Facts(self.facts.record), self.expect)
            try:
                self.memo[name] = (work(inner), inner.facts.read, inner.assumed)
            finally:
                self.facts.read |= inner.facts.read
        result, read, assumed = self.memo[name]
        self.facts.read |= read
        self.assumed |= assumed
        return cast("T", result)


def number_of(text: Any, path: str, source: str = "") -> float:
    """The leading number of a tool's words: `92 C`, `16x`, `400 Gb/sec (4X NDR)`. Raises Unread where there is none."""
    if isinstance(text, int | float) and not isinstance(text, bool):
        return float(text)
    try:
        return float(str(text).split()[0].rstrip("%x"))
    except (ValueError, IndexError):
        raise Unread(path, f"`{str(text)[:40]}` is not a number", source) from None


@functools.lru_cache(maxsize=4096)
def count_of_ranges(text: str) -> int:
    """How many numbers a kernel list such as `0-47,96-143` holds. Raises ValueError.

    >>> count_of_ranges("0-47,96-143")
    96
    """
    total = 0
    for part in text.split(","):
        low, _, high = part.partition("-")
        total += int(high or low) - int(low) + 1
    return total

"""What a set of faults asks of a lab, as values that can be compared.

Knows: ports, queues, filters, hosts and files as plain names. Must not know: kinds of faults, or how anything is done.

Faults are never undone one by one. The set in force asks for Effects; the set after a change asks for others; what
differs is what must be done. So faults may overlap in any order, healing one leaves what another still asks for, and
doing it twice changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple


class Port(NamedTuple):
    """A device in a network namespace."""

    netns: str
    device: str


class HostFile(NamedTuple):
    """A file on a host; the path has no leading slash."""

    host: str
    path: str


class Flap(NamedTuple):
    """How long a port stays down and up, again and again."""

    down_s: float
    up_s: float


@dataclass(frozen=True, slots=True)
class Effects:
    """All that can be asked of a lab. Every field is keyed so that two askers of one thing meet."""

    down: dict[Port, int] = field(default_factory=dict)
    """Ports without carrier -> the fault that asked last."""
    flaps: dict[Port, Flap] = field(default_factory=dict)
    filters: dict[Port, dict[int, str]] = field(default_factory=dict)
    """Ports -> fault -> nftables text for its table; tables of one port coexist."""
    queues: dict[Port, tuple[str, ...]] = field(default_factory=dict)
    """Ports -> `tc` lines that replace their shaping."""
    dead: dict[str, int] = field(default_factory=dict)
    hung: dict[str, int] = field(default_factory=dict)
    cpu_pct: dict[str, float] = field(default_factory=dict)
    disk_pct: dict[str, float] = field(default_factory=dict)
    """Hosts -> how full their file space is made."""
    files: dict[HostFile, bytes | None] = field(default_factory=dict)
    """Files -> content other than the host's own; None hides it."""


def merged(parts: Iterable[Effects]) -> Effects:
    """What several faults ask together, in the order they were injected: for one port or file the last word counts."""
    total = Effects()
    for part in parts:
        for spot in fields(Effects):
            mine, theirs = getattr(total, spot.name), getattr(part, spot.name)
            if spot.name == "filters":
                for port, tables in theirs.items():
                    mine.setdefault(port, {}).update(tables)
            else:
                mine.update(theirs)
    for port in total.down:
        total.flaps.pop(port, None)  # it cannot come back while somebody wants it down
    return total


class Change(NamedTuple):
    """One difference between two Effects."""

    what: str
    """The field of Effects."""
    key: Any
    is_on: bool
    """Whether it is asked for from now on; otherwise it no longer is."""
    value: Any
    """What is asked for, or was."""


def changes(before: Effects, after: Effects) -> list[Change]:
    """What must be done to go from one to the other, in the order it must be done in.

    Ends of flapping come first, so that no loop raises a port that goes down. Carrier goes before a host dies, so that
    its last words do not get out, and a host lives before its files are mended: the order of the fields of Effects.
    """
    out: list[Change] = []
    for spot in fields(Effects):
        old, new = _flat(getattr(before, spot.name)), _flat(getattr(after, spot.name))
        asked_once = spot.name in ("down", "dead", "hung")  # who asked does not matter, that somebody does
        for key, was in old.items():
            if key not in new:
                out.append(Change(spot.name, key, is_on=False, value=was))
        for key, now in new.items():
            if key not in old or (old[key] != now and not asked_once):
                out.append(Change(spot.name, key, is_on=True, value=now))
    return sorted(out, key=lambda c: c.what != "flaps" or c.is_on)


def _flat(value: dict[Any, Any]) -> dict[Any, Any]:
    """Tables of filters are compared one by one."""
    out: dict[Any, Any] = {}
    for key, inner in value.items():
        if isinstance(inner, dict):
            out |= {(key, name): text for name, text in inner.items()}
        else:
            out[key] = inner
    return out

"""What the pair phase is given, what it asks, what it is answered: the types between phase.py and who drives it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fairlead.preflight.pairs.answers import AgentReport
from fairlead.preflight.pairs.counters import Reading
from fairlead.preflight.pairs.limits import DEFAULT, Limits
from fairlead.preflight.pairs.steered import Steering


@dataclass(frozen=True, kw_only=True)
class Counted:
    """The ports of a node, and an earlier reading of their counters."""

    ports: Sequence[Sequence[str | int]]
    before: Reading = field(default_factory=dict)
    since_ns: int = 0
    """When that was, by the node's own clock; 0: never."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Who takes part, and where each is reached. `addresses[node][path]`; empty where a node lacks a path."""

    nodes: tuple[str, ...]
    paths: tuple[str, ...]
    addresses: tuple[tuple[str, ...], ...]
    pools: Mapping[int, str] = field(default_factory=dict)
    groups: Mapping[int, int] = field(default_factory=dict)
    switches: tuple[tuple[str, ...], ...] = ()
    """`switches[node][path]`: what it hangs below there; empty where that is not known."""
    steering: Steering = field(default_factory=Steering)
    port_bps: float = 0
    """What the slowest port is meant to carry, b/s; 0: nobody says."""
    untested: Mapping[str, str] = field(default_factory=dict)
    """Rails that no packet can take, and why."""
    counted: tuple[Counted, ...] = ()
    """Each node's ports whose counters are read, and what was read of them before; empty: none are."""
    limits: Limits = DEFAULT


@dataclass(frozen=True, kw_only=True)
class Step:
    """One line to all nodes, and what to wait for."""

    line: Mapping[str, Any]
    expect: frozenset[int]
    """Nodes that must answer."""
    collect: Mapping[str, Any] | None = None
    """Said once everybody has sent: those whose bursts are not whole then wait for late packets and report."""
    limit_s: float = 10.0


@dataclass(frozen=True)
class Answers:
    """What came back: reports by node, when each arrived (this side's time of day, ns), and who is gone, and why."""

    reports: Mapping[int, AgentReport]
    asked_ns: int = 0
    at_ns: Mapping[int, int] = field(default_factory=dict)
    lost: Mapping[int, str] = field(default_factory=dict)
    refused: Mapping[int, str] = field(default_factory=dict)
    """Of those, who said what none of our agents says: its beginning."""

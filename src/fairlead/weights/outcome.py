"""What is asked of a spread, what is known of each node meanwhile, and what came of it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fairlead.records.addressbook import Place
from fairlead.weights.forecast import Forecast
from fairlead.weights.onnode.layout import bytes_of
from fairlead.weights.planned import Plan


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to spread."""

    dest: str
    connections: int = 8
    streams: int = 2
    transport: str = "tcp"
    fetching: int = 0
    max_bandwidth: float = 0.0
    """Bytes a second from the origin, of all nodes together; 0: as many as there are."""
    give_up_s: float = 120.0
    silent_s: float = 15.0
    slow_share: float = 0.5
    dry_run: bool = False
    verify: bool = False
    """Read every file once more before it is published, and compare it with what the store says of it."""
    stream_to: str = ""
    """A command on each node that reads the files as they come."""
    shard_bytes: int = 0
    """What one node is given to fetch at a time; 0: as much as its requests take."""


@dataclass
class NodeState:
    """What is known of a node."""

    name: str
    number: int
    looked: bool = False
    """It has said what it has."""
    address: str = ""
    port: int = 0
    """Where the others reach it; 0 before it was asked."""
    place: Place | None = None
    """Of its ports, for TCP: a connection more for each that two nodes have on one rail."""
    has: bytearray = field(default_factory=bytearray)
    skips: bytearray = field(default_factory=bytearray)
    need_bytes: int = 0
    free_bytes: int = 0
    count: int = 0
    """Chunks that are on its disk."""
    came: int = 0
    """Chunks that have come, also those that the disk has not taken yet."""
    moved_s: float = field(default_factory=time.monotonic)
    """When either of these last changed."""
    root: str = ""
    done_s: float = 0.0
    counts: Mapping[str, int] = field(default_factory=dict)
    rss_bytes: int = 0
    cpu_s: float = 0.0
    heard_s: float = 0.0
    whole: bool = False
    """It has everything on its disk, and waits until it may publish."""
    busy: int = 0
    failed: tuple[str, str, str] | None = None
    """(code, text, hint)"""
    slow: bool = False
    reader: str = ""
    """How the command that reads the files failed."""


def stalled(waits: Sequence[NodeState], now: float, give_up_s: float) -> tuple[NodeState, str] | None:
    """(the node that holds up the others, why), once none of those that wait has got further for `give_up_s`.

    Whoever has got more than its disk has taken holds up those behind it; without such a one, it is the one that lacks
    most. While one still moves, others may wait for it: nobody is blamed.
    """
    if not waits or any(now - n.moved_s <= give_up_s for n in waits):
        return None
    node = max(waits, key=lambda n: (n.came - n.count, -n.count))
    why = "its disk takes nothing more" if node.came > node.count else "nothing more reaches it"
    return node, f"{why}, for {give_up_s:g} s"


@dataclass
class SpreadOutcome:
    """What came of a spread."""

    plan: Plan
    source: str
    dest: str
    nodes: list[NodeState]
    algorithm: str = ""
    took_s: dict[str, float] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    """File -> why the origin did not give it."""
    beside: dict[str, str] = field(default_factory=dict)
    """File that travels in one chunk with such a file -> that file: it could not be had either."""
    kinds: dict[str, str] = field(default_factory=dict)
    """Why -> what is to be done about it, as `Refused` names it."""
    bad: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(from, to) -> chunks that did not verify."""
    without_blake3: list[str] = field(default_factory=list)
    odd: dict[str, str] = field(default_factory=dict)
    """File -> why no loader would take it, though it is what the origin has."""
    wrong: dict[str, str] = field(default_factory=dict)
    """File -> how it differs from what its store says of it."""
    num_compared: int = 0
    """Files that were compared with what the store says."""
    num_unread: int = 0
    """Files of which the store says a CRC that no node's Python makes."""
    forecast: Forecast | None = None
    """Of a dry run."""
    is_dry: bool = False

    @property
    def complete(self) -> list[NodeState]:
        """Nodes that have published everything."""
        return [n for n in self.nodes if n.root and n.failed is None]

    @property
    def left_bytes(self) -> tuple[int, int]:
        """(bytes that the node with the least lacks, bytes that no node has) before anything moves."""
        sizes = [bytes_of(chunk) for chunk in self.plan.chunks]
        here = [n for n in self.nodes if n.failed is None]
        lacks = [sum(s for s, a, b in zip(sizes, n.has, n.skips, strict=True) if not a | b) for n in here]
        nowhere = (s for i, s in enumerate(sizes) if not any(n.has[i] or n.skips[i] for n in here))
        return max(lacks, default=0), sum(nowhere) if here else 0

    @property
    def origin_bytes(self) -> int:
        """What left the origin, as nodes counted it."""
        return sum(n.counts.get("origin_bytes", 0) for n in self.nodes)

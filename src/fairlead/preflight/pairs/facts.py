"""What the pair phase saw, as stored in the run folder: read, not judged. `rejudge` starts here.

Nodes and paths are numbers here, into the lists at the head, as a thousand nodes have a million pairs. Only bursts that
did not arrive whole are listed; every other tested pair was whole.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from fairlead.preflight.pairs.counters import Change, Reading

PAIRS_SCHEMA: Final = "fairlead.pairs/2"


class Burst(msgspec.Struct, frozen=True, array_like=True):
    """How one burst of numbered packets arrived: counts of packets and of flows."""

    src: int
    dst: int
    path: int
    small: int
    full: int
    whole_flows: int
    dark_flows: int
    lost_here: int = 0
    """Packets the receiving socket had no room for: they did cross the fabric."""
    sent: int = 0
    """Small packets that were sent; 0: `small` of the first pass, `again_small` of a repetition."""


class Speed(msgspec.Struct, frozen=True, array_like=True):
    """One stream of full-size packets: how fast it arrived, and the shortest of a few round trips before it."""

    src: int
    dst: int
    path: int
    rate_bps: int
    """0: too little arrived to tell."""
    rtt_ns: int
    """0: no answer."""
    held_back: int
    """How often the sender had to wait for its own port: 0: perhaps the sender itself was the limit."""


class Fault(msgspec.Struct, frozen=True, array_like=True):
    """An error the sender's own kernel gave."""

    src: int
    dst: int
    path: int
    error: str


class Clock(msgspec.Struct, frozen=True):
    """A node's time of day against the control side's, from the exchange with the shortest round trip."""

    offset_ns: int
    rtt_ns: int


class Work(msgspec.Struct, frozen=True):
    """A fixed amount of arithmetic on one core, all nodes at the same time or this one alone."""

    wall_ns: int
    cpu_ns: int
    others_ns: int = 0
    """Of `wall_ns`, how long it was ready to run and other programs had the processors."""
    alone: bool = False

    @property
    def own_ns(self) -> int:
        """How long the node itself needed."""
        return self.wall_ns - self.others_ns


class PairFacts(msgspec.Struct, kw_only=True):
    """Everything the pair phase saw."""

    schema: Literal["fairlead.pairs/2"] = PAIRS_SCHEMA
    nodes: tuple[str, ...]
    paths: tuple[str, ...]
    """`fabric` (the one address of a node), then `plane 0`, ... where the fabric has planes."""
    addresses: tuple[tuple[str, ...], ...] = ()
    pools: dict[int, str] = {}
    """Node -> its pool; only nodes of one pool are meant to be alike."""
    groups: dict[int, int] = {}
    """Node -> number of the switch it hangs below, where that is known."""
    switches: tuple[tuple[str, ...], ...] = ()
    """Node, path -> that switch by name; empty where it is not known."""
    small: int
    """Small packets in a burst of the first pass, at least."""
    full: int
    full_bytes: dict[int, int] = {}
    """Path -> payload of a full-size packet."""
    num_flows: int
    port_bps: float = 0
    """What a port is meant to carry, b/s; 0: nobody says."""
    again_small: int
    bursts: list[Burst] = []
    """First pass: bursts that did not arrive whole."""
    again: list[Burst] = []
    """Repeated in quiet, as something was wrong the first time: all of them, whole or not."""
    speeds: list[Speed] = []
    speeds_again: list[Speed] = []
    members: tuple[int, ...] = ()
    """Nodes that took part in the bursts; round r sent from each to the r-th behind it in this order."""
    steered: list[tuple[int, int, int]] = []
    """(from, to, steered path): tests over one link between switches each."""
    ways: dict[int, tuple[int, int]] = {}
    """Steered path -> the path of its plane, and the T1 it takes; -1: none."""
    stopped: dict[int, int] = {}
    """Path -> last round of bursts it took part in: it had failed nearly everywhere by then."""
    faults: list[Fault] = []
    unbound: list[tuple[int, int, str]] = []
    """(node, path, error): an address the node does not have."""
    tcp: list[tuple[int, int, str]] = []
    """(from, to, error): connections that did not carry a message."""
    tcp_tested: int = 0
    tcp_skipped: bool = False
    lost: dict[int, str] = {}
    """Nodes that stopped answering, and what was last known."""
    refused: dict[int, str] = {}
    """Of those, who said what none of our agents says: its beginning, escaped."""
    clocks: dict[int, Clock] = {}
    work: dict[int, list[Work]] = {}
    counters: dict[int, Reading] = {}
    """Node -> rail -> counter -> value at the beginning."""
    counted: list[tuple[int, Change]] = []
    """Node, and a counter of one of its ports that went up while it was watched."""
    uncounted: list[tuple[int, str]] = []
    """Node and rail of which no counter could be read."""
    watched_s: dict[int, float] = {}
    """Node -> for how long its counters were watched."""
    skipped: list[tuple[int, int, int]] = []
    """(from, to, path): pairs that no packet tested, so that they witness nothing."""
    untested: dict[str, str] = {}
    """Rails that no packet took, and why."""
    rounds: dict[str, int] = {}
    """How many rounds of each kind were run."""
    took_s: dict[str, float] = {}

    def __post_init__(self) -> None:
        """A file that speaks of nodes or paths it does not list is none of ours. Raises ValueError."""
        seen: list[Burst | Speed | Fault] = [*self.bursts, *self.again, *self.speeds, *self.speeds_again, *self.faults]
        nodes = {*self.members, *self.pools, *self.groups, *self.lost, *self.refused, *self.clocks, *self.work}
        nodes.update(self.counters, self.watched_s, (n for n, _ in self.counted), (n for n, _ in self.uncounted))
        nodes.update((n for n, _, _ in self.unbound), *(p[:2] for p in self.steered), *(p[:2] for p in self.tcp))
        nodes.update(b.src for b in seen)
        nodes.update(b.dst for b in seen)
        paths = {*self.full_bytes, *self.stopped, *(p for _, p, _ in self.unbound), *(p for p, _ in self.ways.values())}
        steered = {b.path for b in seen} | {p for _, _, p in self.steered}
        if not nodes <= set(range(len(self.nodes))) or not paths | (steered - self.ways.keys()) <= set(
            range(len(self.paths))
        ):
            raise ValueError("nodes or paths that it does not list")
        if any(len(rows) not in (0, len(self.nodes)) for rows in (self.addresses, self.switches)):
            raise ValueError("addresses of other nodes than it lists")
        if any(len(row) != len(self.paths) for rows in (self.addresses, self.switches) for row in rows):
            raise ValueError("addresses on other paths than it lists")

    def num_sent(self, burst: Burst, *, again: bool = False) -> int:
        """Small packets of a burst, as many as were sent."""
        return burst.sent or (self.again_small if again else self.small)

    def num_lost(self, burst: Burst, *, again: bool = False) -> int:
        """Packets of a burst that the fabric lost."""
        return max(0, self.num_sent(burst, again=again) + self.full - burst.small - burst.full - burst.lost_here)

"""What the pair phase and the ranks said, as stored in the run folder: read, not judged. `rejudge` starts here.

Nodes and paths are numbers here, into the lists at the head, as a thousand nodes have a million pairs. Only trains that
did not arrive whole are listed; every other tested pair was whole.
"""

from __future__ import annotations

from typing import Any

import msgspec

PAIRS_SCHEMA = "fairlead.pairs/1"
RANKS_SCHEMA = "fairlead.ranks/1"


class Train(msgspec.Struct, frozen=True, array_like=True):
    """How one train of numbered packets arrived: counts of packets and of flows."""

    src: int
    dst: int
    path: int
    small: int
    full: int
    whole_flows: int
    dark_flows: int
    lost_here: int = 0
    """Packets the receiving socket had no room for: they did cross the fabric."""


class Speed(msgspec.Struct, frozen=True, array_like=True):
    """One burst of full-size packets: how fast it arrived, and the shortest of a few round trips before it."""

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
    alone: bool = False


class PairFacts(msgspec.Struct, kw_only=True):
    """Everything the pair phase saw."""

    schema: str = PAIRS_SCHEMA
    nodes: tuple[str, ...]
    paths: tuple[str, ...]
    """`fabric` (the one address of a node), then `plane 0`, ... where the fabric has planes."""
    addresses: tuple[tuple[str, ...], ...] = ()
    groups: dict[int, int] = {}
    """Node -> number of the switch it hangs below, where that is known."""
    small: int
    full: int
    full_bytes: dict[int, int] = {}
    """Path -> payload of a full-size packet."""
    num_flows: int
    port_bps: float = 0
    """What a port is meant to carry, b/s; 0: nobody says."""
    again_small: int
    trains: list[Train] = []
    """First pass: trains that did not arrive whole."""
    again: list[Train] = []
    """Repeated in quiet, as something was wrong the first time: all of them, whole or not."""
    speeds: list[Speed] = []
    speeds_again: list[Speed] = []
    members: tuple[int, ...] = ()
    """Nodes that took part in the trains; round r sent from each to the r-th behind it in this order."""
    stopped: dict[int, int] = {}
    """Path -> last round of trains it took part in: it had failed nearly everywhere by then."""
    faults: list[Fault] = []
    unbound: list[tuple[int, int, str]] = []
    """(node, path, error): an address the node does not have."""
    tcp: list[tuple[int, int, str]] = []
    """(from, to, error): connections that did not carry a message."""
    tcp_tested: int = 0
    tcp_skipped: bool = False
    lost: dict[int, str] = {}
    """Nodes that stopped answering, and what was last known."""
    clocks: dict[int, Clock] = {}
    work: dict[int, list[Work]] = {}
    rounds: dict[str, int] = {}
    """How many rounds of each kind were run."""
    took_s: dict[str, float] = {}


class RankFacts(msgspec.Struct, kw_only=True):
    """Everything the ranks said and how each ended."""

    schema: str = RANKS_SCHEMA
    nodes: tuple[str, ...]
    per_node: int
    """Ranks on each node."""
    wanted: int
    limit_s: float
    backend: str
    lines: list[dict[str, Any]] = []
    """What ranks said, with `node`, `rank` and `at_s` (seconds since the launch, by this side's clock) added."""
    beats: dict[int, dict[str, Any]] = {}
    """The last sign of life of each rank."""
    nccl: dict[int, list[str]] = {}
    """What NCCL said about the network it chose."""
    words: dict[int, list[str]] = {}
    """Everything else a rank wrote."""
    ends: list[RankEnd] = []
    took_s: float = 0.0
    launch_only: str = ""
    """Why the ranks only started and met nobody; empty where they did everything."""
    waiting: Waiting | None = None
    """The step had not begun when it was given up; None where it had."""
    broken: str = ""
    """Why the group was stopped from outside: empty where it ended by itself."""


class Waiting(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A job or a step of Slurm that waits."""

    job: str
    said: str
    """What srun said."""
    squeue: str = ""
    """`STATE|REASON`, as squeue says it; empty where it could not be asked."""


class RankEnd(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one rank's process ended."""

    node: str
    rank: int
    state: str
    rc: int | None = None
    error: str = ""
    stderr: str = ""
    at_s: float = 0.0

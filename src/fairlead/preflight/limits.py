"""The numbers of the pair phase and what follows from them. No number here depends on how fast a link is.

How long a train must be. A link that loses one packet in twenty, one way, lets a whole train of k packets pass with
probability 0.95^k: for the 208 of the first pass 2.3e-5 a pair, and a faulty port is met by at least one pair more.

What it takes to accuse. Any damage in the first pass is only a suspicion: two repetitions of 408 packets, in quiet,
must each lose 1 % or more, which is 5 packets. At 5 % loss one misses that with probability 1.4e-5; a link that loses
one packet in ten thousand reaches it with 7.4e-10. Packets that arrived and found no room in the receiver's socket are
not counted as lost.

What a train may weigh. Its 208 packets are under 100 KB at an MTU of 9000, less than the buffer of any port that one
would use for this, so that even a link a hundred times slower than its neighbours delivers it whole, only later.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Numbers with units. The defaults are what `preflight` uses."""

    # ---- trains
    small: int = 200
    """Small packets in a train of the first pass."""
    again_small: int = 400
    """Small packets in a repeated train."""
    full: int = 8
    """Full-size packets in a train."""
    burst: int = 8
    gap_us: int = 1_000
    """Packets sent at once, and the pause behind them."""
    quiet_ms: int = 300
    """A late packet is waited for until nothing has come for this long."""
    loss: float = 0.01
    """Share of packets lost from which a repeated train counts as lossy."""
    min_witnesses: int = 2
    """Repetitions that must agree before anything is accused: with different partners where there are any."""

    min_slow_witnesses: int = 3
    """The same for rates and round trips, where one good measurement clears a pair."""

    # ---- rates and round trips
    speed_bytes: int = 1 << 20
    skip_bytes: int = 64 << 10
    """What a shaper may have saved up while nothing was sent, and lets through unshaped."""
    window_bytes: int = 96 << 10
    """A rate is taken from stretches that are at least so much longer; see `wire.rate_of`."""
    speed_budget_ms: int = 300
    """A burst ends here on a slow link; what the sender's sockets hold by then is enough."""
    again_bytes: int = 2 << 20
    again_budget_ms: int = 600
    """A repeated burst is longer, so that a busy machine has more chances to show a stretch at full rate."""
    speed_quiet_ms: int = 100
    """As `quiet_ms`, for bursts, of which a part is enough."""
    pings: int = 5
    slow_ratio: float = 0.5
    """A rate below this share of the fleet's median is a slow link."""
    floor_ratio: float = 0.2
    floor_bps: float = 200e6
    """And below the floor: this share of what a port is meant to carry, or what any node's processor can send, if that
    is less. It is what finds a fabric that is slow as a whole, where no median can."""
    late_ratio: float = 5.0
    late_mads: float = 10.0
    """A shortest round trip beyond both (times the median; median absolute deviations above it) is late: a warning."""

    # ---- nodes
    clock_ns: int = 100_000_000
    clock_exchanges: int = 4
    work_blocks: int = 500
    """Blocks of 64 KiB to hash."""
    slow_node_ratio: float = 2.0
    """A node that takes this many times the fleet's median for the same work, alone, is slow."""

    # ---- patience
    lost_s: float = 3.0
    """A node that is this much later than everybody else is lost."""
    start_s: float = 15.0
    """Time from the start of the agents to their first word."""
    tcp_s: float = 2.0


DEFAULT = Limits()

"""What a fabric has to carry: flows between NICs, their messages, and what each message waits for.

A workload is plain arrays, so that 131,072 NICs cost no more objects than four. Flows are pairs of NICs with one queue
pair each; messages of a flow go in the order they are listed; a message waits for a time, or for the end of other
messages that its own NIC sent or received.

Knows: the order of messages. Must not know: packets, protocols, topology beyond the number of NICs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

AFTER_SENT, AFTER_PLACED = 0, 1
"""A message may follow one that its NIC sent and knows to have arrived, or one that was placed at its NIC."""


def _none() -> Ints:
    return np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class Workload:
    """Flows and messages. All times in ps.

    `edges` holds rows (message, message that follows it, AFTER_SENT or AFTER_PLACED). A message with no such
    predecessor goes at `start`, the others `start` after the last predecessor ended.
    """

    src: Ints
    """Sending NIC of each flow."""
    dst: Ints
    flow: Ints
    """Flow of each message."""
    size: Ints
    """Bytes of each message."""
    start: Ints
    edges: Ints = field(default_factory=lambda: np.zeros((0, 3), dtype=np.int64))
    group: Ints = field(default_factory=_none)
    """Which part of the traffic a flow belongs to, for results; one number per flow."""
    step: Ints = field(default_factory=_none)
    """Which training step a message belongs to; empty where there are none."""

    @property
    def num_flows(self) -> int:
        """Queue pairs."""
        return len(self.src)

    @property
    def num_messages(self) -> int:
        """Messages of all flows."""
        return len(self.flow)

    def check(self) -> None:
        """Programmer errors: a successor that cannot know when it may go."""
        src, dst = self.src[self.flow], self.dst[self.flow]
        before, after, how = self.edges.T if len(self.edges) else (_none(), _none(), _none())
        known_at = np.where(how == AFTER_SENT, src[before], dst[before])
        assert (known_at == src[after]).all(), "a message follows one that its NIC neither sent nor received"
        assert (self.src != self.dst).all(), "a NIC does not send to itself"


def one_message_each(src: Ints, dst: Ints, size: int | Ints, start: int | Ints = 0, group: int = 0) -> Workload:
    """A workload of independent messages, one per flow."""
    num = len(src)
    return Workload(
        src=np.asarray(src, dtype=np.int64),
        dst=np.asarray(dst, dtype=np.int64),
        flow=np.arange(num, dtype=np.int64),
        size=np.broadcast_to(np.asarray(size, dtype=np.int64), num).copy(),
        start=np.broadcast_to(np.asarray(start, dtype=np.int64), num).copy(),
        group=np.full(num, group, dtype=np.int64),
    )


def together(parts: list[Workload]) -> Workload:
    """Several workloads in one fabric; group numbers follow the order of the parts."""
    flows = np.cumsum([0, *(p.num_flows for p in parts)])
    messages = np.cumsum([0, *(p.num_messages for p in parts)])
    has_steps = any(len(p.step) for p in parts)
    return Workload(
        src=np.concatenate([p.src for p in parts]),
        dst=np.concatenate([p.dst for p in parts]),
        flow=np.concatenate([p.flow + f for p, f in zip(parts, flows, strict=False)]),
        size=np.concatenate([p.size for p in parts]),
        start=np.concatenate([p.start for p in parts]),
        edges=np.concatenate([p.edges + np.array([m, m, 0]) for p, m in zip(parts, messages, strict=False)]),
        group=np.concatenate([np.full(p.num_flows, i, dtype=np.int64) for i, p in enumerate(parts)]),
        step=np.concatenate([p.step if len(p.step) else np.full(p.num_messages, -1) for p in parts])
        if has_steps
        else _none(),
    )

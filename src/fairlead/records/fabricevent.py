"""What happened on a fabric, one event a line: the same for packets on a wire and for a simulated run. Pure data.

    packet      one went out of an end, or came in there
    message     one was asked for, or is complete
    fault       a part of the fabric changed

A reader skips fields that it does not know. Times are nanoseconds: of Unix time on a wire, of the run in a simulator.
"""

from __future__ import annotations

from typing import Literal

import msgspec

SCHEMA = "fairlead.fabric-event/1"


class FabricEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event. What does not apply, or is not known, is left out."""

    at_ns: int
    what: Literal["sent", "received", "begun", "complete", "fault", "repair"]
    node: str = ""
    """Where it was seen: the name of a node, or the number of a NIC."""
    peer: str = ""
    """Where a message goes to."""
    plane: int | None = None
    """Of the fabric, where it has numbered planes; else the number of the port."""
    path: str = ""
    """The address a packet was sent to, which is its path on a fabric of micro-segments; the part a fault is about."""
    ev: int | None = None
    """Entropy value."""
    op: str = ""
    """Of a packet `write_middle`, `sack`, ...; of a fault its kind."""
    qp: int | None = None
    """The queue pair that a packet is for."""
    psn: int | None = None
    num_bytes: int | None = None
    """Of a packet the UDP payload; of a message all of it."""
    again: bool = False
    """Sent before."""
    marked: bool = False
    """Congestion was experienced (ECN)."""
    trimmed: bool = False
    """A switch has cut the payload away."""


def line(event: FabricEvent) -> str:
    """As a file of events has it."""
    return msgspec.json.encode(event).decode() + "\n"

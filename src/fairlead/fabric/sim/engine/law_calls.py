"""How the engine calls the handlers of the law: as units (`mrc/units.py`), by addresses in the world vector.

Knows: the arguments of the handlers. Must not know: what they decide.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fairlead.fabric.mrc import units
from fairlead.fabric.sim.engine import layout as at
from fairlead.fabric.sim.engine.jit import call, engine_inline

UNITS: dict[int, Callable[..., int]] = {
    at.C_POST: units.post,
    at.C_READY: units.ready,
    at.C_NEXT_PACKET: units.next_unpaced,
    at.C_ON_SACK: units.on_sack,
    at.C_ON_NACK: units.on_nack,
    at.C_ON_ACK: units.on_ack,
    at.C_ON_TIMER: units.on_timer,
    at.C_ON_DATA: units.on_data,
    at.C_ON_PROBE: units.on_probe,
    at.C_CONTROL_SLOT: units.control_slot,
    at.C_REPLY_SLOT: units.reply_slot,
    at.C_NEXT_CONTROL: units.next_control,
    at.C_ON_RX_TIMER: units.on_rx_timer,
    at.C_ON_PORTS: units.on_ports,
    at.C_ON_PEER_PORTS: units.on_peer_ports,
    at.C_ON_REPLY: units.on_reply,
}
"""Where in the world vector the address of each unit stands, and the unit."""


# --- calls, from inside the engine ------------------------------------------------------------------------------------


@engine_inline
def block_address(w: Any, thread: int) -> int:
    """Where the block of a thread stands."""
    return w[at.T_BLOCKS] + thread * at.BLOCK_COLUMNS * 8


@engine_inline
def post(w: Any, tx: int, num_bytes: int) -> int:
    """A message to send; 0 if there is no room for one more."""
    return call(w[at.C_POST], w[at.T_MEMORY], tx, num_bytes)


@engine_inline
def ready(w: Any, tx: int) -> int:
    """1 if a free port would be used."""
    return call(w[at.C_READY], w[at.T_MEMORY], tx)


@engine_inline
def next_packet(w: Any, thread: int, tx: int, now_ns: int, ports: int) -> int:
    """What to send on one of the ports; details in the block."""
    return call(w[at.C_NEXT_PACKET], w[at.T_MEMORY], tx, now_ns, ports, block_address(w, thread))


@engine_inline
def on_sack(w: Any, thread: int, tx: int, now_ns: int) -> int:
    """The SACK in the block."""
    return call(w[at.C_ON_SACK], w[at.T_MEMORY], tx, now_ns, block_address(w, thread))


@engine_inline
def on_nack(w: Any, thread: int, tx: int, now_ns: int) -> int:
    """The NACK in the block."""
    return call(w[at.C_ON_NACK], w[at.T_MEMORY], tx, now_ns, block_address(w, thread))


@engine_inline
def on_ack(w: Any, tx: int, now_ns: int, msn: int) -> int:
    """A transport ACK."""
    return call(w[at.C_ON_ACK], w[at.T_MEMORY], tx, now_ns, msn)


@engine_inline
def on_timer(w: Any, tx: int, now_ns: int) -> int:
    """The requestor's deadline has passed."""
    return call(w[at.C_ON_TIMER], w[at.T_MEMORY], tx, now_ns)


@engine_inline
def on_data(w: Any, thread: int, rx: int, now_ns: int, psn: int, payload: int, flags: int, slot: int, echo: int) -> int:
    """A data packet; the answer, if any, in the block."""
    block = block_address(w, thread)
    return call(w[at.C_ON_DATA], w[at.T_MEMORY], rx, now_ns, psn, payload, flags, slot, echo, block)


@engine_inline
def on_probe(w: Any, thread: int, rx: int, probe: int, flags: int, slot: int, echo: int) -> int:
    """A reliability probe; the answer in the block."""
    return call(w[at.C_ON_PROBE], w[at.T_MEMORY], rx, probe, flags, slot, echo, block_address(w, thread))


@engine_inline
def control_slot(w: Any, rx: int, slot: int, ports: int) -> int:
    """The EV an answer takes."""
    return call(w[at.C_CONTROL_SLOT], w[at.T_MEMORY], rx, slot, ports)


@engine_inline
def reply_slot(w: Any, tx: int, ports: int) -> int:
    """The EV on which a requestor answers a probe."""
    return call(w[at.C_REPLY_SLOT], w[at.T_MEMORY], tx, ports)


@engine_inline
def next_control(w: Any, thread: int, rx: int, now_ns: int, ports: int) -> int:
    """What a responder sends of its own accord; details in the block."""
    return call(w[at.C_NEXT_CONTROL], w[at.T_MEMORY], rx, now_ns, ports, block_address(w, thread))


@engine_inline
def on_rx_timer(w: Any, rx: int, now_ns: int) -> int:
    """The responder's deadline has passed."""
    return call(w[at.C_ON_RX_TIMER], w[at.T_MEMORY], rx, now_ns)


@engine_inline
def on_ports(w: Any, row: int, now_ns: int, up: int, announce: int) -> int:
    """Local ports changed."""
    return call(w[at.C_ON_PORTS], w[at.T_MEMORY], row, now_ns, up, announce)


@engine_inline
def on_peer_ports(w: Any, row: int, up: int, number: int, plane: int) -> int:
    """The peer's ports changed, it says by this plane; updates are numbered."""
    return call(w[at.C_ON_PEER_PORTS], w[at.T_MEMORY], row, up, number, plane)


@engine_inline
def on_reply(w: Any, row: int, now_ns: int, number: int, mark: int, which: int) -> int:
    """A probe or a port status was answered."""
    return call(w[at.C_ON_REPLY], w[at.T_MEMORY], row, now_ns, number, mark, which)

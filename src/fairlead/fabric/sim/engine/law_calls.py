"""The handlers of the protocol law as separately compiled units, and how the engine calls them.

A handler is compiled once, alone, and called by its address, which stands in the world vector. Linked into the loops
that call it, it would be optimised again with each of them: that took 80 s instead of 20 and gained nothing at run
time.

Knows: the arguments of the handlers. Must not know: what they decide.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fairlead.fabric.mrc import law
from fairlead.fabric.sim.engine import layout as at
from fairlead.fabric.sim.engine.jit import call, engine_inline, words

# --- units: everything is an address or a number ----------------------------------------------------------------------


def _post(m: int, tx: int, num_bytes: int) -> int:
    return law.post(words(m), tx, num_bytes, 0)


def _ready(m: int, tx: int) -> int:
    return law.ready(words(m), tx)


def _next_packet(m: int, tx: int, now: int, ports: int, out: int) -> int:
    return law.next_packet(words(m), tx, now, ports, words(out), 0)


def _on_sack(m: int, tx: int, now: int, block: int) -> int:
    return law.on_sack(words(m), tx, now, words(block), 0)


def _on_nack(m: int, tx: int, now: int, block: int) -> int:
    return law.on_nack(words(m), tx, now, words(block), 0)


def _on_ack(m: int, tx: int, now: int, msn: int) -> int:
    return law.on_ack(words(m), tx, now, msn)


def _on_timer(m: int, tx: int, now: int) -> int:
    return law.on_timer(words(m), tx, now)


def _on_data(m: int, rx: int, now: int, psn: int, payload: int, flags: int, slot: int, echo: int, block: int) -> int:
    return law.on_data(words(m), rx, now, psn, payload, flags, slot, echo, words(block), 0)


def _on_probe(m: int, rx: int, probe: int, flags: int, slot: int, echo: int, block: int) -> int:
    return law.on_probe(words(m), rx, probe, flags, slot, echo, words(block), 0)


def _control_slot(m: int, rx: int, slot: int, ports: int) -> int:
    return law.control_slot(words(m), rx, slot, ports)


def _reply_slot(m: int, tx: int, ports: int) -> int:
    return law.reply_slot(words(m), tx, ports)


def _next_control(m: int, rx: int, now: int, ports: int, out: int) -> int:
    return law.next_control(words(m), rx, now, ports, words(out), 0)


def _on_rx_timer(m: int, rx: int, now: int) -> int:
    return law.on_rx_timer(words(m), rx, now)


def _on_ports(m: int, row: int, now: int, up: int, announce: int) -> int:
    return law.on_ports(words(m), row, now, up, announce)


def _on_peer_ports(m: int, row: int, up: int, number: int, plane: int) -> int:
    return law.on_peer_ports(words(m), row, up, number, plane)


def _on_reply(m: int, row: int, now: int, number: int, mark: int, which: int) -> int:
    """The answer to an EV probe of a requestor (REPLY_EV) or a responder (REPLY_REVERSE), or to a port status."""
    if which == REPLY_EV:
        return law.on_ev_reply(words(m), row, now, number, mark)
    if which == REPLY_REVERSE:
        return law.on_reverse_reply(words(m), row, now, number, mark)
    return law.on_status_reply(words(m), row, number)


REPLY_EV, REPLY_REVERSE, REPLY_STATUS = range(3)

UNITS: dict[int, tuple[Callable[..., int], int]] = {
    at.C_POST: (_post, 3),
    at.C_READY: (_ready, 2),
    at.C_NEXT_PACKET: (_next_packet, 5),
    at.C_ON_SACK: (_on_sack, 4),
    at.C_ON_NACK: (_on_nack, 4),
    at.C_ON_ACK: (_on_ack, 4),
    at.C_ON_TIMER: (_on_timer, 3),
    at.C_ON_DATA: (_on_data, 9),
    at.C_ON_PROBE: (_on_probe, 7),
    at.C_CONTROL_SLOT: (_control_slot, 4),
    at.C_REPLY_SLOT: (_reply_slot, 3),
    at.C_NEXT_CONTROL: (_next_control, 5),
    at.C_ON_RX_TIMER: (_on_rx_timer, 3),
    at.C_ON_PORTS: (_on_ports, 5),
    at.C_ON_PEER_PORTS: (_on_peer_ports, 5),
    at.C_ON_REPLY: (_on_reply, 6),
}
"""Where in the world vector the address of each unit stands, the unit, and how many arguments it takes."""


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

"""The handlers of the law as separately compiled units: every argument an address or a number.

A handler is compiled once, alone, and called by its address. Linked into the loops that call it, it would be optimised
again with each of them: that took 80 s instead of 20 and gained nothing at run time. All drivers share the units.
"""
# ruff: noqa: PLR0917 - as the law

from __future__ import annotations

from collections.abc import Callable

from fairlead.fabric.mrc import law
from fairlead.fabric.mrc.compile import compiled, entry, words_at
from fairlead.fabric.mrc.rows import endpoint_row, requestor_row, responder_row

REPLY_EV, REPLY_REVERSE, REPLY_STATUS = range(3)


def address(unit: Callable[..., int]) -> int:
    """Where the compiled code of a unit begins; compiled now, if it never was."""
    return entry(compiled(unit))


def post(m: int, tx: int, num_bytes: int) -> int:
    """`law.post` of a Write without immediate."""
    return law.post(requestor_row(words_at(m), tx), num_bytes, 0)


def ready(m: int, tx: int) -> int:
    """`law.ready`."""
    return law.ready(requestor_row(words_at(m), tx))


def next_packet(m: int, tx: int, now: int, ports: int, out: int) -> int:
    """`law.next_packet`."""
    return law.next_packet(requestor_row(words_at(m), tx), now, ports, words_at(out))


def next_unpaced(m: int, tx: int, now: int, ports: int, out: int) -> int:
    """`law.next_unpaced`, for drivers whose profiles have no pace: none of it is compiled into this unit."""
    return law.next_unpaced(requestor_row(words_at(m), tx), now, ports, words_at(out))


def on_sack(m: int, tx: int, now: int, block: int) -> int:
    """`law.on_sack`."""
    return law.on_sack(requestor_row(words_at(m), tx), now, words_at(block))


def on_nack(m: int, tx: int, now: int, block: int) -> int:
    """`law.on_nack`."""
    return law.on_nack(requestor_row(words_at(m), tx), now, words_at(block))


def on_ack(m: int, tx: int, now: int, msn: int) -> int:
    """`law.on_ack`."""
    return law.on_ack(requestor_row(words_at(m), tx), now, msn)


def on_timer(m: int, tx: int, now: int) -> int:
    """`law.on_timer`."""
    return law.on_timer(requestor_row(words_at(m), tx), now)


def on_data(m: int, rx: int, now: int, psn: int, payload: int, flags: int, slot: int, echo: int, block: int) -> int:
    """`law.on_data`."""
    return law.on_data(responder_row(words_at(m), rx), now, psn, payload, flags, slot, echo, words_at(block))


def on_probe(m: int, rx: int, probe: int, flags: int, slot: int, echo: int, block: int) -> int:
    """`law.on_probe`."""
    return law.on_probe(responder_row(words_at(m), rx), probe, flags, slot, echo, words_at(block))


def control_slot(m: int, rx: int, slot: int, ports: int) -> int:
    """`law.control_slot`."""
    return law.control_slot(responder_row(words_at(m), rx), slot, ports)


def reply_slot(m: int, tx: int, ports: int) -> int:
    """`law.reply_slot`."""
    return law.reply_slot(requestor_row(words_at(m), tx), ports)


def next_control(m: int, rx: int, now: int, ports: int, out: int) -> int:
    """`law.next_control`."""
    return law.next_control(responder_row(words_at(m), rx), now, ports, words_at(out))


def on_rx_timer(m: int, rx: int, now: int) -> int:
    """`law.on_rx_timer`."""
    return law.on_rx_timer(responder_row(words_at(m), rx), now)


def on_ports(m: int, row: int, now: int, up: int, announce: int) -> int:
    """`law.on_ports`."""
    return law.on_ports(endpoint_row(words_at(m), row), now, up, announce)


def on_peer_ports(m: int, row: int, up: int, number: int, plane: int) -> int:
    """`law.on_peer_ports`."""
    return law.on_peer_ports(endpoint_row(words_at(m), row), up, number, plane)


def on_reply(m: int, row: int, now: int, number: int, mark: int, which: int) -> int:
    """The answer to an EV probe of a requestor (REPLY_EV) or a responder (REPLY_REVERSE), or to a port status."""
    if which == REPLY_EV:
        return law.on_ev_reply(requestor_row(words_at(m), row), now, number, mark)
    if which == REPLY_REVERSE:
        return law.on_reverse_reply(responder_row(words_at(m), row), now, number, mark)
    return law.on_status_reply(endpoint_row(words_at(m), row), number)

"""Carrying packets and times between the protocol law and the ports of a NIC.

Which flow sends what, on which path and when, what an arrival means and what is answered: all that is the law's
business (`fairlead.fabric.mrc.law`), called here and nowhere else in the engine.

Knows: the calls of the law and what a record must carry for them. Must not know: any rule of the protocol.
"""

from __future__ import annotations

from typing import Any

from fairlead.fabric.mrc import units
from fairlead.fabric.mrc.law import probe_mark
from fairlead.fabric.mrc.layout import (
    D_BYTES,
    D_EV,
    D_FLAGS,
    D_OFFSET,
    D_PLANE,
    D_PSN,
    DID_COMPLETE,
    DO_ACK,
    DO_CONTROL,
    DO_NACK,
    DO_PLACE,
    DO_SACK,
    SEND_DATA,
    SEND_NOTHING,
    SEND_PORT_STATUS,
    SEND_PROBE,
)
from fairlead.fabric.mrc.rows import requestor_row, responder_row
from fairlead.fabric.sim.engine import law_calls, wire, work
from fairlead.fabric.sim.engine import layout as at
from fairlead.fabric.sim.engine.jit import call, engine, engine_inline, row_of, words
from fairlead.fabric.sim.engine.line import join_line, leave_line, rx_address, tx_address

ROW_IS_RX = 1 << 32  # in the first body word of probes and status: the row that asked is a responder


@engine_inline
def watch(nic: Any, deadline_ns: int) -> None:
    """The NIC must look at its flows when this deadline of the law comes."""
    nic[at.NC_TIMER] = min(nic[at.NC_TIMER], deadline_ns * 1000 if deadline_ns < at.NEVER // 1000 else at.NEVER)


# --- arrivals ---------------------------------------------------------------------------------------------------------


@engine_inline
def receive(w: Any, thread: int, nic: Any, r: int, now: int) -> None:
    """A packet reached its NIC."""
    store = words(w[at.T_STORE])
    kind = (store[r + at.META] >> at.KIND_SHIFT) & at.KIND_MASK
    row = store[r + at.ROWS] & 0xFFFFFFFF
    if kind == at.KIND_DATA:
        _receive_data(w, thread, nic, r, row, now)
    elif kind >= at.KIND_ROCE_DATA:
        if kind >= at.KIND_PAUSE:
            plane = 1 << ((store[r + at.META] >> at.IN_PORT_SHIFT) & at.PLANE_MASK)
            nic[at.NC_PAUSED] = nic[at.NC_PAUSED] | plane if kind == at.KIND_PAUSE else nic[at.NC_PAUSED] & ~plane
            row_of(w, at.T_THREADS, at.THREAD_COLUMNS, thread)[at.TH_DELIVERED] -= 1  # no NIC sent it
        else:
            call(w[at.C_ROCE_RECEIVE], w[at.W_SELF], thread, nic[at.NC_NUMBER], r, now)
    elif kind == at.KIND_SACK or kind == at.KIND_NACK or kind == at.KIND_ACK:
        m, tx = words(w[at.T_MEMORY]), tx_address(w, row)
        block = row_of(w, at.T_BLOCKS, at.BLOCK_COLUMNS, thread)
        if kind == at.KIND_ACK:
            did = law_calls.on_ack(w, tx, now // 1000, store[r + at.BODY])
        else:
            wire.unpack(store, r, block)
            if kind == at.KIND_SACK:
                did = law_calls.on_sack(w, thread, tx, now // 1000)
            else:
                did = law_calls.on_nack(w, thread, tx, now // 1000)
        watch(nic, requestor_row(m, tx).deadline)
        if did & DID_COMPLETE:
            work.sent(w, thread, nic, row, requestor_row(m, tx).done, now)
        join_line(w, nic, row)
    else:
        _receive_probe(w, thread, nic, r, row, kind, now)


@engine_inline
def _receive_data(w: Any, thread: int, nic: Any, r: int, row: int, now: int) -> None:
    m, store = words(w[at.T_MEMORY]), words(w[at.T_STORE])
    block = row_of(w, at.T_BLOCKS, at.BLOCK_COLUMNS, thread)
    rx = rx_address(w, row)
    body, meta = store[r + at.BODY], store[r + at.META]
    slot, payload = (body >> at.BODY_SLOT_SHIFT) & 0xFF, body >> at.BODY_PAYLOAD_SHIFT
    flags = (meta >> at.FLAGS_SHIFT) & at.FLAGS_MASK
    did = law_calls.on_data(w, thread, rx, now // 1000, body & 0xFFFFFFFF, payload, flags, slot, store[r + at.BODY + 1])
    if did & DO_PLACE:
        work.count_placed(w, thread, row, (meta >> at.IN_PORT_SHIFT) & at.PLANE_MASK, payload, now)
    if did & (DO_SACK | DO_NACK):
        body = row_of(w, at.T_BODIES, at.BLOCK_COLUMNS, thread)
        wire.pack(block, body)
        _answer(w, thread, nic, row, rx, slot, at.KIND_SACK if did & DO_SACK else at.KIND_NACK, body, now)
    if did & DID_COMPLETE:
        work.placed(w, nic, row, responder_row(m, rx).done, now)
    if did & DO_ACK:
        block[0] = responder_row(m, rx).done - 1
        _answer(w, thread, nic, row, rx, slot, at.KIND_ACK, block, now)
    if did & DO_CONTROL:
        _send_responder_control(w, thread, nic, row, rx, now)


@engine_inline
def _answer(w: Any, thread: int, nic: Any, row: int, rx: int, slot: int, kind: int, block: Any, now: int) -> None:
    """Send a control packet from a responder to its requestor."""
    back = law_calls.control_slot(w, rx, slot, nic[at.NC_PORTS])
    if back >= 0:
        _to_requestor(w, thread, nic, row, back, kind, block, now)


@engine_inline
def _to_requestor(w: Any, thread: int, nic: Any, row: int, slot: int, kind: int, body: Any, now: int) -> None:
    receiver = row_of(w, at.T_RECEIVERS, at.RECEIVER_COLUMNS, row)
    flow = receiver[at.RC_FLOW]
    back = flow | wire.REVERSE
    route = receiver[at.RC_ROUTE] | wire.path_of(w, back, receiver[at.RC_STRIDE], slot) << at.ROUTE_PATH_SHIFT
    meta = w[at.W_SIZES + kind] | kind << at.KIND_SHIFT
    wire.send_control(
        w, thread, nic, slot >> w[at.W_EV_SHIFT], now, meta, route, flow | back << at.ROWS_FLOW_SHIFT, body
    )


# --- probes and port status -------------------------------------------------------------------------------------------


@engine
def _receive_probe(w: Any, thread: int, nic: Any, r: int, row: int, kind: int, now: int) -> None:
    """Reliability probes, EV probes, port status, and the answers to them."""
    m, store = words(w[at.T_MEMORY]), words(w[at.T_STORE])
    block = row_of(w, at.T_BLOCKS, at.BLOCK_COLUMNS, thread)
    number, slot, value = store[r + at.BODY] & 0xFFFFFFFF, store[r + at.BODY + 1], store[r + at.BODY + 2]
    from_rx = store[r + at.BODY] & ROW_IS_RX
    flags = (store[r + at.META] >> at.FLAGS_SHIFT) & at.FLAGS_MASK
    now_ns = now // 1000
    if kind == at.KIND_PROBE:
        rx = rx_address(w, row)
        did = law_calls.on_probe(w, thread, rx, number, flags, slot, store[r + at.BODY + 3])
        if did & DO_SACK:
            body = row_of(w, at.T_BODIES, at.BLOCK_COLUMNS, thread)
            wire.pack(block, body)
            _answer(w, thread, nic, row, rx, slot, at.KIND_SACK, body, now)
        if did & DO_CONTROL:
            _send_responder_control(w, thread, nic, row, rx, now)
    elif kind == at.KIND_EV_PROBE or kind == at.KIND_STATUS:
        block[0], block[1], block[2] = store[r + at.BODY], slot, probe_mark(flags)
        reply = at.KIND_EV_REPLY
        if kind == at.KIND_STATUS:
            plane = (store[r + at.META] >> at.IN_PORT_SHIFT) & at.PLANE_MASK
            law_calls.on_peer_ports(w, tx_address(w, row) if from_rx else rx_address(w, row), value, number, plane)
            reply = at.KIND_STATUS_REPLY
        if from_rx:
            back = law_calls.reply_slot(w, tx_address(w, row), nic[at.NC_PORTS])
            if back >= 0:
                _to_responder(w, thread, nic, row, back, reply, block, now)
            join_line(w, nic, row)
        else:
            _answer(w, thread, nic, row, rx_address(w, row), slot, reply, block, now)
    elif from_rx:
        rx = rx_address(w, row)
        if kind == at.KIND_EV_REPLY:
            law_calls.on_reply(w, rx, now_ns, number, value, units.REPLY_REVERSE)
        else:
            law_calls.on_reply(w, rx, now_ns, number, 0, units.REPLY_STATUS)
    else:
        tx = tx_address(w, row)
        if kind == at.KIND_EV_REPLY:
            law_calls.on_reply(w, tx, now_ns, number, value, units.REPLY_EV)
        else:
            law_calls.on_reply(w, tx, now_ns, number, 0, units.REPLY_STATUS)
        watch(nic, requestor_row(m, tx).deadline)
        join_line(w, nic, row)


@engine
def _to_responder(w: Any, thread: int, nic: Any, flow: int, slot: int, kind: int, body: Any, now: int) -> None:
    row = row_of(w, at.T_FLOWS, at.FLOW_COLUMNS, flow)
    route = row[at.FL_ROUTE] | wire.path_of(w, flow, row[at.FL_STRIDE], slot) << at.ROUTE_PATH_SHIFT
    meta = w[at.W_SIZES + kind] | kind << at.KIND_SHIFT
    rows = row[at.FL_RECEIVER] | flow << at.ROWS_FLOW_SHIFT
    wire.send_control(w, thread, nic, slot >> w[at.W_EV_SHIFT], now, meta, route, rows, body)


@engine
def _send_responder_control(w: Any, thread: int, nic: Any, row: int, rx: int, now: int) -> None:
    """A responder wants to send of its own accord: reverse EV probes, port status."""
    m = words(w[at.T_MEMORY])
    out = row_of(w, at.T_BLOCKS, at.BLOCK_COLUMNS, thread)
    body = row_of(w, at.T_BODIES, at.BLOCK_COLUMNS, thread)
    kind = law_calls.next_control(w, thread, rx, now // 1000, nic[at.NC_PORTS])
    while kind != SEND_NOTHING:
        body[0] = out[D_PSN] | ROW_IS_RX
        body[1] = out[D_EV]
        body[2] = out[D_OFFSET]
        what = at.KIND_STATUS if kind == SEND_PORT_STATUS else at.KIND_EV_PROBE
        _to_requestor(w, thread, nic, row, out[D_EV], what, body, now)
        kind = law_calls.next_control(w, thread, rx, now // 1000, nic[at.NC_PORTS])
    deadline = responder_row(m, rx).deadline
    nic[at.NC_RX_TIMER] = min(nic[at.NC_RX_TIMER], deadline * 1000 if deadline < at.NEVER // 1000 else at.NEVER)


# --- sending ----------------------------------------------------------------------------------------------------------


@engine_inline
def send(w: Any, thread: int, nic: Any, now: int) -> None:
    """Offer the idle ports to the flows in line, one packet each, until no port or no taker is left."""
    ports = wire.free_ports(w, nic, now) & ~nic[at.NC_PAUSED]
    tries = nic[at.NC_READY]
    while ports and tries > 0:
        flow = leave_line(w, nic)
        if w[at.W_TRANSPORT] == at.TRANSPORT_ROCE:
            plane = call(w[at.C_ROCE_SEND], w[at.W_SELF], thread, nic[at.NC_NUMBER], flow, ports, now)
        else:
            plane = _send_one(w, thread, nic, flow, ports, now)
        join_line(w, nic, flow)
        if plane >= 0:
            ports &= ~(1 << plane)
            tries = nic[at.NC_READY]
        else:
            tries -= 1


@engine_inline
def _send_one(w: Any, thread: int, nic: Any, flow: int, ports: int, now: int) -> int:
    """Let a flow send one packet; the plane it took, or -1."""
    m, tx = words(w[at.T_MEMORY]), tx_address(w, flow)
    out = row_of(w, at.T_BLOCKS, at.BLOCK_COLUMNS, thread)
    kind = law_calls.next_packet(w, thread, tx, now // 1000, ports)
    watch(nic, requestor_row(m, tx).deadline)
    if kind == SEND_NOTHING:
        return -1
    plane, slot = out[D_PLANE], out[D_EV]
    row = row_of(w, at.T_FLOWS, at.FLOW_COLUMNS, flow)
    route = row[at.FL_ROUTE] | wire.path_of(w, flow, row[at.FL_STRIDE], slot) << at.ROUTE_PATH_SHIFT
    rows = row[at.FL_RECEIVER] | flow << at.ROWS_FLOW_SHIFT
    echo = now // 1000 if w[at.W_ECHO] else -1
    if kind == SEND_DATA:
        meta = (out[D_BYTES] + w[at.W_OVERHEAD]) | at.KIND_DATA << at.KIND_SHIFT | out[D_FLAGS] << at.FLAGS_SHIFT
        body = out[D_PSN] | slot << at.BODY_SLOT_SHIFT | out[D_BYTES] << at.BODY_PAYLOAD_SHIFT
        r = wire.transmit(w, thread, nic, plane, now, meta, route, rows)
        if r >= 0:
            store = words(w[at.T_STORE])
            store[r + at.BODY], store[r + at.BODY + 1] = body, echo
        return plane
    what = at.KIND_EV_PROBE
    if kind == SEND_PROBE:
        what = at.KIND_PROBE
    elif kind == SEND_PORT_STATUS:
        what = at.KIND_STATUS
    r = wire.transmit(w, thread, nic, plane, now, w[at.W_SIZES + what] | what << at.KIND_SHIFT, route, rows)
    if r >= 0:
        store = words(w[at.T_STORE])
        store[r + at.BODY], store[r + at.BODY + 1] = out[D_PSN], slot
        store[r + at.BODY + 2], store[r + at.BODY + 3] = out[D_OFFSET], echo
    return plane


# --- time -------------------------------------------------------------------------------------------------------------


@engine
def run_timers(w: Any, thread: int, nic: Any, now: int) -> None:
    """Some deadline of the law has come: let each flow that is due act, and find the next one."""
    if w[at.W_TRANSPORT] == at.TRANSPORT_ROCE:
        call(w[at.C_ROCE_TIMERS], w[at.W_SELF], nic[at.NC_NUMBER], now)
        return
    m, now_ns = words(w[at.T_MEMORY]), now // 1000
    if nic[at.NC_TIMER] <= now:
        nic[at.NC_TIMER] = at.NEVER
        for flow in range(nic[at.NC_FLOW0], nic[at.NC_FLOW0] + nic[at.NC_FLOWS]):
            tx = tx_address(w, flow)
            if requestor_row(m, tx).deadline <= now_ns:
                law_calls.on_timer(w, tx, now_ns)
                join_line(w, nic, flow)
            watch(nic, requestor_row(m, tx).deadline)
    if nic[at.NC_RX_TIMER] <= now:
        nic[at.NC_RX_TIMER] = at.NEVER
        for row in range(nic[at.NC_RECEIVER0], nic[at.NC_RECEIVER0] + nic[at.NC_RECEIVERS]):
            rx = rx_address(w, row)
            if responder_row(m, rx).deadline <= now_ns and law_calls.on_rx_timer(w, rx, now_ns) & DO_CONTROL:
                _send_responder_control(w, thread, nic, row, rx, now)
            deadline = responder_row(m, rx).deadline
            nic[at.NC_RX_TIMER] = min(nic[at.NC_RX_TIMER], deadline * 1000 if deadline < at.NEVER // 1000 else at.NEVER)


@engine
def tell_ports(w: Any, nic: Any, now: int) -> None:
    """Local ports changed: every endpoint of the NIC hears of it, and may want to tell its peer."""
    m, up = words(w[at.T_MEMORY]), nic[at.NC_PORTS]
    for flow in range(nic[at.NC_FLOW0], nic[at.NC_FLOW0] + nic[at.NC_FLOWS]):
        tx = tx_address(w, flow)
        law_calls.on_ports(w, tx, now // 1000, up, w[at.W_ANNOUNCE])
        watch(nic, requestor_row(m, tx).deadline)
        join_line(w, nic, flow)
    for row in range(nic[at.NC_RECEIVER0], nic[at.NC_RECEIVER0] + nic[at.NC_RECEIVERS]):
        rx = rx_address(w, row)
        if law_calls.on_ports(w, rx, now // 1000, up, w[at.W_ANNOUNCE]) & DO_CONTROL:
            _send_responder_control(w, 0, nic, row, rx, now)

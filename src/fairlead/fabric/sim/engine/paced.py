"""Carrying RoCE packets between the rules of `roce.py` and the ports of a NIC.

Knows: records of the kinds that RoCE uses. Must not know: any rule of RoCE.
"""

from __future__ import annotations

from typing import Any

from fairlead.fabric.sim.engine import layout as at
from fairlead.fabric.sim.engine import roce, wire, work
from fairlead.fabric.sim.engine.jit import engine, row_of, words
from fairlead.fabric.sim.engine.line import join_line


@engine
def _slot(w: Any, flow: int) -> int:
    """The one entropy value of a flow: its plane, and within it always the same path."""
    return (flow % w[at.W_PLANES]) << w[at.W_EV_SHIFT]


@engine
def watch(w: Any, nic: Any, flow: int) -> None:
    """The NIC must look at its flows when this one's timers come."""
    nic[at.NC_TIMER] = min(nic[at.NC_TIMER], roce.deadline(w, flow))


@engine
def receive(w: Any, thread: int, nic: Any, r: int, now: int) -> None:
    """A RoCE packet reached its NIC."""
    store = words(w[at.T_STORE])
    meta, row, psn = store[r + at.META], store[r + at.ROWS] & 0xFFFFFFFF, store[r + at.BODY] & 0xFFFFFFFF
    kind = (meta >> at.KIND_SHIFT) & at.KIND_MASK
    if kind == at.KIND_ROCE_DATA:
        _receive_data(w, thread, nic, row, psn, meta, store[r + at.BODY] >> at.BODY_PAYLOAD_SHIFT, now)
        return
    if kind == at.KIND_CNP:
        roce.on_cnp(w, row, now)
    else:
        done = roce.on_ack(w, row, now, psn) if kind == at.KIND_ROCE_ACK else roce.on_nak(w, row, now, psn)
        work.sent(w, thread, nic, row, done, now)
        join_line(w, nic, row)
    watch(w, nic, row)


@engine
def _receive_data(w: Any, thread: int, nic: Any, row: int, psn: int, meta: int, payload: int, now: int) -> None:
    did = roce.on_data(w, row, now, psn, (meta >> at.FLAGS_SHIFT) & at.FLAGS_MASK)
    if did & roce.PLACE:
        work.count_placed(w, thread, row, (meta >> at.IN_PORT_SHIFT) & at.PLANE_MASK, payload, now)
    expected = row_of(w, at.T_ROCE_RX, roce.RR_COLUMNS, row)[roce.RR_NEXT]
    if did & roce.CNP:
        _answer(w, thread, nic, row, at.KIND_CNP, 0, now)
    if did & roce.NAK:
        _answer(w, thread, nic, row, at.KIND_ROCE_NAK, expected, now)
    elif did & roce.ACK:
        _answer(w, thread, nic, row, at.KIND_ROCE_ACK, expected, now)
    if did & roce.COMPLETE:
        work.placed(w, nic, row, row_of(w, at.T_ROCE_RX, roce.RR_COLUMNS, row)[roce.RR_DONE], now)


@engine
def _answer(w: Any, thread: int, nic: Any, row: int, kind: int, psn: int, now: int) -> None:
    receiver = row_of(w, at.T_RECEIVERS, at.RECEIVER_COLUMNS, row)
    flow = receiver[at.RC_FLOW]
    slot = _slot(w, flow)
    plane = slot >> w[at.W_EV_SHIFT]
    if not nic[at.NC_PORTS] >> plane & 1:
        return
    back = flow | wire.REVERSE
    route = receiver[at.RC_ROUTE] | wire.path_of(w, back, receiver[at.RC_STRIDE], slot) << at.ROUTE_PATH_SHIFT
    body = row_of(w, at.T_BLOCKS, at.BLOCK_COLUMNS, thread)
    body[0] = psn
    meta = w[at.W_SIZES + kind] | kind << at.KIND_SHIFT
    wire.send_control(w, thread, nic, plane, now, meta, route, flow | back << at.ROWS_FLOW_SHIFT, body)


@engine
def send_one(w: Any, thread: int, nic: Any, flow: int, ports: int, now: int) -> int:
    """Let a flow send one packet; the plane it took, or -1 if its port is busy or its rate says wait."""
    slot = _slot(w, flow)
    plane = slot >> w[at.W_EV_SHIFT]
    out = row_of(w, at.T_BLOCKS, at.BLOCK_COLUMNS, thread)
    if not ports >> plane & 1:
        return -1
    if not roce.next_packet(w, flow, now, out):
        ready = row_of(w, at.T_ROCE_TX, roce.RT_COLUMNS, flow)[roce.RT_AT]
        if ready > now:
            nic[at.NC_TIMER] = min(nic[at.NC_TIMER], ready)
        return -1
    watch(w, nic, flow)
    row = row_of(w, at.T_FLOWS, at.FLOW_COLUMNS, flow)
    route = row[at.FL_ROUTE] | wire.path_of(w, flow, row[at.FL_STRIDE], slot) << at.ROUTE_PATH_SHIFT
    meta = (out[1] + w[at.W_OVERHEAD]) | at.KIND_ROCE_DATA << at.KIND_SHIFT | out[2] << at.FLAGS_SHIFT
    rows = row[at.FL_RECEIVER] | flow << at.ROWS_FLOW_SHIFT
    r = wire.transmit(w, thread, nic, plane, now, meta, route, rows)
    if r >= 0:
        words(w[at.T_STORE])[r + at.BODY] = out[0] | out[1] << at.BODY_PAYLOAD_SHIFT
    return plane


@engine
def run_timers(w: Any, nic: Any, now: int) -> None:
    """Some flow's timer or rate has come: let each act, and find the next."""
    if nic[at.NC_TIMER] > now:
        return
    nic[at.NC_TIMER] = at.NEVER
    for flow in range(nic[at.NC_FLOW0], nic[at.NC_FLOW0] + nic[at.NC_FLOWS]):
        if roce.deadline(w, flow) <= now:
            roce.on_timer(w, flow, now)
            join_line(w, nic, flow)
        watch(w, nic, flow)
        ready = row_of(w, at.T_ROCE_TX, roce.RT_COLUMNS, flow)[roce.RT_AT]
        if ready > now and roce.has_packet(w, flow):
            nic[at.NC_TIMER] = min(nic[at.NC_TIMER], ready)

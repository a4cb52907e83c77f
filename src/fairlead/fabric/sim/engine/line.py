"""The flows of a NIC that wait for a port, in turn; and where each flow's endpoints stand in memory.

Knows: which transport a flow uses. Must not know: packets.
"""

from __future__ import annotations

from typing import Any

from fairlead.fabric.sim.engine import law_calls, roce
from fairlead.fabric.sim.engine import layout as at
from fairlead.fabric.sim.engine.jit import engine, engine_inline, row_of


@engine_inline
def tx_address(w: Any, flow: int) -> int:
    """Address of the requestor of a flow."""
    return w[at.W_TX_BASE] + flow * w[at.W_TX_STRIDE]


@engine_inline
def rx_address(w: Any, receiver: int) -> int:
    """Address of the responder of a receiver."""
    return w[at.W_RX_BASE] + receiver * w[at.W_RX_STRIDE]


@engine
def post(w: Any, flow: int, num_bytes: int) -> bool:
    """Give a message to a flow's endpoint; False while it has no room for one more."""
    if w[at.W_TRANSPORT] == at.TRANSPORT_ROCE:
        roce.post(w, flow)
        return True
    return law_calls.post(w, tx_address(w, flow), num_bytes) != 0


@engine_inline
def can_send(w: Any, flow: int) -> bool:
    """Whether the flow would send a packet if a port were free."""
    if w[at.W_TRANSPORT] == at.TRANSPORT_ROCE:
        return roce.has_packet(w, flow)
    return law_calls.ready(w, tx_address(w, flow)) != 0


@engine_inline
def join_line(w: Any, nic: Any, flow: int) -> None:
    """Put a flow that may send at the end of the line for a port."""
    row = row_of(w, at.T_FLOWS, at.FLOW_COLUMNS, flow)
    if row[at.FL_IS_READY] or not can_send(w, flow):
        return
    row[at.FL_IS_READY] = 1
    row[at.FL_NEXT_READY] = -1
    if nic[at.NC_READY_HEAD] < 0:
        nic[at.NC_READY_HEAD] = flow
    else:
        row_of(w, at.T_FLOWS, at.FLOW_COLUMNS, nic[at.NC_READY_TAIL])[at.FL_NEXT_READY] = flow
    nic[at.NC_READY_TAIL] = flow
    nic[at.NC_READY] += 1


@engine_inline
def leave_line(w: Any, nic: Any) -> int:
    """Take the first flow out of the line."""
    flow = nic[at.NC_READY_HEAD]
    row = row_of(w, at.T_FLOWS, at.FLOW_COLUMNS, flow)
    nic[at.NC_READY_HEAD] = row[at.FL_NEXT_READY]
    nic[at.NC_READY] -= 1
    row[at.FL_IS_READY] = 0
    return flow

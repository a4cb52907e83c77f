"""Messages: when each may go, and what follows from its end.

A message goes when everything it waits for has happened and its delay (a computation) has passed. What it waits for
are other messages: ones its own NIC sent (the sender knows that they arrived) or received (the last byte is placed).
Both are known at the NIC that will send it, so no news has to travel. Messages of one flow go in the order they were
listed.

Knows: messages, their order and their ends. Must not know: packets.
"""

from __future__ import annotations

from typing import Any

from fairlead.fabric.sim.engine import layout as at
from fairlead.fabric.sim.engine.jit import engine, engine_inline, halves, row_of
from fairlead.fabric.sim.engine.line import join_line, post


@engine_inline
def _message(w: Any, number: int) -> Any:
    return row_of(w, at.T_MESSAGES, at.MESSAGE_COLUMNS, number)


@engine
def start_due(w: Any, thread: int, nic: Any, now: int) -> None:
    """Hand every message whose time has come to the law."""
    while nic[at.NC_DUE] >= 0 and _message(w, nic[at.NC_DUE])[at.MS_DUE] <= now:
        message = nic[at.NC_DUE]
        nic[at.NC_DUE] = _message(w, message)[at.MS_NEXT]
        _message(w, message)[at.MS_READY] = 1
        post_ready(w, nic, _message(w, message)[at.MS_FLOW], now)


@engine
def post_ready(w: Any, nic: Any, flow: int, now: int) -> None:
    """Post the messages of a flow that are due, in order, as far as the law takes them."""
    row = row_of(w, at.T_FLOWS, at.FLOW_COLUMNS, flow)
    while row[at.FL_POSTED] < row[at.FL_MESSAGES]:
        message = _message(w, row[at.FL_MESSAGE0] + row[at.FL_POSTED])
        if not message[at.MS_READY] or not post(w, flow, message[at.MS_BYTES]):
            break
        row[at.FL_POSTED] += 1
    join_line(w, nic, flow)


@engine
def sent(w: Any, thread: int, nic: Any, flow: int, done: int, now: int) -> None:
    """The sender knows that the first `done` messages of a flow arrived."""
    row = row_of(w, at.T_FLOWS, at.FLOW_COLUMNS, flow)
    while row[at.FL_SENT] < done:
        message = _message(w, row[at.FL_MESSAGE0] + row[at.FL_SENT])
        row[at.FL_SENT] += 1
        message[at.MS_ACKED] = now
        row_of(w, at.T_THREADS, at.THREAD_COLUMNS, thread)[at.TH_DONE] += 1
        _release(w, nic, message[at.MS_AFTER_SENT], message[at.MS_NUM_AFTER_SENT], now)
    post_ready(w, nic, flow, now)


@engine
def placed(w: Any, nic: Any, receiver: int, done: int, now: int) -> None:
    """The first `done` messages of a flow are complete at its receiver."""
    row = row_of(w, at.T_RECEIVERS, at.RECEIVER_COLUMNS, receiver)
    while row[at.RC_DONE] < done:
        message = _message(w, row[at.RC_MESSAGE0] + row[at.RC_DONE])
        row[at.RC_DONE] += 1
        message[at.MS_PLACED] = now
        _release(w, nic, message[at.MS_AFTER_PLACED], message[at.MS_NUM_AFTER_PLACED], now)


@engine
def _release(w: Any, nic: Any, first: int, num: int, now: int) -> None:
    """One thing that these successors waited for has happened."""
    successors = halves(w[at.T_SUCCESSORS])
    for i in range(first, first + num):
        message = _message(w, successors[i])
        message[at.MS_WAIT] -= 1
        if message[at.MS_WAIT] == 0:
            _schedule(w, nic, successors[i], now + message[at.MS_DELAY])


@engine
def _schedule(w: Any, nic: Any, number: int, due: int) -> None:
    """Enter a message in the list of its NIC, behind those due no later."""
    _message(w, number)[at.MS_DUE] = due
    before, following = -1, nic[at.NC_DUE]
    while following >= 0 and _message(w, following)[at.MS_DUE] <= due:
        before, following = following, _message(w, following)[at.MS_NEXT]
    _message(w, number)[at.MS_NEXT] = following
    if before < 0:
        nic[at.NC_DUE] = number
    else:
        _message(w, before)[at.MS_NEXT] = number


@engine
def count_placed(w: Any, thread: int, receiver: int, plane: int, payload: int, now: int) -> None:
    """Goodput: payload bytes placed, by plane and time."""
    row_of(w, at.T_RECEIVERS, at.RECEIVER_COLUMNS, receiver)[at.RC_BYTES] += payload
    place = min(now // w[at.W_BIN], w[at.W_BINS] - 1)
    row_of(w, at.T_GOODPUT, w[at.W_BINS], thread * w[at.W_PLANES] + plane)[place] += payload

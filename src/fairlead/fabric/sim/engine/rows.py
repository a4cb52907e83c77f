"""A workload as rows of the engine: NICs, flows, receivers, messages, and who follows whom.

Flows are brought in the order of their senders and receivers in the order of their destinations, so that what one NIC
works on lies together.

Knows: the workload and the columns. Must not know: ports, queues, the law.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fairlead.fabric.mrc.ways import steps
from fairlead.fabric.sim.engine import layout as at
from fairlead.fabric.sim.shape import Shape
from fairlead.fabric.sim.workload import AFTER_SENT, Workload

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class WorkRows:
    """The tables that a workload fills."""

    nics: Ints
    flows: Ints
    receivers: Ints
    messages: Ints
    successors: NDArray[np.int32]
    flow_row: Ints
    """Row of each flow of the workload among `flows`."""
    message_row: Ints
    """Row of each message of the workload among `messages`."""


def work_rows(shape: Shape, work: Workload, seed: int, mtu: int) -> WorkRows:
    """Bring a workload into rows."""
    by_sender = np.argsort(work.src, kind="stable")
    flow_row = _inverse(by_sender)
    src, dst = work.src[by_sender], work.dst[by_sender]
    by_receiver = np.argsort(dst, kind="stable")
    receiver_row = _inverse(by_receiver)

    message_order = np.argsort(flow_row[work.flow], kind="stable")
    message_row = _inverse(message_order)
    per_flow = np.bincount(flow_row[work.flow], minlength=work.num_flows)
    first_message = np.concatenate([[0], np.cumsum(per_flow)])[:-1]

    strides = _strides(shape, work.num_flows, seed)
    flows = np.zeros((work.num_flows, at.FLOW_COLUMNS), dtype=np.int64)
    flows[:, at.FL_ROUTE] = _routes(shape, dst)
    flows[:, at.FL_RECEIVER] = receiver_row
    flows[:, at.FL_STRIDE] = strides
    flows[:, at.FL_NEXT_READY] = -1
    flows[:, at.FL_MESSAGE0] = first_message
    flows[:, at.FL_MESSAGES] = per_flow

    receivers = np.zeros((work.num_flows, at.RECEIVER_COLUMNS), dtype=np.int64)
    receivers[:, at.RC_ROUTE] = _routes(shape, src[by_receiver])
    receivers[:, at.RC_FLOW] = by_receiver
    receivers[:, at.RC_STRIDE] = strides[by_receiver]
    receivers[:, at.RC_MESSAGE0] = first_message[by_receiver]

    messages, successors = _message_rows(work, flow_row, message_order, message_row, mtu)
    nics = _nic_rows(shape, src, dst[by_receiver], messages)
    return WorkRows(nics, flows, receivers, messages, successors, flow_row, message_row)


def _inverse(order: Ints) -> Ints:
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    return back


def _routes(shape: Shape, nic: Ints) -> Ints:
    """ROUTE to each NIC, without the path."""
    t0, port = np.divmod(nic, shape.hosts)
    return t0 | port << at.ROUTE_PORT_SHIFT | t0 // shape.pod_t0 << at.ROUTE_POD_SHIFT


def _strides(shape: Shape, num: int, seed: int) -> Ints:
    """A step for each flow from uplink to uplink (mrc/ways.py)."""
    fit = np.array(steps(shape.up0), dtype=np.int64)
    return fit[np.random.default_rng([seed, 1]).integers(0, len(fit), num)]


def _message_rows(work: Workload, flow_row: Ints, order: Ints, row: Ints, mtu: int) -> tuple[Ints, NDArray[np.int32]]:
    messages = np.zeros((work.num_messages, at.MESSAGE_COLUMNS), dtype=np.int64)
    messages[:, at.MS_FLOW] = flow_row[work.flow[order]]
    messages[:, at.MS_BYTES] = work.size[order]
    messages[:, at.MS_DELAY] = work.start[order]
    messages[:, at.MS_NEXT] = -1
    packets = np.cumsum(np.maximum(-(-messages[:, at.MS_BYTES] // mtu), 1))
    first = np.flatnonzero(np.diff(messages[:, at.MS_FLOW], prepend=-1))
    before = np.concatenate([[0], packets])[first]
    messages[:, at.MS_END_PSN] = packets - np.repeat(before, np.diff(np.append(first, len(packets))))
    messages[:, at.MS_PLACED] = messages[:, at.MS_ACKED] = -1
    before, after, how = row[work.edges[:, 0]], row[work.edges[:, 1]], work.edges[:, 2]
    messages[:, at.MS_WAIT] = np.bincount(after, minlength=work.num_messages)
    messages[:, at.MS_DUE] = np.where(messages[:, at.MS_WAIT] == 0, messages[:, at.MS_DELAY], at.NEVER)
    # successors of one message and one kind lie together
    sort = np.lexsort((after, how, before))
    before, how, successors = before[sort], how[sort], after[sort].astype(np.int32)
    for kind, head, num in (
        (AFTER_SENT, at.MS_AFTER_SENT, at.MS_NUM_AFTER_SENT),
        (1 - AFTER_SENT, at.MS_AFTER_PLACED, at.MS_NUM_AFTER_PLACED),
    ):
        places = np.flatnonzero(how == kind)
        messages[:, num] = np.bincount(before[places], minlength=work.num_messages)
        # written from the last to the first, so that the first place stands
        messages[before[places][::-1], head] = places[::-1]
    return messages, successors if len(successors) else np.zeros(1, dtype=np.int32)


def _nic_rows(shape: Shape, src: Ints, dst: Ints, messages: Ints) -> Ints:
    nics = np.zeros((shape.num_nics, at.NIC_COLUMNS), dtype=np.int64)
    number = np.arange(shape.num_nics)
    nics[:, at.NC_NUMBER] = number
    nics[:, at.NC_PORT0] = shape.nic_port0 + number * shape.planes
    nics[:, at.NC_PORTS] = (1 << shape.planes) - 1
    nics[:, at.NC_TIMER] = nics[:, at.NC_RX_TIMER] = at.NEVER
    nics[:, at.NC_READY_HEAD] = nics[:, at.NC_READY_TAIL] = nics[:, at.NC_DUE] = -1
    nics[:, at.NC_FLOW0], nics[:, at.NC_FLOWS] = np.searchsorted(src, number), np.bincount(src, minlength=len(nics))
    nics[:, at.NC_RECEIVER0] = np.searchsorted(dst, number)
    nics[:, at.NC_RECEIVERS] = np.bincount(dst, minlength=len(nics))
    nics[:, at.NC_WAKE] = at.NEVER
    # messages with a time of their own: a list for each NIC, in order of time
    due = np.flatnonzero(messages[:, at.MS_WAIT] == 0)
    owner = src[messages[due, at.MS_FLOW]]
    sort = np.lexsort((due, messages[due, at.MS_DUE], owner))
    due, owner = due[sort], owner[sort]
    same = owner[1:] == owner[:-1]
    messages[due[:-1][same], at.MS_NEXT] = due[1:][same]
    heads = np.concatenate([[True], ~same]) if len(due) else np.zeros(0, dtype=bool)
    nics[owner[heads], at.NC_DUE] = due[heads]
    nics[owner[heads], at.NC_WAKE] = messages[due[heads], at.MS_DUE]
    return nics

"""A switch with priority flow control: the same queues, played port by port no longer but in one order of time.

Bytes are counted by the port they came in by. When those of one ingress exceed XOFF the switch asks the sender behind
it to pause its data class, and lets it resume below XON (IEEE 802.1Qbb). A paused sender holds back everything behind
its port, also what would go elsewhere: head-of-line blocking, and where it spreads, congestion collapse. Pause frames
take no room on the link.

Where a link comes up, and where packets that were counted are lost with another link, the switch tells the sender
afresh whether to pause: a pause must not outlive what it was for.

Ingress counts tie all ports of the switch together, so arrivals and departures are merged for the whole switch.

Knows: a switch and its window. Must not know: the state of other nodes, or protocols.
"""

from __future__ import annotations

from typing import Any

from fairlead.fabric.sim.engine import depths
from fairlead.fabric.sim.engine import layout as at
from fairlead.fabric.sim.engine.jit import engine, engine_inline, row32_of, row_of, words
from fairlead.fabric.sim.engine.queues import (
    copy_record,
    enqueue,
    finish_service,
    free_place,
    is_control,
    new_place,
    start_service,
)
from fairlead.fabric.sim.engine.routing import egress
from fairlead.fabric.sim.engine.sorting import scratch, sort_slice
from fairlead.fabric.sim.engine.streams import arriving, new_record, read_stream, release
from fairlead.fabric.sim.engine.switches import send_on

TOLD, DEPARTED, ARRIVED = range(3)  # what made a pause frame; at one time on one link they happen in this order


@engine
def sweep_lossless(w: Any, thread: int, number: int, start: int, end: int) -> int:
    """Play switch `number` from `start` to `end`, one window. Returns how many packets arrived."""
    node = row_of(w, at.T_NODES, at.NODE_COLUMNS, number)
    store, until = words(w[at.T_STORE]), words(w[at.T_UNTIL])
    first = node[at.ND_PORT0]
    keys, values = scratch(w, thread, at.SC_KEYS), scratch(w, thread, at.SC_VALUES)
    num = 0
    for writer in range(w[at.W_THREADS]):
        num = read_stream(w, arriving(w, number, thread, writer), values, num)
    for i in range(num):
        r = values[i]
        meta = store[r + at.META]
        keys[i] = (store[r + at.TIME] - start) << at.KEY_TIME_SHIFT | meta >> at.IN_PORT_SHIFT | pause_order(meta)
    sort_slice(keys, values, 0, num)
    for local in range(node[at.ND_PORTS]):
        port = row32_of(w, at.T_PORTS, at.PORT_COLUMNS, first + local)
        if port[at.PT_STATE] & at.PORT_TELLS:
            _tell(w, thread, port, start)
    i = 0
    while True:
        arrives = start + (keys[i] >> at.KEY_TIME_SHIFT) if i < num else at.NEVER
        leaves, local = at.NEVER, -1
        for each in range(node[at.ND_PORTS]):
            serving = row32_of(w, at.T_PORTS, at.PORT_COLUMNS, first + each)[at.PT_SERVING]
            if serving >= 0 and until[first + each] < leaves:
                leaves, local = until[first + each], each
        if min(leaves, arrives) >= end:
            node[at.ND_WAKE] = leaves
            break
        if leaves <= arrives:
            _depart(w, thread, node, local, leaves)
        else:
            _arrive(w, thread, node, values[i], arrives)
            i += 1
    here = up = 0
    for local in range(node[at.ND_PORTS]):
        waiting = row32_of(w, at.T_PORTS, at.PORT_COLUMNS, first + local)[at.PT_DATA_BYTES]
        if depths.side(w, node, local):
            up = max(up, waiting)
        else:
            here = max(here, waiting)
    depths.leave(w, number, here, up)
    for writer in range(w[at.W_THREADS]):
        release(w, thread, arriving(w, number, thread, writer))
    return num


@engine
def _is_pause(meta: int) -> bool:
    return (meta >> at.KIND_SHIFT) & at.KIND_MASK >= at.KIND_PAUSE


@engine_inline
def pause_order(meta: int) -> int:
    """Of a key: at equal times pause frames sort behind the packet on the same link, in the order they were sent."""
    if not _is_pause(meta):
        return 0
    return 1 << (at.KEY_TIME_SHIFT - 1) | ((meta >> at.FLAGS_SHIFT) & at.FLAGS_MASK) << at.KEY_PAUSE_SHIFT


@engine
def _depart(w: Any, thread: int, node: Any, local: int, now: int) -> None:
    number = node[at.ND_PORT0] + local
    port = row32_of(w, at.T_PORTS, at.PORT_COLUMNS, number)
    last_hop = node[at.ND_KIND] == at.NODE_T0 and local < w[at.W_HOSTS]
    place = finish_service(w, port, number, last_hop, now)
    pool, r = words(w[at.T_POOL]), place * at.RECORD_WORDS
    if not port[at.PT_STATE] & at.PORT_SERVES_CONTROL:
        _count_ingress(w, thread, node, pool[r + at.META], -1, now)
    send_on(w, thread, port, number, pool, r, now)
    free_place(w, thread, place)
    start_service(w, port, number, now)


@engine
def _arrive(w: Any, thread: int, node: Any, r: int, now: int) -> None:
    store = words(w[at.T_STORE])
    meta = store[r + at.META]
    came_by = row32_of(w, at.T_PORTS, at.PORT_COLUMNS, node[at.ND_PORT0] + (meta >> at.IN_PORT_SHIFT))
    if _is_pause(meta):
        if came_by[at.PT_STATE] & at.PORT_DOWN:
            return
        if (meta >> at.KIND_SHIFT) & at.KIND_MASK == at.KIND_PAUSE:
            came_by[at.PT_STATE] |= at.PORT_PAUSED
        else:
            came_by[at.PT_STATE] &= ~at.PORT_PAUSED
            if came_by[at.PT_SERVING] < 0:
                start_service(w, came_by, node[at.ND_PORT0] + (meta >> at.IN_PORT_SHIFT), now)
        return
    local = egress(w, node, store[r + at.ROUTE], store[r + at.ROWS])
    number = node[at.ND_PORT0] + local
    port = row32_of(w, at.T_PORTS, at.PORT_COLUMNS, number)
    if (port[at.PT_STATE] | came_by[at.PT_STATE]) & at.PORT_DOWN:
        row32_of(w, at.T_COUNTS, at.COUNT_COLUMNS, number)[at.CN_DROPS] += 1
        return
    place = new_place(w, thread)
    if place < 0:
        return
    copy_record(store, r, words(w[at.T_POOL]), place * at.RECORD_WORDS)
    last_hop = node[at.ND_KIND] == at.NODE_T0 and local < w[at.W_HOSTS]
    if enqueue(w, thread, port, number, place, last_hop, now):
        if not is_control(w, meta):
            _count_ingress(w, thread, node, meta, 1, now)
        if port[at.PT_SERVING] < 0:
            start_service(w, port, number, now)


@engine
def _count_ingress(w: Any, thread: int, node: Any, meta: int, sign: int, now: int) -> None:
    """Bytes of a data packet enter or leave the switch; ask its sender to pause or resume."""
    came_by = row32_of(w, at.T_PORTS, at.PORT_COLUMNS, node[at.ND_PORT0] + (meta >> at.IN_PORT_SHIFT))
    came_by[at.PT_INGRESS] += sign * (meta & at.SIZE_MASK)
    asked = came_by[at.PT_STATE] & at.PORT_ASKED_PAUSE
    if sign > 0 and not asked and came_by[at.PT_INGRESS] > w[at.W_XOFF]:
        came_by[at.PT_STATE] |= at.PORT_ASKED_PAUSE
        _send_pause(w, thread, came_by, at.KIND_PAUSE, ARRIVED, now)
    elif sign < 0 and asked and came_by[at.PT_INGRESS] < w[at.W_XON]:
        came_by[at.PT_STATE] &= ~at.PORT_ASKED_PAUSE
        _send_pause(w, thread, came_by, at.KIND_RESUME, DEPARTED, now)


@engine
def uncount(w: Any, node: Any, meta: int) -> None:
    """A data packet that waits in the switch is lost with the link it waits for; between windows."""
    came_by = row32_of(w, at.T_PORTS, at.PORT_COLUMNS, node[at.ND_PORT0] + (meta >> at.IN_PORT_SHIFT))
    came_by[at.PT_INGRESS] -= meta & at.SIZE_MASK
    came_by[at.PT_STATE] |= at.PORT_TELLS


@engine
def _tell(w: Any, thread: int, port: Any, now: int) -> None:
    """Tell the far end of a port whether to pause, whatever it heard before."""
    port[at.PT_STATE] &= ~at.PORT_TELLS
    if port[at.PT_STATE] & at.PORT_DOWN:
        return
    limit = w[at.W_XON] - 1 if port[at.PT_STATE] & at.PORT_ASKED_PAUSE else w[at.W_XOFF]
    if port[at.PT_INGRESS] > limit:
        port[at.PT_STATE] |= at.PORT_ASKED_PAUSE
        _send_pause(w, thread, port, at.KIND_PAUSE, TOLD, now)
    else:
        port[at.PT_STATE] &= ~at.PORT_ASKED_PAUSE
        _send_pause(w, thread, port, at.KIND_RESUME, TOLD, now)


@engine
def _send_pause(w: Any, thread: int, port: Any, kind: int, cause: int, now: int) -> None:
    arrives = now + port[at.PT_LATENCY]
    r = new_record(w, thread, port[at.PT_FAR_NODE], arrives)
    if r < 0:
        return
    store = words(w[at.T_STORE])
    store[r + at.TIME] = arrives
    store[r + at.META] = kind << at.KIND_SHIFT | cause << at.FLAGS_SHIFT | port[at.PT_FAR_PORT] << at.IN_PORT_SHIFT
    # a NIC group sorts by the port of its T0 that the record names
    store[r + at.ROUTE] = (port[at.PT_FAR_PORT] >> at.HOST_SHIFT) << at.ROUTE_PORT_SHIFT
    store[r + at.ROWS] = 0

"""One switch through one window: arrivals in order of time, queues, departures to the next node.

Packets that reach different ports of a switch do not touch each other, so each port is played on its own: its arrivals,
sorted by (time, port they came in by), are merged with its own departures. That is the order a global event list would
give, and it walks memory port by port.

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
    look_ahead,
    lost,
    new_place,
    start_service,
)
from fairlead.fabric.sim.engine.routing import egress
from fairlead.fabric.sim.engine.sorting import group, scratch, sort_slice
from fairlead.fabric.sim.engine.streams import arriving, new_record, read_stream, release

LOOK_AHEAD = 3  # ports; a port takes about a hundred ns to play, as long as memory takes to answer


@engine
def sweep_switch(w: Any, thread: int, number: int, start: int, end: int) -> int:
    """Play switch `number` from `start` to `end`, one window. Returns how many packets arrived."""
    node = row_of(w, at.T_NODES, at.NODE_COLUMNS, number)
    num = _gather(w, thread, number, node, start)
    until, starts = words(w[at.T_UNTIL]), scratch(w, thread, at.SC_STARTS)
    first_port, num_ports = node[at.ND_PORT0], node[at.ND_PORTS]
    wake, here, up = at.NEVER, 0, 0
    for local in range(num_ports):
        port = row32_of(w, at.T_PORTS, at.PORT_COLUMNS, first_port + local)
        if local + LOOK_AHEAD < num_ports:
            look_ahead(w, row32_of(w, at.T_PORTS, at.PORT_COLUMNS, first_port + local + LOOK_AHEAD))
        if starts[local] == starts[local + 1] and port[at.PT_SERVING] < 0:
            continue
        _play_port(w, thread, node, port, first_port + local, local, start, end)
        if port[at.PT_SERVING] >= 0:
            wake = min(wake, until[first_port + local])
            if depths.side(w, node, local):
                up = max(up, port[at.PT_DATA_BYTES])
            else:
                here = max(here, port[at.PT_DATA_BYTES])
    depths.leave(w, number, here, up)
    node[at.ND_WAKE] = wake
    for writer in range(w[at.W_THREADS]):
        release(w, thread, arriving(w, number, thread, writer))
    return num


@engine
def _gather(w: Any, thread: int, number: int, node: Any, start: int) -> int:
    """Read what arrives in this window and group it by the port it will leave by."""
    store = words(w[at.T_STORE])
    keys, values = scratch(w, thread, at.SC_KEYS), scratch(w, thread, at.SC_VALUES)
    buckets, starts = scratch(w, thread, at.SC_BUCKETS), scratch(w, thread, at.SC_STARTS)
    for local in range(node[at.ND_PORTS] + 1):
        starts[local] = 0
    num = 0
    for writer in range(w[at.W_THREADS]):
        num = read_stream(w, arriving(w, number, thread, writer), values, num)
    for i in range(num):
        r = values[i]
        bucket = egress(w, node, store[r + at.ROUTE], store[r + at.ROWS])
        keys[i] = (store[r + at.TIME] - start) << at.KEY_TIME_SHIFT | store[r + at.META] >> at.IN_PORT_SHIFT
        buckets[i] = bucket
        starts[bucket + 1] += 1
    group(w, thread, node[at.ND_PORTS], num)
    return num


@engine_inline
def _play_port(w: Any, thread: int, node: Any, port: Any, number: int, local: int, start: int, end: int) -> None:
    """Merge the arrivals of one port with its departures, in order of time; at equal times it departs first."""
    until, starts = words(w[at.T_UNTIL]), scratch(w, thread, at.SC_STARTS)
    keys, values = scratch(w, thread, at.SC_SORTED_KEYS), scratch(w, thread, at.SC_SORTED_VALUES)
    i, last = starts[local], starts[local + 1]
    if last - i > 1:
        sort_slice(keys, values, i, last)
    last_hop = node[at.ND_KIND] == at.NODE_T0 and local < w[at.W_HOSTS]
    while True:
        arrives = start + (keys[i] >> at.KEY_TIME_SHIFT) if i < last else at.NEVER
        leaves = until[number] if port[at.PT_SERVING] >= 0 else at.NEVER
        if leaves <= arrives:
            if leaves >= end:
                return
            place = finish_service(w, port, number, last_hop, leaves)
            send_on(w, thread, port, number, words(w[at.T_POOL]), place * at.RECORD_WORDS, leaves)
            free_place(w, thread, place)
            start_service(w, port, number, leaves)
        else:
            i += 1
            following = start + (keys[i] >> at.KEY_TIME_SHIFT) if i < last else end
            _arrive(w, thread, node, port, number, values[i - 1], last_hop, arrives, min(following, end))


@engine_inline
def _arrive(
    w: Any, thread: int, node: Any, port: Any, number: int, r: int, last_hop: bool, now: int, horizon: int
) -> None:
    """A packet reaches its output port; nothing else happens to the port before `horizon`."""
    store = words(w[at.T_STORE])
    if w[at.W_DOWN] and _is_cut(w, node, port, store[r + at.META] >> at.IN_PORT_SHIFT):
        row32_of(w, at.T_COUNTS, at.COUNT_COLUMNS, number)[at.CN_DROPS] += 1
        return
    if port[at.PT_SERVING] < 0 and not port[at.PT_STATE] & at.PORT_PAUSED:
        leaves = now + (store[r + at.META] & at.SIZE_MASK) * port[at.PT_FS_PER_BYTE] // 1000
        if leaves < horizon:
            # an idle port that is idle again before anything else can happen: the packet need not wait in the pool
            port[at.PT_SENT] += 1
            send_on(w, thread, port, number, store, r, leaves)
            return
    place = new_place(w, thread)
    if place < 0:
        return
    copy_record(store, r, words(w[at.T_POOL]), place * at.RECORD_WORDS)
    if enqueue(w, thread, port, number, place, last_hop, now) and port[at.PT_SERVING] < 0:
        start_service(w, port, number, now)


@engine
def _is_cut(w: Any, node: Any, port: Any, in_port: int) -> bool:
    """Whether the link a packet came by, or the one it is to leave by, is down."""
    came_by = row32_of(w, at.T_PORTS, at.PORT_COLUMNS, node[at.ND_PORT0] + in_port)
    return (port[at.PT_STATE] | came_by[at.PT_STATE]) & at.PORT_DOWN != 0


@engine_inline
def send_on(w: Any, thread: int, port: Any, number: int, source: Any, r: int, now: int) -> None:
    """Put a packet on the link of a port; it is with the far node when the link's latency has passed."""
    if lost(w, port, number, now):
        return
    arrives = now + port[at.PT_LATENCY]
    out = new_record(w, thread, port[at.PT_FAR_NODE], arrives)
    if out < 0:
        return
    store = words(w[at.T_STORE])
    copy_record(source, r, store, out)
    store[out + at.TIME] = arrives
    store[out + at.META] = (source[r + at.META] & at.BELOW_IN_PORT) | port[at.PT_FAR_PORT] << at.IN_PORT_SHIFT

"""The NICs below one T0 index through one window: arrivals, timers, due messages and free ports, in order of time.

A NIC has one port in each plane, all equal. Whenever something has happened at it, it offers its idle ports: first to
control packets that wait there, then to its flows, which take turns packet by packet.

Knows: the order of events at one NIC. Must not know: protocols, switches.
"""

from __future__ import annotations

from typing import Any

from fairlead.fabric.sim.engine import endpoints, wire, work
from fairlead.fabric.sim.engine import layout as at
from fairlead.fabric.sim.engine.jit import engine, engine_inline, row_of, words
from fairlead.fabric.sim.engine.lossless import pause_order
from fairlead.fabric.sim.engine.sorting import group, scratch, sort_slice
from fairlead.fabric.sim.engine.streams import arriving, read_stream, release


@engine
def sweep_group(w: Any, thread: int, number: int, start: int, end: int) -> int:
    """Play the NICs of a group from `start` to `end`, one window. Returns how many packets arrived."""
    node = row_of(w, at.T_NODES, at.NODE_COLUMNS, number)
    num = _gather(w, thread, number, start)
    starts, first = scratch(w, thread, at.SC_STARTS), node[at.ND_INDEX] * w[at.W_HOSTS]
    wake = at.NEVER
    for local in range(w[at.W_HOSTS]):
        nic = row_of(w, at.T_NICS, at.NIC_COLUMNS, first + local)
        if starts[local] != starts[local + 1] or nic[at.NC_WAKE] < end:
            _play_nic(w, thread, nic, starts[local], starts[local + 1], start, end)
        wake = min(wake, nic[at.NC_WAKE])
    node[at.ND_WAKE] = wake
    row_of(w, at.T_THREADS, at.THREAD_COLUMNS, thread)[at.TH_DELIVERED] += num
    for writer in range(w[at.W_THREADS]):
        release(w, thread, arriving(w, number, thread, writer))
    return num


@engine
def _gather(w: Any, thread: int, number: int, start: int) -> int:
    """Read what arrives in this window and group it by NIC."""
    store = words(w[at.T_STORE])
    keys, values = scratch(w, thread, at.SC_KEYS), scratch(w, thread, at.SC_VALUES)
    buckets, starts = scratch(w, thread, at.SC_BUCKETS), scratch(w, thread, at.SC_STARTS)
    for local in range(w[at.W_HOSTS] + 1):
        starts[local] = 0
    num = 0
    for writer in range(w[at.W_THREADS]):
        num = read_stream(w, arriving(w, number, thread, writer), values, num)
    for i in range(num):
        r = values[i]
        bucket = (store[r + at.ROUTE] >> at.ROUTE_PORT_SHIFT) & 0xFFFF
        meta = store[r + at.META]
        plane = (meta >> at.IN_PORT_SHIFT) & at.PLANE_MASK
        keys[i] = (store[r + at.TIME] - start) << at.KEY_TIME_SHIFT | plane | pause_order(meta)
        buckets[i] = bucket
        starts[bucket + 1] += 1
    group(w, thread, w[at.W_HOSTS], num)
    return num


@engine_inline
def _play_nic(w: Any, thread: int, nic: Any, i: int, last: int, start: int, end: int) -> None:
    """Arrivals, and whatever the NIC itself has to do, in order of time; at equal times arrivals come first."""
    keys, values = scratch(w, thread, at.SC_SORTED_KEYS), scratch(w, thread, at.SC_SORTED_VALUES)
    if last - i > 1:
        sort_slice(keys, values, i, last)
    while True:
        arrives = start + (keys[i] >> at.KEY_TIME_SHIFT) if i < last else at.NEVER
        now = min(arrives, nic[at.NC_WAKE])
        if now >= end:
            return
        if arrives == now:
            if nic[at.NC_PORTS] >> (keys[i] & at.PLANE_MASK) & 1:
                endpoints.receive(w, thread, nic, values[i], now)
            elif (words(w[at.T_STORE])[values[i] + at.META] >> at.KIND_SHIFT) & at.KIND_MASK >= at.KIND_PAUSE:
                row_of(w, at.T_THREADS, at.THREAD_COLUMNS, thread)[at.TH_DELIVERED] -= 1  # no NIC sent it
            else:
                row_of(w, at.T_THREADS, at.THREAD_COLUMNS, thread)[at.TH_REFUSED] += 1
            i += 1
        if nic[at.NC_TIMER] <= now or nic[at.NC_RX_TIMER] <= now:
            endpoints.run_timers(w, thread, nic, now)
        if nic[at.NC_DUE] >= 0:
            work.start_due(w, thread, nic, now)
        if nic[at.NC_CONTROL] > 0:
            wire.send_waiting_control(w, thread, nic, now)
        if nic[at.NC_READY] > 0:
            endpoints.send(w, thread, nic, now)
        nic[at.NC_WAKE] = _next_wake(w, nic, now)


@engine_inline
def _next_wake(w: Any, nic: Any, now: int) -> int:
    """When this NIC must act again, if nothing arrives."""
    wake = min(nic[at.NC_TIMER], nic[at.NC_RX_TIMER])
    if nic[at.NC_DUE] >= 0:
        wake = min(wake, row_of(w, at.T_MESSAGES, at.MESSAGE_COLUMNS, nic[at.NC_DUE])[at.MS_DUE])
    if nic[at.NC_READY] > 0 or nic[at.NC_CONTROL] > 0:
        until = words(w[at.T_UNTIL])
        for port in range(nic[at.NC_PORT0], nic[at.NC_PORT0] + w[at.W_PLANES]):
            if until[port] > now:
                wake = min(wake, until[port])
    return max(wake, now + 1)

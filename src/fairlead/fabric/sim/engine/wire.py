"""How a NIC puts packets on its ports: records of each kind, the path of an entropy value, control packets that wait.

Knows: records and the ports of one NIC. Must not know: why a packet is sent.
"""

from __future__ import annotations

from typing import Any

from fairlead.fabric.mrc.layout import S_BASE, S_CACK, S_ECHO, S_HIGH, S_INFO, S_LOW, S_PSN, S_RCVD
from fairlead.fabric.mrc.ways import way_of
from fairlead.fabric.sim.engine import layout as at
from fairlead.fabric.sim.engine.jit import engine, engine_inline, row32_of, words
from fairlead.fabric.sim.engine.queues import free_place, lost, mix, new_place, pop, push
from fairlead.fabric.sim.engine.streams import new_record

REVERSE = 1 << 30  # added to a flow number on the way back, so that both directions are hashed on their own


@engine_inline
def free_ports(w: Any, nic: Any, now: int) -> int:
    """The ports that are up and idle, as a set of planes."""
    until = words(w[at.T_UNTIL])
    ports = 0
    for plane in range(w[at.W_PLANES]):
        if until[nic[at.NC_PORT0] + plane] <= now:
            ports |= 1 << plane
    return ports & nic[at.NC_PORTS]


@engine_inline
def path_of(w: Any, flow: int, stride: int, slot: int) -> int:
    """The path an entropy value takes: an uplink of the T0, or the entropy itself where switches hash.

    The uplink is the core's choice (mrc/ways.py); the first one is drawn for each flow and plane.
    """
    if w[at.W_HASHED]:
        return slot
    plane, number = slot >> w[at.W_EV_SHIFT], slot & w[at.W_EV_MASK]
    offset = mix(w[at.W_SEED] + flow, plane) >> 30
    return way_of(number, w[at.W_UP0], offset * w[at.W_UP0] >> 32, stride)


@engine_inline
def pack(block: Any, body: Any) -> None:
    """The control block of the law in four words: PSNs relative to cack fit 16 bits, times 40 bits."""
    cack = block[S_CACK] + 1
    body[0] = cack | ((block[S_PSN] - cack) & 0xFFFF) << 32 | ((block[S_BASE] - cack) & 0x7FFF) << 48
    body[1] = block[S_LOW] | (block[S_HIGH] & 0x7FFFFFFF) << 32
    body[2] = block[S_INFO] | (block[S_HIGH] >> 31) << 62
    body[3] = (block[S_ECHO] + 1) | block[S_RCVD] << 40


@engine_inline
def unpack(store: Any, r: int, block: Any) -> None:
    """The inverse of `pack`, from the body of a record."""
    word, high, info, last = store[r + at.BODY], store[r + at.BODY + 1], store[r + at.BODY + 2], store[r + at.BODY + 3]
    cack = word & 0xFFFFFFFF
    block[S_CACK] = cack - 1
    block[S_PSN] = cack + (((word >> 32) & 0xFFFF) ^ 0x8000) - 0x8000
    block[S_BASE] = cack + (((word >> 48) & 0x7FFF) ^ 0x4000) - 0x4000
    block[S_LOW] = high & 0xFFFFFFFF
    block[S_HIGH] = (high >> 32 & 0x7FFFFFFF) | (info >> 62 & 1) << 31
    block[S_INFO] = info & 0x3FFFFFFFFFFFFFFF
    block[S_ECHO] = (last & 0xFFFFFFFFFF) - 1
    block[S_RCVD] = last >> 40 & 0xFFFFFF


@engine_inline
def transmit(w: Any, thread: int, nic: Any, plane: int, now: int, meta: int, route: int, rows: int) -> int:
    """Send a packet on an idle port. Returns where its record stands, for the body; -1 if it is lost on the way."""
    number = nic[at.NC_PORT0] + plane
    port = row32_of(w, at.T_PORTS, at.PORT_COLUMNS, number)
    leaves = now + (meta & at.SIZE_MASK) * port[at.PT_FS_PER_BYTE] // 1000
    words(w[at.T_UNTIL])[number] = leaves
    port[at.PT_SENT] += 1
    if lost(w, port, number, leaves) or (nic[at.NC_EV_LOSS] > 0 and _lost_on_path(w, nic, plane, route, leaves)):
        return -1
    arrives = leaves + port[at.PT_LATENCY]
    r = new_record(w, thread, port[at.PT_FAR_NODE], arrives)
    if r < 0:
        return -1
    store = words(w[at.T_STORE])
    store[r + at.TIME] = arrives
    store[r + at.META] = (meta & at.BELOW_IN_PORT) | port[at.PT_FAR_PORT] << at.IN_PORT_SHIFT
    store[r + at.ROUTE] = route
    store[r + at.ROWS] = rows
    return r


@engine
def _lost_on_path(w: Any, nic: Any, plane: int, route: int, now: int) -> bool:
    """Whether the packet takes a path that loses packets of this NIC, and is lost there."""
    if w[at.W_HASHED]:
        return False
    path = plane * w[at.W_UP0] + ((route >> at.ROUTE_PATH_SHIFT) & 0xFFFF)
    share, fault, several = words(w[at.T_EV_LOSS]), 0, nic[at.NC_EV_LOSS]
    while several > 0:
        loss = share[fault * w[at.W_PLANES] * w[at.W_UP0] + path] if several & 1 else 0
        drawn = mix(w[at.W_SEED] ^ nic[at.NC_PORT0], now + plane + (fault << 50)) >> 30
        if drawn * 1000000 < loss << 32:
            row32_of(w, at.T_COUNTS, at.COUNT_COLUMNS, nic[at.NC_PORT0] + plane)[at.CN_LOST] += 1
            return True
        several >>= 1
        fault += 1
    return False


@engine_inline
def send_control(
    w: Any, thread: int, nic: Any, plane: int, now: int, meta: int, route: int, rows: int, body: Any
) -> None:
    """Send a control packet on a port, or let it wait there; `body` holds its words."""
    number = nic[at.NC_PORT0] + plane
    port = row32_of(w, at.T_PORTS, at.PORT_COLUMNS, number)
    if port[at.PT_CONTROL_HEAD] < 0 and words(w[at.T_UNTIL])[number] <= now:
        r = transmit(w, thread, nic, plane, now, meta, route, rows)
        store = words(w[at.T_STORE])
        if r >= 0:
            for i in range(at.BODY_WORDS):
                store[r + at.BODY + i] = body[i]
        return
    place = new_place(w, thread)
    if place < 0:
        return
    pool, r = words(w[at.T_POOL]), place * at.RECORD_WORDS
    pool[r + at.META], pool[r + at.ROUTE], pool[r + at.ROWS] = meta, route, rows
    for i in range(at.BODY_WORDS):
        pool[r + at.BODY + i] = body[i]
    push(w, port, place, meta & at.SIZE_MASK, True)
    nic[at.NC_CONTROL] += 1


@engine
def send_waiting_control(w: Any, thread: int, nic: Any, now: int) -> None:
    """Let the first waiting control packet of each idle port go."""
    until = words(w[at.T_UNTIL])
    pool, store = words(w[at.T_POOL]), words(w[at.T_STORE])
    for plane in range(w[at.W_PLANES]):
        port = row32_of(w, at.T_PORTS, at.PORT_COLUMNS, nic[at.NC_PORT0] + plane)
        if port[at.PT_CONTROL_HEAD] < 0 or until[nic[at.NC_PORT0] + plane] > now:
            continue
        place = pop(w, port, at.PT_CONTROL_HEAD)
        nic[at.NC_CONTROL] -= 1
        p = place * at.RECORD_WORDS
        port[at.PT_CONTROL_BYTES] -= pool[p + at.META] & at.SIZE_MASK
        r = transmit(w, thread, nic, plane, now, pool[p + at.META], pool[p + at.ROUTE], pool[p + at.ROWS])
        if r >= 0:
            for i in range(at.BODY_WORDS):
                store[r + at.BODY + i] = pool[p + at.BODY + i]
        free_place(w, thread, place)

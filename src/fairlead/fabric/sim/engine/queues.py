"""An output queue of a switch: two classes, marking, trimming, pause.

A port serves its control class first, then data, one packet at a time. A data packet that finds the queue full is
trimmed to its header and joins the control class (or is dropped where trimming is off); with even odds it is not the
arriving packet that loses its payload but the last one in the queue, so that no flow is favoured by phase. A data
packet is marked when it leaves and the bytes left behind it stand above the low threshold: with certainty above the
high one, in proportion between. These are the rules of the reference simulator's composite queue, with thresholds as
UEC 1.0 advises (0.2 and 0.8 of the bandwidth-delay product). A packet counts against its queue until its last bit left.

Waiting packets stand in a pool shared by all ports and are linked by index.

Knows: one port at a time. Must not know: where a packet goes next, nor any protocol.
"""

from __future__ import annotations

from typing import Any

from fairlead.fabric.mrc.layout import F_ECN, F_LAST_HOP, F_TRIMMED
from fairlead.fabric.sim.engine import layout as at
from fairlead.fabric.sim.engine.jit import engine, engine_inline, prefetch, row32_of, words
from fairlead.fabric.sim.engine.stores import give, take


@engine_inline
def mix(a: int, b: int) -> int:
    """A 62-bit number that depends on every bit of both (splitmix64 finaliser)."""
    x = a * -7046029254386353131 + b
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * -4658895280553007687
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * -7723592293110705685
    return (x ^ ((x >> 31) & 0x1FFFFFFFF)) & 0x3FFFFFFFFFFFFFFF


@engine_inline
def new_place(w: Any, thread: int) -> int:
    """A free place in the pool, or -1."""
    return take(w, thread, at.TH_PLACES, at.T_POOL_FREE)


@engine_inline
def free_place(w: Any, thread: int, place: int) -> None:
    """Give a place back."""
    give(w, thread, at.TH_PLACES, at.T_POOL_FREE, place)


@engine_inline
def is_control(w: Any, meta: int) -> bool:
    """Whether a packet rides in the control class: control packets, and data trimmed to its header."""
    kind = (meta >> at.KIND_SHIFT) & at.KIND_MASK
    return (w[at.W_CONTROL_KINDS] >> kind & 1) != 0 or ((meta >> at.FLAGS_SHIFT) & F_TRIMMED) != 0


@engine_inline
def is_trimmable(w: Any, meta: int) -> bool:
    """Whether a switch that trims may cut a packet, rather than drop it."""
    return (w[at.W_TRIM_KINDS] >> ((meta >> at.KIND_SHIFT) & at.KIND_MASK) & 1) != 0


@engine_inline
def scaled(port: Any, limit: int) -> int:
    """A threshold of the tier, in proportion on a port slower than its tier."""
    percent = port[at.PT_STATE] >> at.PORT_SCALE_SHIFT
    return limit if percent == 0 else limit * percent // 100


@engine_inline
def push(w: Any, port: Any, place: int, size: int, control: bool) -> None:
    """Queue a packet that stands in the pool."""
    link = row32_of(w, at.T_LINKS, at.LINK_COLUMNS, place)
    head, bytes_at = (at.PT_CONTROL_HEAD, at.PT_CONTROL_BYTES) if control else (at.PT_DATA_HEAD, at.PT_DATA_BYTES)
    tail = port[head + 1]
    link[at.LINK_NEXT] = -1
    link[at.LINK_PREVIOUS] = tail
    link[at.LINK_SIZE] = size
    if tail < 0:
        port[head] = place
    else:
        row32_of(w, at.T_LINKS, at.LINK_COLUMNS, tail)[at.LINK_NEXT] = place
    port[head + 1] = place
    port[bytes_at] += size


@engine_inline
def pop(w: Any, port: Any, head: int) -> int:
    """Take the first packet of a class out of its queue; its bytes still count."""
    place = port[head]
    following = row32_of(w, at.T_LINKS, at.LINK_COLUMNS, place)[at.LINK_NEXT]
    port[head] = following
    if following < 0:
        port[head + 1] = -1
    else:
        row32_of(w, at.T_LINKS, at.LINK_COLUMNS, following)[at.LINK_PREVIOUS] = -1
        _fetch(w, following)
    return place


@engine_inline
def _fetch(w: Any, place: int) -> None:
    """This packet will be served soon: have it in cache by then."""
    prefetch(w, at.T_POOL, place * at.RECORD_WORDS * 8)
    prefetch(w, at.T_LINKS, place * at.LINK_COLUMNS * 4)


@engine_inline
def look_ahead(w: Any, port: Any) -> None:
    """This port will be played soon: have what it sends, and what follows, in cache by then."""
    if port[at.PT_SERVING] >= 0:
        prefetch(w, at.T_POOL, port[at.PT_SERVING] * at.RECORD_WORDS * 8)
        if port[at.PT_DATA_HEAD] >= 0:
            _fetch(w, port[at.PT_DATA_HEAD])


@engine
def trim(w: Any, meta: int, last_hop: bool) -> int:
    """META of a packet cut down to its header."""
    flags = (F_TRIMMED | F_LAST_HOP if last_hop else F_TRIMMED) << at.FLAGS_SHIFT
    return (meta & ~at.SIZE_MASK) | w[at.W_TRIM_BYTES] | flags


@engine_inline
def enqueue(w: Any, thread: int, port: Any, number: int, place: int, last_hop: bool, now: int) -> bool:
    """A packet in the pool reaches an output queue; False if it was dropped (and its place freed)."""
    pool = words(w[at.T_POOL])
    meta = pool[place * at.RECORD_WORDS + at.META]
    size = meta & at.SIZE_MASK
    if is_control(w, meta):
        return _enqueue_control(w, thread, port, number, place, size)
    limit = scaled(port, w[at.W_DATA_LIMIT])
    if port[at.PT_DATA_BYTES] + size > limit:
        last = port[at.PT_DATA_TAIL]
        if last >= 0 and mix(w[at.W_SEED] ^ number, meta ^ now) & 1:
            _cut_last(w, thread, port, number, last, last_hop)
        elif is_trimmable(w, meta):
            _count(w, number, at.CN_TRIMS)
            pool[place * at.RECORD_WORDS + at.META] = trim(w, meta, last_hop)
            return _enqueue_control(w, thread, port, number, place, w[at.W_TRIM_BYTES])
        else:
            _count(w, number, at.CN_DROPS)
            free_place(w, thread, place)
            return False
    push(w, port, place, size, False)
    port[at.PT_MAX_DATA] = max(port[at.PT_MAX_DATA], port[at.PT_DATA_BYTES])
    return True


@engine
def _cut_last(w: Any, thread: int, port: Any, number: int, last: int, last_hop: bool) -> None:
    """The last packet of the data queue gives way: trimmed, or dropped where trimming is off."""
    pool = words(w[at.T_POOL])
    before = row32_of(w, at.T_LINKS, at.LINK_COLUMNS, last)[at.LINK_PREVIOUS]
    port[at.PT_DATA_TAIL] = before
    if before < 0:
        port[at.PT_DATA_HEAD] = -1
    else:
        row32_of(w, at.T_LINKS, at.LINK_COLUMNS, before)[at.LINK_NEXT] = -1
    meta = pool[last * at.RECORD_WORDS + at.META]
    port[at.PT_DATA_BYTES] -= meta & at.SIZE_MASK
    if is_trimmable(w, meta):
        _count(w, number, at.CN_TRIMS)
        pool[last * at.RECORD_WORDS + at.META] = trim(w, meta, last_hop)
        _enqueue_control(w, thread, port, number, last, w[at.W_TRIM_BYTES])
    else:
        _count(w, number, at.CN_DROPS)
        free_place(w, thread, last)


@engine
def _enqueue_control(w: Any, thread: int, port: Any, number: int, place: int, size: int) -> bool:
    if port[at.PT_CONTROL_BYTES] + size > scaled(port, w[at.W_CONTROL_LIMIT]):
        _count(w, number, at.CN_DROPS)
        free_place(w, thread, place)
        return False
    push(w, port, place, size, True)
    return True


@engine_inline
def start_service(w: Any, port: Any, number: int, now: int) -> None:
    """Begin to send the next packet of an idle port, if one may go."""
    if port[at.PT_CONTROL_HEAD] >= 0:
        place = pop(w, port, at.PT_CONTROL_HEAD)
        port[at.PT_STATE] |= at.PORT_SERVES_CONTROL
    elif port[at.PT_DATA_HEAD] >= 0 and not port[at.PT_STATE] & at.PORT_PAUSED:
        place = pop(w, port, at.PT_DATA_HEAD)
        port[at.PT_STATE] &= ~at.PORT_SERVES_CONTROL
    else:
        return
    port[at.PT_SERVING] = place
    size = row32_of(w, at.T_LINKS, at.LINK_COLUMNS, place)[at.LINK_SIZE]
    words(w[at.T_UNTIL])[number] = now + size * port[at.PT_FS_PER_BYTE] // 1000


@engine_inline
def finish_service(w: Any, port: Any, number: int, last_hop: bool, now: int) -> int:
    """The last bit of a packet left: account for it and mark it. Returns its place; the port is then idle."""
    pool = words(w[at.T_POOL])
    place = port[at.PT_SERVING]
    meta_at = place * at.RECORD_WORDS + at.META
    size = pool[meta_at] & at.SIZE_MASK
    port[at.PT_SERVING] = -1
    port[at.PT_SENT] += 1
    if port[at.PT_STATE] & at.PORT_SERVES_CONTROL:
        port[at.PT_CONTROL_BYTES] -= size
        return place
    port[at.PT_DATA_BYTES] -= size
    if not last_hop or w[at.W_ECN_LAST_HOP]:
        low, high = scaled(port, w[at.W_ECN_LOW]), scaled(port, w[at.W_ECN_HIGH])
        left = port[at.PT_DATA_BYTES]
        if left > low and (left > high or _drawn(w, number, now) * (high - low) < (left - low) << 30):
            pool[meta_at] |= F_ECN << at.FLAGS_SHIFT
            _count(w, number, at.CN_MARKS)
    return place


@engine
def _drawn(w: Any, number: int, now: int) -> int:
    """30 random bits for what happens at a port at a time."""
    return mix(w[at.W_SEED] + number, now) >> 32


@engine
def _count(w: Any, number: int, what: int) -> None:
    row32_of(w, at.T_COUNTS, at.COUNT_COLUMNS, number)[what] += 1


@engine_inline
def lost(w: Any, port: Any, number: int, now: int) -> bool:
    """Whether a packet that leaves this port never arrives: its link loses packets at random."""
    if port[at.PT_LOSS] == 0:
        return False
    if (mix(w[at.W_SEED] - number, now) >> 30) * 1000000 >= port[at.PT_LOSS] << 32:
        return False
    _count(w, number, at.CN_LOST)
    return True


@engine_inline
def copy_record(source: Any, r: int, target: Any, t: int) -> None:
    """Copy a record, one cache line."""
    for i in range(at.RECORD_WORDS):
        target[t + i] = source[r + i]

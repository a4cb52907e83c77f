"""Law of path choice: which EV the next packet takes and what becomes of an EV when its packet fares well or badly.

Five rules, chosen by P_PATH_RULE. PATH_MRC is the protocol (evs.py). The others exist to be compared with it and
follow the reference simulator (ultraethernet/uet-htsim, htsim/sim/uec_mp.cpp, buffer_reps.cpp), there for one plane:

    PATH_OBLIVIOUS   every EV in turn, in an order drawn anew each lap
    PATH_BITMAP      the same, but an EV with penalty points is passed over and loses one; ECN 1, trim 4, loss 15
    PATH_REPS        EVs whose packets came back unmarked are used again first, else a random one; after a timeout only
                     known good ones for a while (frozen), then exploration begins anew
    PATH_MIXED       recycled EVs first, else the bitmap rule

With several planes the plane is taken first, in turn among the free ports, and the rule then acts inside it.
"""
# ruff: noqa: F403, F405 - the law reads the whole register map; handlers take addresses and integers

from __future__ import annotations

from fairlead.fabric.mrc import bits, evs
from fairlead.fabric.mrc.layout import *

PENALTY_MARKED = 1
PENALTY_TRIMMED = 4
PENALTY_LOSSY = 15
EXPLORE_AFTER_FREEZE = 16
FRESH = 1 << 16  # flag of a ring entry not used since it was recycled


def choose(m: Words, tx: int, ports: int, avoid: int) -> int:
    """The EV slot for the next packet, or -1 when no free port in the bit set `ports` may be used."""
    rule = m[m[tx + E_PROFILE] + P_PATH_RULE]
    if rule == PATH_MRC:
        return evs.rotate(m, tx, ports, avoid)
    usable = evs.open_planes(m, tx) & ports
    if usable == 0:
        return -1
    plane = evs.next_plane(m, tx, usable)
    if rule == PATH_OBLIVIOUS:
        slot = evs.step(m, tx, plane)
    elif rule == PATH_BITMAP:
        slot = _unpenalised(m, tx, plane)
    elif rule == PATH_REPS:
        slot = _reps(m, tx, plane, usable)
    else:
        slot = _take_oldest(m, tx, usable)
        if slot < 0:
            slot = _unpenalised(m, tx, plane)
    m[tx + E_PLANE] = slot >> m[m[tx + E_PROFILE] + P_EV_SHIFT]
    return slot


def choose_aside(m: Words, tx: int, ports: int) -> int:
    """As `choose`, for a packet without payload. With turns of its own (P_OWN_TURNS) it leaves the data's alone.

    A few packets and a probe in turn would come to the same few planes again and again.
    """
    if not m[m[tx + E_PROFILE] + P_OWN_TURNS]:
        return choose(m, tx, ports, -1)
    plane = m[tx + E_PLANE]
    m[tx + E_PLANE] = m[tx + TX_ASIDE_PLANE]
    slot = choose(m, tx, ports, -1)
    m[tx + TX_ASIDE_PLANE] = m[tx + E_PLANE]
    m[tx + E_PLANE] = plane
    return slot


def choose_in_run(m: Words, tx: int, ports: int) -> int:
    """As `choose`, for a new data packet: the EV of the one before, while its run lasts and it is in turn."""
    slot = m[tx + TX_RUN_EV]
    if m[tx + TX_RUN_LEFT] > 0 and evs.is_in_turn(m, tx, slot, ports):
        m[tx + TX_RUN_LEFT] -= 1
        return slot
    slot = choose(m, tx, ports, -1)
    if slot >= 0:
        m[tx + TX_RUN_EV] = slot
        m[tx + TX_RUN_LEFT] = m[m[tx + E_PROFILE] + P_EV_RUN] - 1
    return slot


def feedback(m: Words, tx: int, now: int, slot: int, what: int) -> None:
    """Tell the rule how a packet on this EV fared (PATH_IS_*)."""
    rule = m[m[tx + E_PROFILE] + P_PATH_RULE]
    if rule == PATH_MRC:
        if what == PATH_IS_GOOD:
            evs.trust(m, tx, slot)
        elif what == PATH_IS_LOSSY:
            evs.assume_bad(m, tx, slot)
        elif what == PATH_IS_SUSPECT:
            evs.suspect(m, tx, slot)
        else:
            evs.skip(m, tx, slot)
    elif rule == PATH_BITMAP:
        _penalise(m, tx, slot, what)
    elif rule == PATH_REPS:
        _reps_feedback(m, tx, now, slot, what)
    elif rule == PATH_MIXED:
        _penalise(m, tx, slot, what)
        if what == PATH_IS_GOOD:
            _recycle(m, tx, slot)


def forgive(m: Words, tx: int, slot: int) -> None:
    """A packet on this EV that was thought lost has arrived. The other rules keep what they hold against an EV."""
    if m[m[tx + E_PROFILE] + P_PATH_RULE] == PATH_MRC:
        evs.forgive(m, tx, slot)
        evs.restore_plane(m, tx, slot)


# --- bitmap ----------------------------------------------------------------------------------------------------


def _penalise(m: Words, tx: int, slot: int, what: int) -> None:
    points = 0
    if what == PATH_IS_MARKED:
        points = PENALTY_MARKED
    elif what == PATH_IS_TRIMMED:
        points = PENALTY_TRIMMED
    elif what >= PATH_IS_SUSPECT:
        points = PENALTY_LOSSY
    if points > 0:
        evs.set_nibble(m, tx, slot, min(evs.nibble(m, tx, slot) + points, evs.NIBBLE_MAX))


def _unpenalised(m: Words, tx: int, plane: int) -> int:
    """Next EV without penalty; only the first one passed over loses a point, as in the reference."""
    slot = evs.step(m, tx, plane)
    points = evs.nibble(m, tx, slot)
    if points > 0:
        evs.set_nibble(m, tx, slot, points - 1)
        for _ in range(1 << m[m[tx + E_PROFILE] + P_EV_SHIFT]):
            slot = evs.step(m, tx, plane)
            if evs.nibble(m, tx, slot) == 0:
                break
    return slot


# --- the ring of recycled EVs -------------------------------------------------------------------------------------


def _recycle(m: Words, tx: int, slot: int) -> None:
    """Put an EV at the head of the ring; when the ring is full the oldest is overwritten."""
    p = m[tx + E_PROFILE]
    size = m[p + P_RING_SIZE]
    head = m[tx + TX_RING_HEAD]
    address = tx + m[p + P_TX_RING] + head
    if not m[address] & FRESH:
        m[tx + TX_RING_FRESH] += 1
    m[address] = slot | FRESH
    m[tx + TX_RING_HEAD] = head + 1 if head + 1 < size else 0
    m[tx + TX_RING_COUNT] = min(m[tx + TX_RING_COUNT] + 1, size)


def _take_oldest(m: Words, tx: int, planes: int) -> int:
    """Use the oldest fresh EV of the ring if its plane is free; -1 otherwise."""
    fresh = m[tx + TX_RING_FRESH]
    if fresh == 0:
        return -1
    p = m[tx + E_PROFILE]
    place = m[tx + TX_RING_HEAD] - fresh
    if place < 0:
        place += m[p + P_RING_SIZE]
    address = tx + m[p + P_TX_RING] + place
    slot = m[address] & (FRESH - 1)
    if not planes >> (slot >> m[p + P_EV_SHIFT]) & 1:
        return -1
    m[address] = slot
    m[tx + TX_RING_FRESH] = fresh - 1
    return slot


# --- REPS ------------------------------------------------------------------------------------------------------


def _reps(m: Words, tx: int, plane: int, planes: int) -> int:
    if m[tx + TX_EXPLORE] > 0:
        m[tx + TX_EXPLORE] -= 1
        return _random_slot(m, tx, plane)
    slot = _take_frozen(m, tx, planes) if m[tx + TX_FROZEN_UNTIL] else _take_oldest(m, tx, planes)
    return slot if slot >= 0 else _random_slot(m, tx, plane)


def _random_slot(m: Words, tx: int, plane: int) -> int:
    shift = m[m[tx + E_PROFILE] + P_EV_SHIFT]
    return plane << shift | bits.random32(m, tx + E_RANDOM) & ((1 << shift) - 1)


def _take_frozen(m: Words, tx: int, planes: int) -> int:
    """While frozen, walk round the ring and reuse what is there, fresh or not."""
    count = m[tx + TX_RING_COUNT]
    if count == 0:
        return -1
    p = m[tx + E_PROFILE]
    place = m[tx + TX_FROZEN_NEXT]
    m[tx + TX_FROZEN_NEXT] = place + 1 if place + 1 < count else 0
    address = tx + m[p + P_TX_RING] + place
    slot = m[address] & (FRESH - 1)
    if not planes >> (slot >> m[p + P_EV_SHIFT]) & 1:
        return -1
    if m[address] & FRESH:
        m[tx + TX_RING_FRESH] -= 1
        m[address] = slot
    return slot


def _reps_feedback(m: Words, tx: int, now: int, slot: int, what: int) -> None:
    p = m[tx + E_PROFILE]
    if what >= PATH_IS_SUSPECT and m[tx + TX_FROZEN_UNTIL] == 0 and m[tx + TX_EXPLORE] == 0:
        m[tx + TX_FROZEN_UNTIL] = now + m[p + P_FREEZE_NS]
    if m[tx + TX_FROZEN_UNTIL] != 0 and now > m[tx + TX_FROZEN_UNTIL]:
        m[tx + TX_FROZEN_UNTIL] = 0
        m[tx + TX_RING_HEAD] = 0
        m[tx + TX_RING_FRESH] = 0
        m[tx + TX_RING_COUNT] = 0
        m[tx + TX_FROZEN_NEXT] = 0
        for i in range(m[p + P_RING_SIZE]):
            m[tx + m[p + P_TX_RING] + i] = 0
        m[tx + TX_EXPLORE] = EXPLORE_AFTER_FREEZE
    if what == PATH_IS_GOOD:
        _recycle(m, tx, slot)

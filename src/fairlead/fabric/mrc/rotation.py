"""Law of the rotation: which EV of which plane takes the next turn.

A plane is walked in the order counter XOR mask; the mask is drawn anew at each wrap from the queue pair's own random
stream, so that queue pairs that started together do not stay in step.

When every EV in rotation of a plane is marked, passing over them in turn avoids nothing. Now and then the last of them
then changes places with one that stands by: of two flows on one EV one is to move to an idle one (arXiv 2605.04333
section 5). When is left to chance, about once in MOVE_WINDOWS windows: flows that answered the same marks at the same
time would meet again on the other path.
"""

from __future__ import annotations

from fairlead.fabric.mrc import bits, evs
from fairlead.fabric.mrc import layout as at
from fairlead.fabric.mrc.rows import Endpoint, Requestor

MOVE_WINDOWS = 4  # as long as a queue takes to drain once one of two flows has left it, and some


def next_plane(row: Endpoint, planes: int) -> int:
    """The plane after the last one used, among `planes` (a bit set, not 0), in turn."""
    last = row.plane
    later = planes & ~((2 << last) - 1)
    return bits.lowest(later if later != 0 else planes)


def step(tx: Requestor, plane: int) -> int:
    """Move the plane's cursor on by one and return the slot it stood on."""
    p = tx.profile
    shift = p.ev_shift
    word = tx.plane_words[plane]
    size = 1 << shift
    cursor = word & 0xFFFF
    slot = plane << shift | (cursor ^ (word >> at.PLANE_XOR_SHIFT & 0xFFFF)) & (size - 1)
    if cursor + 1 < size:
        tx.plane_words[plane] = word + 1
    else:
        mask = bits.random32(tx) & (size - 1)
        tx.plane_words[plane] = word >> at.PLANE_ACTIVE_SHIFT << at.PLANE_ACTIVE_SHIFT | mask << at.PLANE_XOR_SHIFT
    return slot


def rotate(tx: Requestor, ports: int, avoid: int) -> int:
    """The next EV by the life cycle: its slot, or -1 when no free port (bit set `ports`) leads to a usable EV.

    `avoid` is the EV that failed the packet now sent again (-1: none): a retransmission takes another one where there
    is one (OCP MRC 1.0: never the EV named by the NACK).
    """
    usable = evs.open_planes(tx) & tx.planes_ok
    if usable == 0:
        return _last_resort(tx, ports)
    if usable & ports == 0:
        return -1  # a usable plane exists and its port is busy: wait
    plane = next_plane(tx, usable & ports)
    tx.plane = plane
    return _next_in_plane(tx, plane, at.EV_ACTIVE, avoid)


def is_in_turn(tx: Requestor, slot: int, ports: int) -> bool:
    """Whether an EV is in rotation, not to be skipped, and its port (bit set `ports`) free."""
    plane = slot >> tx.profile.ev_shift
    word = evs.word_of(slot)
    is_good = tx.ev_words[word + at.EV_ACTIVE] & ~tx.ev_words[word + at.EV_SKIP] & 1 << (slot & 31)
    return is_good != 0 and evs.open_planes(tx) & ports & 1 << plane != 0


def _last_resort(tx: Requestor, ports: int) -> int:
    """With no EV left in rotation: any that is not denied, on a free port; -1 if there is none."""
    planes = evs.open_planes(tx) & ports
    while planes != 0:
        plane = next_plane(tx, planes)
        slot = _next_in_plane(tx, plane, at.EV_DENIED, -1)
        if slot >= 0:
            tx.plane = plane
            return slot
        planes &= ~(1 << plane)
    return -1


def _next_in_plane(tx: Requestor, plane: int, kind: int, avoid: int) -> int:
    """Walk one plane: the next EV in rotation that is not to be skipped; with kind EV_DENIED any EV not denied.

    An EV in SKIP is passed over once and is GOOD from then on; when all in rotation are, one that stands by may take
    the turn. Three laps from anywhere hold two whole ones, whatever order a new lap takes, so an EV in rotation is
    always found; -1 only if all are denied.
    """
    fallback = -1
    passed = 0
    for _ in range(3 << tx.profile.ev_shift):
        slot = step(tx, plane)
        word = evs.word_of(slot)
        bit = 1 << (slot & 31)
        if kind == at.EV_DENIED:
            if not tx.ev_words[word + at.EV_DENIED] & bit:
                return slot
        elif tx.ev_words[word + at.EV_ACTIVE] & bit:
            if tx.ev_words[word + at.EV_SKIP] & bit:
                tx.ev_words[word + at.EV_SKIP] &= ~bit
                passed += 1
                if passed == tx.plane_words[plane] >> at.PLANE_ACTIVE_SHIFT and _moves(tx):
                    standby = evs.relieve(tx, slot)
                    if standby >= 0:
                        return standby
            elif slot == avoid:
                fallback = slot
            else:
                return slot
    return fallback


def _moves(tx: Requestor) -> bool:
    """Whether a flow whose every EV of a plane is marked leaves one of them now: by chance, once in a few windows."""
    p = tx.profile
    if p.evs_active >> p.ev_shift:
        return False  # none can stand by
    packets = tx.cwnd // (p.min_cwnd * p.planes)
    return bits.random32(tx) % max(MOVE_WINDOWS * packets, 1) == 0

"""What other protocols do where MRC has a rule of its own; the law of MRC needs none of this.

The simulator compares MRC with its relatives. Where a profile asks for one, the law comes here, in one line each time;
for profiles of MRC no line below is reached. All follow the reference simulator (ultraethernet/uet-htsim,
htsim/sim/uec_mp.cpp, buffer_reps.cpp, uec.cpp).

Paths, by `path_rule`, there for one plane; with several the plane is taken first, in turn among the free ports, and the
rule then acts inside it:

    PATH_OBLIVIOUS   every EV in turn, in an order drawn anew each lap
    PATH_BITMAP      the same, but an EV with penalty points is passed over and loses one; ECN 1, trim 4, loss 15
    PATH_REPS        EVs whose packets came back unmarked are used again first, else a random one; after a timeout only
                     known good ones for a while (frozen), then exploration begins anew
    PATH_MIXED       recycled EVs first, else the bitmap rule

SACKs, by `sack_rule`: SACK_UEC takes the bitmap's base from the packet that triggered the SACK, answers the very first
packet, and has a place for an ECN mark in a NACK.

Sending, by `whole_packet`: the next packet must fit in the window whole.
"""

from __future__ import annotations

from fairlead.fabric.mrc import bits, evs, rotation
from fairlead.fabric.mrc import layout as at
from fairlead.fabric.mrc.rows import Requestor, Responder

PENALTY_MARKED = 1
PENALTY_TRIMMED = 4
PENALTY_LOSSY = 15
EXPLORE_AFTER_FREEZE = 16
FRESH = 1 << 16  # flag of a ring entry not used since it was recycled
SACK_BITS = 64


# --- paths -----------------------------------------------------------------------------------------------------


def choose(tx: Requestor, ports: int) -> int:
    """The EV slot for the next packet, or -1 when no free port in the bit set `ports` may be used."""
    rule = tx.profile.path_rule
    usable = evs.open_planes(tx) & ports
    if usable == 0:
        return -1
    plane = rotation.next_plane(tx, usable)
    if rule == at.PATH_OBLIVIOUS:
        slot = rotation.step(tx, plane)
    elif rule == at.PATH_BITMAP:
        slot = _unpenalised(tx, plane)
    elif rule == at.PATH_REPS:
        slot = _reps(tx, plane, usable)
    else:
        slot = _take_oldest(tx, usable)
        if slot < 0:
            slot = _unpenalised(tx, plane)
    tx.plane = slot >> tx.profile.ev_shift
    return slot


def feedback(tx: Requestor, now: int, slot: int, what: int) -> None:
    """Tell the rule how a packet on this EV fared (PATH_IS_*)."""
    rule = tx.profile.path_rule
    if rule == at.PATH_BITMAP:
        _penalise(tx, slot, what)
    elif rule == at.PATH_REPS:
        _reps_feedback(tx, now, slot, what)
    elif rule == at.PATH_MIXED:
        _penalise(tx, slot, what)
        if what == at.PATH_IS_GOOD:
            _recycle(tx, slot)


# --- bitmap ----------------------------------------------------------------------------------------------------


def _penalise(tx: Requestor, slot: int, what: int) -> None:
    points = 0
    if what == at.PATH_IS_MARKED:
        points = PENALTY_MARKED
    elif what == at.PATH_IS_TRIMMED:
        points = PENALTY_TRIMMED
    elif what >= at.PATH_IS_SUSPECT:
        points = PENALTY_LOSSY
    if points > 0:
        evs.set_nibble(tx, slot, min(evs.nibble(tx, slot) + points, evs.NIBBLE_MAX))


def _unpenalised(tx: Requestor, plane: int) -> int:
    """Next EV without penalty; only the first one passed over loses a point, as in the reference."""
    slot = rotation.step(tx, plane)
    points = evs.nibble(tx, slot)
    if points > 0:
        evs.set_nibble(tx, slot, points - 1)
        for _ in range(1 << tx.profile.ev_shift):
            slot = rotation.step(tx, plane)
            if evs.nibble(tx, slot) == 0:
                break
    return slot


# --- the ring of recycled EVs -------------------------------------------------------------------------------------


def _recycle(tx: Requestor, slot: int) -> None:
    """Put an EV at the head of the ring; when the ring is full the oldest is overwritten."""
    p = tx.profile
    size = p.ring_size
    head = tx.ring_head
    if not tx.ring[head] & FRESH:
        tx.ring_fresh += 1
    tx.ring[head] = slot | FRESH
    tx.ring_head = head + 1 if head + 1 < size else 0
    tx.ring_count = min(tx.ring_count + 1, size)


def _take_oldest(tx: Requestor, planes: int) -> int:
    """Use the oldest fresh EV of the ring if its plane is free; -1 otherwise."""
    fresh = tx.ring_fresh
    if fresh == 0:
        return -1
    p = tx.profile
    place = tx.ring_head - fresh
    if place < 0:
        place += p.ring_size
    slot = tx.ring[place] & (FRESH - 1)
    if not planes >> (slot >> p.ev_shift) & 1:
        return -1
    tx.ring[place] = slot
    tx.ring_fresh = fresh - 1
    return slot


# --- REPS ------------------------------------------------------------------------------------------------------


def _reps(tx: Requestor, plane: int, planes: int) -> int:
    if tx.explore > 0:
        tx.explore -= 1
        return _random_slot(tx, plane)
    slot = _take_frozen(tx, planes) if tx.frozen_until else _take_oldest(tx, planes)
    return slot if slot >= 0 else _random_slot(tx, plane)


def _random_slot(tx: Requestor, plane: int) -> int:
    shift = tx.profile.ev_shift
    return plane << shift | bits.random32(tx) & ((1 << shift) - 1)


def _take_frozen(tx: Requestor, planes: int) -> int:
    """While frozen, walk round the ring and reuse what is there, fresh or not."""
    count = tx.ring_count
    if count == 0:
        return -1
    p = tx.profile
    place = tx.frozen_next
    tx.frozen_next = place + 1 if place + 1 < count else 0
    slot = tx.ring[place] & (FRESH - 1)
    if not planes >> (slot >> p.ev_shift) & 1:
        return -1
    if tx.ring[place] & FRESH:
        tx.ring_fresh -= 1
        tx.ring[place] = slot
    return slot


def _reps_feedback(tx: Requestor, now: int, slot: int, what: int) -> None:
    p = tx.profile
    if what >= at.PATH_IS_SUSPECT and tx.frozen_until == 0 and tx.explore == 0:
        tx.frozen_until = now + p.freeze_ns
    if tx.frozen_until != 0 and now > tx.frozen_until:
        tx.frozen_until = 0
        tx.ring_head = 0
        tx.ring_fresh = 0
        tx.ring_count = 0
        tx.frozen_next = 0
        for i in range(p.ring_size):
            tx.ring[i] = 0
        tx.explore = EXPLORE_AFTER_FREEZE
    if what == at.PATH_IS_GOOD:
        _recycle(tx, slot)


# --- SACKs and sending --------------------------------------------------------------------------------------------


def sack_base(rx: Responder, psn: int, flags: int) -> int:
    """The PSN of bit 0 in the SACK that this packet triggers."""
    return psn if flags & (at.F_ECN | at.F_ASK) else max(psn - (SACK_BITS - 1), rx.next + 1)


def nack_mark(flags: int) -> int:
    """What a NACK says about the mark of the packet that it gives back."""
    return at.M_SKIP_ONCE if flags & at.F_ECN else at.M_NONE


def fits(tx: Requestor, size: int) -> bool:
    """Whether the window has room for the next packet (isSendPermitted)."""
    return tx.in_flight + size <= tx.cwnd

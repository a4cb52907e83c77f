"""Law of entropy values: the life cycle of each EV. The rotation that spreads packets over them is rotation.py.

Life cycle (OCP MRC 1.0 figure 5; arXiv 2605.04333 section 3). "In rotation" is a separate bit: a GOOD EV either takes
its turn or stands by as a replacement.

    from           event                                              to
    GOOD           SACK m=SKIP_ONCE (ECN), NACK TRIMMED               SKIP
    SKIP           its turn came once and was passed over             GOOD
    GOOD, SKIP     a packet that used it timed out, m=ALWAYS_SKIP     ASSUMED_BAD    leaves the rotation
    GOOD, SKIP     losses inferred from order outweigh arrivals       ASSUMED_BAD    leaves the rotation
    ASSUMED_BAD    a packet that was thought lost on it has arrived   GOOD           stands by, or fills an empty place
    ASSUMED_BAD    enough probes in a row answered, last m=NONE       GOOD           stands by, or fills an empty place
    ASSUMED_BAD    ... last m=SKIP_ONCE                               SKIP           likewise
    any            controller denies                                  DENIED         leaves the rotation
    DENIED         controller allows                                  GOOD           stands by, or fills an empty place

A NACK TRIMMED_LASTHOP never touches an EV: the receiver is busy, the path is innocent.

A loss inferred from order is a suspicion, not a proof. It weighs SUSPICION points against the EV, a good answer on the
EV takes one off, and at CONVICTION points the EV is ASSUMED_BAD: a dead path with its second packet, one that loses a
fifth within some thirty, one that loses a thousandth hardly ever. A packet that arrives after all takes all points off.

Whoever leaves the rotation is replaced by a GOOD EV *of the same plane*. All planes so stay equally loaded; a sender
that answered uplink trouble by leaning on other planes would make a false incast at the destination (arXiv 2605.04333
section 4). When nobody stands by and the rotation would shrink below `ev_min_active` EVs, the suspect changes places
with another bad one: a fault that seems to be everywhere is no reason to stop sending.

Slots are numbered plane << shift | number.
"""

from __future__ import annotations

from fairlead.fabric.mrc import bits
from fairlead.fabric.mrc import layout as at
from fairlead.fabric.mrc.rows import Endpoint, Requestor

NIBBLE_MAX = 15
SUSPICION = 6
CONVICTION = 8


def init_evs(tx: Requestor) -> None:
    """Put the first EVs of each plane in rotation."""
    p = tx.profile
    planes = p.planes
    shift = p.ev_shift
    active = p.evs_active
    for plane in range(planes):
        mask = bits.random32(tx) & ((1 << shift) - 1)
        tx.plane_words[plane] = mask << at.PLANE_XOR_SHIFT | active << at.PLANE_ACTIVE_SHIFT
        for number in range(active):
            slot = plane << shift | number
            tx.ev_words[word_of(slot) + at.EV_ACTIVE] |= 1 << (slot & 31)
    tx.ev_active = planes * active
    tx.planes_ok = (1 << planes) - 1
    tx.plane = bits.random32(tx) % planes


def word_of(slot: int) -> int:
    """Where in `ev_words` the four words stand that hold this EV's bits."""
    return (slot >> 5) * at.NUM_EV_WORDS


def ev_state(tx: Requestor, slot: int) -> int:
    """State of an EV: STATE_GOOD (in rotation), STATE_STANDBY (good, not in rotation), SKIP, ASSUMED_BAD or DENIED."""
    word = word_of(slot)
    bit = 1 << (slot & 31)
    if tx.ev_words[word + at.EV_DENIED] & bit:
        return at.STATE_DENIED
    if tx.ev_words[word + at.EV_BAD] & bit:
        return at.STATE_ASSUMED_BAD
    if tx.ev_words[word + at.EV_SKIP] & bit:
        return at.STATE_SKIP
    return at.STATE_GOOD if tx.ev_words[word + at.EV_ACTIVE] & bit else at.STATE_STANDBY


def nibble(tx: Requestor, slot: int) -> int:
    """Small counter of an EV: points against it, or probes answered since it is bad, or the bitmap rule's penalty."""
    return (tx.nibbles[slot >> 3] >> ((slot & 7) * 4)) & NIBBLE_MAX


def set_nibble(tx: Requestor, slot: int, value: int) -> None:
    """Write the small counter of an EV."""
    shift = (slot & 7) * 4
    tx.nibbles[slot >> 3] = tx.nibbles[slot >> 3] & ~(NIBBLE_MAX << shift) | value << shift


def open_planes(row: Endpoint) -> int:
    """Planes whose ports are up at both ends, as far as this row knows."""
    return row.ports & row.peer_ports


# --- life cycle ------------------------------------------------------------------------------------------------


def skip(tx: Requestor, slot: int) -> None:
    """GOOD -> SKIP, for an EV in rotation; one that stands by has no turn to lose."""
    word = word_of(slot)
    tx.ev_words[word + at.EV_SKIP] |= tx.ev_words[word + at.EV_ACTIVE] & (1 << (slot & 31))


def suspect(tx: Requestor, slot: int) -> None:
    """A packet that used this EV seems lost, for later ones have arrived."""
    word = word_of(slot)
    if (tx.ev_words[word + at.EV_BAD] | tx.ev_words[word + at.EV_DENIED]) >> (slot & 31) & 1:
        return
    points = nibble(tx, slot) + SUSPICION
    if points >= CONVICTION:
        assume_bad(tx, slot)
    else:
        set_nibble(tx, slot, points)


def trust(tx: Requestor, slot: int) -> None:
    """A packet that used this EV was answered, unmarked."""
    points = nibble(tx, slot)
    if points > 0 and not tx.ev_words[word_of(slot) + at.EV_BAD] >> (slot & 31) & 1:
        set_nibble(tx, slot, points - 1)


def forgive(tx: Requestor, slot: int) -> None:
    """A packet thought lost on this EV has arrived: what was held against the EV was wrong."""
    if tx.ev_words[word_of(slot) + at.EV_BAD] >> (slot & 31) & 1:
        recover(tx, slot)
    set_nibble(tx, slot, 0)


def assume_bad(tx: Requestor, slot: int) -> None:
    """GOOD, SKIP -> ASSUMED_BAD, and a replacement from the same plane; when too few are left, from the bad ones."""
    p = tx.profile
    word = word_of(slot)
    bit = 1 << (slot & 31)
    if (tx.ev_words[word + at.EV_BAD] | tx.ev_words[word + at.EV_DENIED]) & bit:
        return
    tx.ev_words[word + at.EV_SKIP] &= ~bit
    tx.ev_words[word + at.EV_BAD] |= bit
    tx.ev_bad += 1
    tx.evp_missed = 0
    set_nibble(tx, slot, 0)
    _leave(tx, slot)
    if tx.ev_active < p.ev_min_active:
        other = next_bad(tx, slot)
        recover(tx, other if other >= 0 else slot)


def probe_answered(tx: Requestor, slot: int, mark: int) -> None:
    """A probe of an ASSUMED_BAD EV came back with SETH.m or its equal; enough of them in a row bring the EV back.

    One source sends an EV answered with SKIP_ONCE to SKIP, another to GOOD; SKIP is the cautious reading.
    """
    word = word_of(slot)
    bit = 1 << (slot & 31)
    if not tx.ev_words[word + at.EV_BAD] & bit:
        return
    if mark == at.M_ALWAYS_SKIP:
        set_nibble(tx, slot, 0)
        return
    answered = nibble(tx, slot) + 1
    set_nibble(tx, slot, answered)
    if answered < tx.profile.ev_probe_ok:
        return
    recover(tx, slot)
    if mark != at.M_NONE:
        skip(tx, slot)


def is_answering(tx: Requestor, slot: int) -> int:
    """1 for an ASSUMED_BAD EV, on a plane that is open, that answered its last probe: asked again, it is soon back."""
    p = tx.profile
    bad = tx.ev_words[word_of(slot) + at.EV_BAD] >> (slot & 31) & 1
    return bad if nibble(tx, slot) > 0 and open_planes(tx) >> (slot >> p.ev_shift) & 1 else 0


def probe_unanswered(tx: Requestor, slot: int) -> None:
    """A probe of an ASSUMED_BAD EV was lost: begin counting again."""
    set_nibble(tx, slot, 0)


def deny(tx: Requestor, slot: int) -> None:
    """The controller takes an EV away (from any state; the specification draws the arrow from GOOD)."""
    word = word_of(slot)
    bit = 1 << (slot & 31)
    if tx.ev_words[word + at.EV_DENIED] & bit:
        return
    if tx.ev_words[word + at.EV_BAD] & bit:
        tx.ev_words[word + at.EV_BAD] &= ~bit
        tx.ev_bad -= 1
    tx.ev_words[word + at.EV_SKIP] &= ~bit
    tx.ev_words[word + at.EV_DENIED] |= bit
    _leave(tx, slot)


def allow(tx: Requestor, slot: int) -> None:
    """DENIED -> GOOD."""
    word = word_of(slot)
    bit = 1 << (slot & 31)
    if tx.ev_words[word + at.EV_DENIED] & bit:
        tx.ev_words[word + at.EV_DENIED] &= ~bit
        set_nibble(tx, slot, 0)
        _join(tx, slot)


def next_bad(tx: Requestor, after: int) -> int:
    """The ASSUMED_BAD EV after slot `after`, in turn, on a plane that is open; -1 if there is none."""
    p = tx.profile
    shift = p.ev_shift
    num_evs = p.planes << shift
    open_now = open_planes(tx)
    slot = after
    for _ in range(num_evs):
        slot = slot + 1 if slot + 1 < num_evs else 0
        if tx.ev_words[word_of(slot) + at.EV_BAD] >> (slot & 31) & 1 and open_now >> (slot >> shift) & 1:
            return slot
    return -1


# --- a plane as a whole -----------------------------------------------------------------------------------------


def cut_plane(tx: Requestor, plane: int) -> None:
    """All EVs of a plane are ASSUMED_BAD: what was lost on several of them was lost by the plane."""
    shift = tx.profile.ev_shift
    for slot in range(plane << shift, plane + 1 << shift):
        assume_bad(tx, slot)
    tx.cut |= 1 << plane


def restore_plane(tx: Requestor, slot: int) -> None:
    """An EV of a plane that was cut is good again, and so is the plane: the others were bad for the same reason."""
    shift = tx.profile.ev_shift
    plane = slot >> shift
    if not tx.cut >> plane & 1 or tx.ev_words[word_of(slot) + at.EV_BAD] >> (slot & 31) & 1:
        return
    tx.cut &= ~(1 << plane)
    for other in range(plane << shift, plane + 1 << shift):
        if tx.ev_words[word_of(other) + at.EV_BAD] >> (other & 31) & 1:
            recover(tx, other)


def _standby(tx: Requestor, plane: int) -> int:
    """A GOOD EV of the plane that stands by, from a random place on; -1 if there is none."""
    shift = tx.profile.ev_shift
    size = 1 << shift
    start = bits.random32(tx) & (size - 1)
    for i in range(size):
        slot = plane << shift | (start + i) & (size - 1)
        word = word_of(slot)
        taken = (
            tx.ev_words[word + at.EV_ACTIVE]
            | tx.ev_words[word + at.EV_SKIP]
            | tx.ev_words[word + at.EV_BAD]
            | tx.ev_words[word + at.EV_DENIED]
        )
        if not taken >> (slot & 31) & 1:
            return slot
    return -1


def _leave(tx: Requestor, slot: int) -> None:
    """Take an EV that is no longer GOOD out of the rotation and put one that stands by in its place."""
    word = word_of(slot)
    bit = 1 << (slot & 31)
    if not tx.ev_words[word + at.EV_ACTIVE] & bit:
        return
    if relieve(tx, slot) < 0:
        tx.ev_words[word + at.EV_ACTIVE] &= ~bit
        _count(tx, slot, -1)


def relieve(tx: Requestor, slot: int) -> int:
    """An EV in rotation changes places with a GOOD one of its plane that stands by: which; -1 if there is none."""
    standby = _standby(tx, slot >> tx.profile.ev_shift)
    if standby >= 0:
        tx.ev_words[word_of(slot) + at.EV_ACTIVE] &= ~(1 << (slot & 31))
        tx.ev_words[word_of(standby) + at.EV_ACTIVE] |= 1 << (standby & 31)
    return standby


def recover(tx: Requestor, slot: int) -> None:
    """ASSUMED_BAD -> GOOD."""
    tx.ev_words[word_of(slot) + at.EV_BAD] &= ~(1 << (slot & 31))
    tx.ev_bad -= 1
    set_nibble(tx, slot, 0)
    _join(tx, slot)


def _join(tx: Requestor, slot: int) -> None:
    """An EV is good again: it fills an empty place in its plane's rotation, or stands by."""
    p = tx.profile
    plane = slot >> p.ev_shift
    if tx.plane_words[plane] >> at.PLANE_ACTIVE_SHIFT < p.evs_active:
        tx.ev_words[word_of(slot) + at.EV_ACTIVE] |= 1 << (slot & 31)
        _count(tx, slot, 1)


def _count(tx: Requestor, slot: int, change: int) -> None:
    """Keep the numbers of EVs in rotation, per plane and in all."""
    p = tx.profile
    plane = slot >> p.ev_shift
    tx.plane_words[plane] += change << at.PLANE_ACTIVE_SHIFT
    tx.ev_active += change
    if tx.plane_words[plane] >> at.PLANE_ACTIVE_SHIFT > 0:
        tx.planes_ok |= 1 << plane
    else:
        tx.planes_ok &= ~(1 << plane)

"""Law of entropy values: the life cycle of each EV, and the rotation that spreads packets over them.

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

Slots are numbered plane << shift | number. A plane is walked in the order counter XOR mask; the mask is drawn anew at
each wrap from the queue pair's own random stream, so that queue pairs that started together do not stay in step.
"""
# ruff: noqa: F403, F405 - the law reads the whole register map; handlers take addresses and integers

from __future__ import annotations

from fairlead.fabric.mrc import bits
from fairlead.fabric.mrc.layout import *

NIBBLE_MAX = 15
SUSPICION = 6
CONVICTION = 8


def init_evs(m: Words, tx: int) -> None:
    """Put the first EVs of each plane in rotation."""
    p = m[tx + E_PROFILE]
    planes = m[p + P_PLANES]
    shift = m[p + P_EV_SHIFT]
    active = m[p + P_EV_ACTIVE]
    for plane in range(planes):
        mask = bits.random32(m, tx + E_RANDOM) & ((1 << shift) - 1)
        m[tx + m[p + P_TX_PLANES] + plane] = mask << PLANE_XOR_SHIFT | active << PLANE_ACTIVE_SHIFT
        for number in range(active):
            slot = plane << shift | number
            m[_word(m, tx, slot) + EV_ACTIVE] |= 1 << (slot & 31)
    m[tx + TX_EV_ACTIVE] = planes * active
    m[tx + TX_PLANES_OK] = (1 << planes) - 1
    m[tx + E_PLANE] = bits.random32(m, tx + E_RANDOM) % planes


def _word(m: Words, tx: int, slot: int) -> int:
    """Address of the four state words that hold this EV's bits."""
    return tx + m[m[tx + E_PROFILE] + P_TX_EVS] + (slot >> 5) * NUM_EV_WORDS


def ev_state(m: Words, tx: int, slot: int) -> int:
    """State of an EV: STATE_GOOD (in rotation), STATE_STANDBY (good, not in rotation), SKIP, ASSUMED_BAD or DENIED."""
    word = _word(m, tx, slot)
    bit = 1 << (slot & 31)
    if m[word + EV_DENIED] & bit:
        return STATE_DENIED
    if m[word + EV_BAD] & bit:
        return STATE_ASSUMED_BAD
    if m[word + EV_SKIP] & bit:
        return STATE_SKIP
    return STATE_GOOD if m[word + EV_ACTIVE] & bit else STATE_STANDBY


def nibble(m: Words, tx: int, slot: int) -> int:
    """Small counter of an EV: points against it, or probes answered since it is bad, or the bitmap rule's penalty."""
    area = tx + m[m[tx + E_PROFILE] + P_TX_NIBBLES]
    return (m[area + (slot >> 3)] >> ((slot & 7) * 4)) & NIBBLE_MAX


def set_nibble(m: Words, tx: int, slot: int, value: int) -> None:
    """Write the small counter of an EV."""
    address = tx + m[m[tx + E_PROFILE] + P_TX_NIBBLES] + (slot >> 3)
    shift = (slot & 7) * 4
    m[address] = m[address] & ~(NIBBLE_MAX << shift) | value << shift


# --- rotation -------------------------------------------------------------------------------------------------


def open_planes(m: Words, row: int) -> int:
    """Planes whose ports are up at both ends, as far as this row knows."""
    return m[row + E_PORTS] & m[row + E_PEER_PORTS]


def next_plane(m: Words, row: int, planes: int) -> int:
    """The plane after the last one used, among `planes` (a bit set, not 0), in turn."""
    last = m[row + E_PLANE]
    later = planes & ~((2 << last) - 1)
    return bits.lowest(later if later != 0 else planes)


def step(m: Words, tx: int, plane: int) -> int:
    """Move the plane's cursor on by one and return the slot it stood on."""
    p = m[tx + E_PROFILE]
    shift = m[p + P_EV_SHIFT]
    address = tx + m[p + P_TX_PLANES] + plane
    word = m[address]
    size = 1 << shift
    cursor = word & 0xFFFF
    slot = plane << shift | (cursor ^ (word >> PLANE_XOR_SHIFT & 0xFFFF)) & (size - 1)
    if cursor + 1 < size:
        m[address] = word + 1
    else:
        mask = bits.random32(m, tx + E_RANDOM) & (size - 1)
        m[address] = word >> PLANE_ACTIVE_SHIFT << PLANE_ACTIVE_SHIFT | mask << PLANE_XOR_SHIFT
    return slot


def rotate(m: Words, tx: int, ports: int, avoid: int) -> int:
    """The next EV by the life cycle: its slot, or -1 when no free port (bit set `ports`) leads to a usable EV.

    `avoid` is the EV that failed the packet now sent again (-1: none): a retransmission takes another one where there
    is one (OCP MRC 1.0: never the EV named by the NACK).
    """
    usable = open_planes(m, tx) & m[tx + TX_PLANES_OK]
    if usable == 0:
        return _last_resort(m, tx, ports)
    if usable & ports == 0:
        return -1  # a usable plane exists and its port is busy: wait
    plane = next_plane(m, tx, usable & ports)
    m[tx + E_PLANE] = plane
    return _next_in_plane(m, tx, plane, EV_ACTIVE, avoid)


def is_in_turn(m: Words, tx: int, slot: int, ports: int) -> bool:
    """Whether an EV is in rotation, not to be skipped, and its port (bit set `ports`) free."""
    plane = slot >> m[m[tx + E_PROFILE] + P_EV_SHIFT]
    word = _word(m, tx, slot)
    is_good = m[word + EV_ACTIVE] & ~m[word + EV_SKIP] & 1 << (slot & 31)
    return is_good != 0 and open_planes(m, tx) & ports & 1 << plane != 0


def _last_resort(m: Words, tx: int, ports: int) -> int:
    """With no EV left in rotation: any that is not denied, on a free port; -1 if there is none."""
    planes = open_planes(m, tx) & ports
    while planes != 0:
        plane = next_plane(m, tx, planes)
        slot = _next_in_plane(m, tx, plane, EV_DENIED, -1)
        if slot >= 0:
            m[tx + E_PLANE] = plane
            return slot
        planes &= ~(1 << plane)
    return -1


def _next_in_plane(m: Words, tx: int, plane: int, kind: int, avoid: int) -> int:
    """Walk one plane: the next EV in rotation that is not to be skipped; with kind EV_DENIED any EV not denied.

    An EV in SKIP is passed over once and is GOOD from then on. Three laps from anywhere hold two whole ones, whatever
    order a new lap takes, so an EV in rotation is always found; -1 only if all are denied.
    """
    fallback = -1
    for _ in range(3 << m[m[tx + E_PROFILE] + P_EV_SHIFT]):
        slot = step(m, tx, plane)
        word = _word(m, tx, slot)
        bit = 1 << (slot & 31)
        if kind == EV_DENIED:
            if not m[word + EV_DENIED] & bit:
                return slot
        elif m[word + EV_ACTIVE] & bit:
            if m[word + EV_SKIP] & bit:
                m[word + EV_SKIP] &= ~bit
            elif slot == avoid:
                fallback = slot
            else:
                return slot
    return fallback


# --- life cycle ------------------------------------------------------------------------------------------------


def skip(m: Words, tx: int, slot: int) -> None:
    """GOOD -> SKIP, for an EV in rotation; one that stands by has no turn to lose."""
    word = _word(m, tx, slot)
    m[word + EV_SKIP] |= m[word + EV_ACTIVE] & (1 << (slot & 31))


def suspect(m: Words, tx: int, slot: int) -> None:
    """A packet that used this EV seems lost, for later ones have arrived."""
    word = _word(m, tx, slot)
    if (m[word + EV_BAD] | m[word + EV_DENIED]) >> (slot & 31) & 1:
        return
    points = nibble(m, tx, slot) + SUSPICION
    if points >= CONVICTION:
        assume_bad(m, tx, slot)
    else:
        set_nibble(m, tx, slot, points)


def trust(m: Words, tx: int, slot: int) -> None:
    """A packet that used this EV was answered, unmarked."""
    points = nibble(m, tx, slot)
    if points > 0 and not m[_word(m, tx, slot) + EV_BAD] >> (slot & 31) & 1:
        set_nibble(m, tx, slot, points - 1)


def forgive(m: Words, tx: int, slot: int) -> None:
    """A packet thought lost on this EV has arrived: what was held against the EV was wrong."""
    if m[_word(m, tx, slot) + EV_BAD] >> (slot & 31) & 1:
        recover(m, tx, slot)
    set_nibble(m, tx, slot, 0)


def assume_bad(m: Words, tx: int, slot: int) -> None:
    """GOOD, SKIP -> ASSUMED_BAD, and a replacement from the same plane; when too few are left, from the bad ones."""
    p = m[tx + E_PROFILE]
    word = _word(m, tx, slot)
    bit = 1 << (slot & 31)
    if (m[word + EV_BAD] | m[word + EV_DENIED]) & bit:
        return
    m[word + EV_SKIP] &= ~bit
    m[word + EV_BAD] |= bit
    m[tx + TX_EV_BAD] += 1
    m[tx + TX_EVP_MISSED] = 0
    set_nibble(m, tx, slot, 0)
    _leave(m, tx, slot)
    if m[tx + TX_EV_ACTIVE] < m[p + P_EV_MIN_ACTIVE]:
        other = next_bad(m, tx, slot)
        recover(m, tx, other if other >= 0 else slot)


def probe_answered(m: Words, tx: int, slot: int, mark: int) -> None:
    """A probe of an ASSUMED_BAD EV came back with SETH.m or its equal; enough of them in a row bring the EV back.

    One source sends an EV answered with SKIP_ONCE to SKIP, another to GOOD; SKIP is the cautious reading.
    """
    word = _word(m, tx, slot)
    bit = 1 << (slot & 31)
    if not m[word + EV_BAD] & bit:
        return
    if mark == M_ALWAYS_SKIP:
        set_nibble(m, tx, slot, 0)
        return
    answered = nibble(m, tx, slot) + 1
    set_nibble(m, tx, slot, answered)
    if answered < m[m[tx + E_PROFILE] + P_EV_PROBE_OK]:
        return
    recover(m, tx, slot)
    if mark != M_NONE:
        skip(m, tx, slot)


def is_answering(m: Words, tx: int, slot: int) -> int:
    """1 for an ASSUMED_BAD EV, on a plane that is open, that answered its last probe: asked again, it is soon back."""
    p = m[tx + E_PROFILE]
    bad = m[_word(m, tx, slot) + EV_BAD] >> (slot & 31) & 1
    return bad if nibble(m, tx, slot) > 0 and open_planes(m, tx) >> (slot >> m[p + P_EV_SHIFT]) & 1 else 0


def probe_unanswered(m: Words, tx: int, slot: int) -> None:
    """A probe of an ASSUMED_BAD EV was lost: begin counting again."""
    set_nibble(m, tx, slot, 0)


def deny(m: Words, tx: int, slot: int) -> None:
    """The controller takes an EV away (from any state; the specification draws the arrow from GOOD)."""
    word = _word(m, tx, slot)
    bit = 1 << (slot & 31)
    if m[word + EV_DENIED] & bit:
        return
    if m[word + EV_BAD] & bit:
        m[word + EV_BAD] &= ~bit
        m[tx + TX_EV_BAD] -= 1
    m[word + EV_SKIP] &= ~bit
    m[word + EV_DENIED] |= bit
    _leave(m, tx, slot)


def allow(m: Words, tx: int, slot: int) -> None:
    """DENIED -> GOOD."""
    word = _word(m, tx, slot)
    bit = 1 << (slot & 31)
    if m[word + EV_DENIED] & bit:
        m[word + EV_DENIED] &= ~bit
        set_nibble(m, tx, slot, 0)
        _join(m, tx, slot)


def next_bad(m: Words, tx: int, after: int) -> int:
    """The ASSUMED_BAD EV after slot `after`, in turn, on a plane that is open; -1 if there is none."""
    p = m[tx + E_PROFILE]
    shift = m[p + P_EV_SHIFT]
    num_evs = m[p + P_PLANES] << shift
    open_now = open_planes(m, tx)
    slot = after
    for _ in range(num_evs):
        slot = slot + 1 if slot + 1 < num_evs else 0
        if m[_word(m, tx, slot) + EV_BAD] >> (slot & 31) & 1 and open_now >> (slot >> shift) & 1:
            return slot
    return -1


# --- a plane as a whole -----------------------------------------------------------------------------------------


def cut_plane(m: Words, tx: int, plane: int) -> None:
    """All EVs of a plane are ASSUMED_BAD: what was lost on several of them was lost by the plane."""
    shift = m[m[tx + E_PROFILE] + P_EV_SHIFT]
    for slot in range(plane << shift, plane + 1 << shift):
        assume_bad(m, tx, slot)
    m[tx + TX_CUT] |= 1 << plane


def restore_plane(m: Words, tx: int, slot: int) -> None:
    """An EV of a plane that was cut is good again, and so is the plane: the others were bad for the same reason."""
    shift = m[m[tx + E_PROFILE] + P_EV_SHIFT]
    plane = slot >> shift
    if not m[tx + TX_CUT] >> plane & 1 or m[_word(m, tx, slot) + EV_BAD] >> (slot & 31) & 1:
        return
    m[tx + TX_CUT] &= ~(1 << plane)
    for other in range(plane << shift, plane + 1 << shift):
        if m[_word(m, tx, other) + EV_BAD] >> (other & 31) & 1:
            recover(m, tx, other)


def _standby(m: Words, tx: int, plane: int) -> int:
    """A GOOD EV of the plane that stands by, from a random place on; -1 if there is none."""
    shift = m[m[tx + E_PROFILE] + P_EV_SHIFT]
    size = 1 << shift
    start = bits.random32(m, tx + E_RANDOM) & (size - 1)
    for i in range(size):
        slot = plane << shift | (start + i) & (size - 1)
        word = _word(m, tx, slot)
        taken = m[word + EV_ACTIVE] | m[word + EV_SKIP] | m[word + EV_BAD] | m[word + EV_DENIED]
        if not taken >> (slot & 31) & 1:
            return slot
    return -1


def _leave(m: Words, tx: int, slot: int) -> None:
    """Take an EV that is no longer GOOD out of the rotation and put one that stands by in its place."""
    word = _word(m, tx, slot)
    bit = 1 << (slot & 31)
    if not m[word + EV_ACTIVE] & bit:
        return
    m[word + EV_ACTIVE] &= ~bit
    _count(m, tx, slot, -1)
    standby = _standby(m, tx, slot >> m[m[tx + E_PROFILE] + P_EV_SHIFT])
    if standby >= 0:
        m[_word(m, tx, standby) + EV_ACTIVE] |= 1 << (standby & 31)
        _count(m, tx, standby, 1)


def recover(m: Words, tx: int, slot: int) -> None:
    """ASSUMED_BAD -> GOOD."""
    m[_word(m, tx, slot) + EV_BAD] &= ~(1 << (slot & 31))
    m[tx + TX_EV_BAD] -= 1
    set_nibble(m, tx, slot, 0)
    _join(m, tx, slot)


def _join(m: Words, tx: int, slot: int) -> None:
    """An EV is good again: it fills an empty place in its plane's rotation, or stands by."""
    p = m[tx + E_PROFILE]
    plane = slot >> m[p + P_EV_SHIFT]
    if m[tx + m[p + P_TX_PLANES] + plane] >> PLANE_ACTIVE_SHIFT < m[p + P_EV_ACTIVE]:
        m[_word(m, tx, slot) + EV_ACTIVE] |= 1 << (slot & 31)
        _count(m, tx, slot, 1)


def _count(m: Words, tx: int, slot: int, change: int) -> None:
    """Keep the numbers of EVs in rotation, per plane and in all."""
    p = m[tx + E_PROFILE]
    plane = slot >> m[p + P_EV_SHIFT]
    address = tx + m[p + P_TX_PLANES] + plane
    m[address] += change << PLANE_ACTIVE_SHIFT
    m[tx + TX_EV_ACTIVE] += change
    if m[address] >> PLANE_ACTIVE_SHIFT > 0:
        m[tx + TX_PLANES_OK] |= 1 << plane
    else:
        m[tx + TX_PLANES_OK] &= ~(1 << plane)

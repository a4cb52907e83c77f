"""Law of the requestor's window: what was sent, what arrived, what is lost, and which message each PSN belongs to.

Every PSN in [una, next) is in exactly one state:

    in flight   sent, nothing heard                    no bit set
    arrived     reported in a SACK bitmap              bit in the acked ring
    lost        to be sent again                       bit in the lost ring

A record word per PSN remembers when it was last sent, on which EV, how large it is and how often it was sent.
tx.in_flight counts bytes: up on sending, down by the responder's rcvd_bytes (not by counting acknowledged packets),
down when a packet is declared lost, and up again when a packet declared lost turns out to have arrived, since
rcvd_bytes counts it too.
"""

from __future__ import annotations

from fairlead.fabric.mrc import bits, paths
from fairlead.fabric.mrc import layout as at
from fairlead.fabric.mrc.rows import Requestor

REORDER_PERSIST = 16  # recoveries without a mistake after which the reorder window is narrow again (RFC 8985 6.2)
MAX_TRIES = 3  # the record saturates here; only 0, 1 and more are told apart


# --- records -----------------------------------------------------------------------------------------------------


def record_of(tx: Requestor, psn: int) -> int:
    """The record of a PSN in the window."""
    return tx.records[psn & tx.profile.ring_mask]


def sent_at(record: int, now: int) -> int:
    """When the packet was last sent, from its 38 stored bits (ages up to 274 s)."""
    return now - ((now - (record >> at.REC_TIME_SHIFT)) & at.REC_TIME_MASK)


def record_bytes(record: int) -> int:
    """Size of the packet for congestion accounting."""
    return (record >> at.REC_BYTES_SHIFT) & at.REC_BYTES_MASK


def record_tries(record: int) -> int:
    """How often it was sent again, at most MAX_TRIES."""
    return (record >> at.REC_TRIES_SHIFT) & 3


def record_ev(record: int) -> int:
    """The EV slot it was last sent on."""
    return record & at.REC_EV_MASK


def note_sent(tx: Requestor, psn: int, now: int, size: int, slot: int) -> None:
    """A packet leaves: new (psn is next) or again (psn is lost)."""
    p = tx.profile
    i = psn & p.ring_mask
    tries = 0
    if psn == tx.next:
        tx.next = psn + 1
    else:
        tries = min(record_tries(tx.records[i]) + 1, MAX_TRIES)
        bits.drop(tx.lost_bits, psn & p.ring_mask)
        tx.lost -= 1
        tx.lost_hint = psn + 1
    tx.records[i] = (
        (now & at.REC_TIME_MASK) << at.REC_TIME_SHIFT | tries << at.REC_TRIES_SHIFT | size << at.REC_BYTES_SHIFT | slot
    )
    tx.in_flight += size


def is_in_flight(tx: Requestor, psn: int) -> bool:
    """Sent, and neither known to have arrived nor declared lost."""
    p = tx.profile
    if psn < tx.una or psn >= tx.next:
        return False
    i = psn & p.ring_mask
    return (bits.test(tx.acked_bits, i) | bits.test(tx.lost_bits, i)) == 0


# --- loss --------------------------------------------------------------------------------------------------------


def mark_lost(tx: Requestor, psn: int) -> int:
    """An in-flight PSN is to be sent again; its size in bytes."""
    p = tx.profile
    size = record_bytes(record_of(tx, psn))
    bits.put(tx.lost_bits, psn & p.ring_mask)
    if tx.lost == 0 or psn < tx.lost_hint:
        tx.lost_hint = psn
    tx.lost += 1
    tx.in_flight -= size
    return size


def first_lost(tx: Requestor) -> int:
    """The oldest PSN to send again; call only while tx.lost > 0."""
    p = tx.profile
    start = max(tx.lost_hint, tx.una)
    psn = bits.find_set(tx.lost_bits, p.ring_mask, start, tx.next)
    tx.lost_hint = psn
    return psn


def next_in_flight(tx: Requestor, psn: int) -> int:
    """The first in-flight PSN at or above `psn`; tx.next if there is none."""
    p = tx.profile
    mask = p.ring_mask
    acked = tx.acked_bits
    lost = tx.lost_bits
    end = tx.next
    while psn < end:
        i = psn & mask
        word = ((acked[i >> 5] | lost[i >> 5]) ^ bits.LOW32) >> (i & 31)
        if word != 0:
            return min(psn + bits.lowest(word), end)
        psn += 32 - (i & 31)
    return end


# --- arrival -------------------------------------------------------------------------------------------------------


def acknowledge_below(tx: Requestor, una: int) -> None:
    """Everything below `una` has arrived."""
    una = min(una, tx.next)
    start = tx.una
    if una <= start:
        return
    p = tx.profile
    mask = p.ring_mask
    if tx.lost > 0:
        psn = bits.find_set(tx.lost_bits, mask, start, una)
        while psn < una:
            _unlose(tx, psn)
            psn = bits.find_set(tx.lost_bits, mask, psn + 1, una)
    bits.take_range(tx.acked_bits, mask, start, una)
    tx.una = una
    tx.retries = 0
    tx.rounds = 0
    _complete(tx)


def acknowledge_bitmap(tx: Requestor, base: int, word: int) -> None:
    """The PSNs base + i with bit i of a 32-bit word set have arrived."""
    una = tx.una
    if base < una:
        word = word >> (una - base) if una - base < bits.WORD_BITS else 0
        base = una
    room = tx.next - base
    if room < bits.WORD_BITS:
        word &= (1 << max(room, 0)) - 1  # a peer may name what was never sent
    if word == 0:
        return
    mask = tx.profile.ring_mask
    i = base & mask
    shift = i & 31
    _arrive(tx, i >> 5, base - shift, word << shift & bits.LOW32)
    if word >> (bits.WORD_BITS - shift) != 0:
        after = ((i | 31) + 1) & mask
        _arrive(tx, after >> 5, base - shift + bits.WORD_BITS, word >> (bits.WORD_BITS - shift))


def close_gap(tx: Requestor) -> None:
    """Move una past PSNs that a bitmap has already acknowledged."""
    p = tx.profile
    una = tx.una
    end = bits.find_clear(tx.acked_bits, p.ring_mask, una, tx.next)
    acknowledge_below(tx, end)


def _arrive(tx: Requestor, index: int, psn0: int, word: int) -> None:
    """Set arrived bits in one ring word, whose bit 0 stands for `psn0`."""
    tx.acked_bits[index] |= word
    found = word & tx.lost_bits[index]
    while found != 0:
        _unlose(tx, psn0 + bits.lowest(found))
        found &= found - 1


def _unlose(tx: Requestor, psn: int) -> None:
    """A PSN declared lost has arrived after all: its path is innocent."""
    p = tx.profile
    note_mistake(tx)
    paths.forgive(tx, record_ev(record_of(tx, psn)))
    bits.drop(tx.lost_bits, psn & p.ring_mask)
    tx.lost -= 1
    tx.in_flight += record_bytes(record_of(tx, psn))


def note_mistake(tx: Requestor) -> None:
    """A packet declared lost had only been late: the reorder window widens, for some recoveries; this one was none."""
    tx.num_spurious += 1
    tx.recovery = -1
    tx.reorder += 1
    tx.reorder_left = REORDER_PERSIST


def end_recovery(tx: Requestor) -> None:
    """Everything sent before the first loss of a recovery is settled; without mistakes the reorder window decays."""
    tx.recovery = -1
    if tx.reorder_left > 0:
        tx.reorder_left -= 1
        if tx.reorder_left == 0:
            tx.reorder = 0


# --- messages ------------------------------------------------------------------------------------------------------


def message_at(tx: Requestor, msn: int) -> int:
    """Where in `messages` a posted message stands."""
    return (msn & tx.profile.message_mask) * at.NUM_MSG_FIELDS


def add_message(tx: Requestor, num_bytes: int, is_imm: int) -> int:
    """Queue a message; 0 if the ring is full. A message of no bytes still takes one packet."""
    p = tx.profile
    msn = tx.posted
    if msn - tx.done > p.message_mask:
        return 0
    message = message_at(tx, msn)
    start = tx.posted_psn
    end = start + max((num_bytes + p.mtu - 1) // p.mtu, 1)
    tx.messages[message + at.MSG_START] = start
    tx.messages[message + at.MSG_END] = end
    tx.messages[message + at.MSG_BYTES] = num_bytes
    tx.messages[message + at.MSG_FLAGS] = tx.wimm_posted << 1 | is_imm
    tx.wimm_posted += is_imm
    tx.posted_psn = end
    tx.posted = msn + 1
    return 1


def message_of(tx: Requestor, psn: int) -> int:
    """The message that a PSN of the window belongs to: near the oldest, for retransmissions go oldest first."""
    msn = tx.done
    while tx.messages[message_at(tx, msn) + at.MSG_END] <= psn:
        msn += 1
    return msn


def payload_bytes(tx: Requestor, message: int, psn: int) -> int:
    """Bytes of payload in a packet of the message that stands there."""
    mtu = tx.profile.mtu
    return min(mtu, tx.messages[message + at.MSG_BYTES] - (psn - tx.messages[message + at.MSG_START]) * mtu)


def wire_bytes(tx: Requestor, payload: int) -> int:
    """Nominal packet size for congestion accounting."""
    return payload + tx.profile.overhead


def _complete(tx: Requestor) -> None:
    """Messages whose last PSN lies below una are complete, in order."""
    msn = tx.done
    while msn < tx.posted:
        message = message_at(tx, msn)
        if tx.messages[message + at.MSG_END] > tx.una:
            break
        tx.wimm -= tx.messages[message + at.MSG_FLAGS] & 1
        msn += 1
    tx.done = msn
    tx.current = max(tx.current, msn)

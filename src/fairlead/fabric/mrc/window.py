"""Law of the requestor's window: what was sent, what arrived, what is lost, and which message each PSN belongs to.

Every PSN in [una, next) is in exactly one state:

    in flight   sent, nothing heard                    no bit set
    arrived     reported in a SACK bitmap              bit in the acked ring
    lost        to be sent again                       bit in the lost ring

A record word per PSN remembers when it was last sent, on which EV, how large it is and how often it was sent.
TX_IN_FLIGHT counts bytes: up on sending, down by the responder's rcvd_bytes (not by counting acknowledged packets),
down when a packet is declared lost, and up again when a packet declared lost turns out to have arrived, since
rcvd_bytes counts it too.
"""
# ruff: noqa: F403, F405, PLR0917 - the law reads the whole register map; handlers take addresses and integers

from __future__ import annotations

from fairlead.fabric.mrc import bits, paths
from fairlead.fabric.mrc.layout import *

REORDER_PERSIST = 16  # recoveries without a mistake after which the reorder window is narrow again (RFC 8985 6.2)
MAX_TRIES = 3  # the record saturates here; only 0, 1 and more are told apart


# --- records -----------------------------------------------------------------------------------------------------


def record_address(m: Words, tx: int, psn: int) -> int:
    """Address of the record of a PSN in the window."""
    p = m[tx + E_PROFILE]
    return tx + m[p + P_TX_RECORDS] + (psn & m[p + P_RING_MASK])


def sent_at(record: int, now: int) -> int:
    """When the packet was last sent, from its 38 stored bits (ages up to 274 s)."""
    return now - ((now - (record >> REC_TIME_SHIFT)) & REC_TIME_MASK)


def record_bytes(record: int) -> int:
    """Size of the packet for congestion accounting."""
    return (record >> REC_BYTES_SHIFT) & REC_BYTES_MASK


def record_tries(record: int) -> int:
    """How often it was sent again, at most MAX_TRIES."""
    return (record >> REC_TRIES_SHIFT) & 3


def record_ev(record: int) -> int:
    """The EV slot it was last sent on."""
    return record & REC_EV_MASK


def note_sent(m: Words, tx: int, psn: int, now: int, size: int, slot: int) -> None:
    """A packet leaves: new (psn is next) or again (psn is lost)."""
    p = m[tx + E_PROFILE]
    address = record_address(m, tx, psn)
    tries = 0
    if psn == m[tx + TX_NEXT]:
        m[tx + TX_NEXT] = psn + 1
    else:
        tries = min(record_tries(m[address]) + 1, MAX_TRIES)
        bits.drop(m, tx + m[p + P_TX_LOST], psn & m[p + P_RING_MASK])
        m[tx + TX_LOST] -= 1
        m[tx + TX_LOST_HINT] = psn + 1
    m[address] = (now & REC_TIME_MASK) << REC_TIME_SHIFT | tries << REC_TRIES_SHIFT | size << REC_BYTES_SHIFT | slot
    m[tx + TX_IN_FLIGHT] += size


def is_in_flight(m: Words, tx: int, psn: int) -> bool:
    """Sent, and neither known to have arrived nor declared lost."""
    p = m[tx + E_PROFILE]
    if psn < m[tx + TX_UNA] or psn >= m[tx + TX_NEXT]:
        return False
    i = psn & m[p + P_RING_MASK]
    return (bits.test(m, tx + m[p + P_TX_ACKED], i) | bits.test(m, tx + m[p + P_TX_LOST], i)) == 0


# --- loss --------------------------------------------------------------------------------------------------------


def mark_lost(m: Words, tx: int, psn: int) -> int:
    """An in-flight PSN is to be sent again; its size in bytes."""
    p = m[tx + E_PROFILE]
    size = record_bytes(m[record_address(m, tx, psn)])
    bits.put(m, tx + m[p + P_TX_LOST], psn & m[p + P_RING_MASK])
    if m[tx + TX_LOST] == 0 or psn < m[tx + TX_LOST_HINT]:
        m[tx + TX_LOST_HINT] = psn
    m[tx + TX_LOST] += 1
    m[tx + TX_IN_FLIGHT] -= size
    return size


def first_lost(m: Words, tx: int) -> int:
    """The oldest PSN to send again; call only while TX_LOST > 0."""
    p = m[tx + E_PROFILE]
    start = max(m[tx + TX_LOST_HINT], m[tx + TX_UNA])
    psn = bits.find_set(m, tx + m[p + P_TX_LOST], m[p + P_RING_MASK], start, m[tx + TX_NEXT])
    m[tx + TX_LOST_HINT] = psn
    return psn


def next_in_flight(m: Words, tx: int, psn: int) -> int:
    """The first in-flight PSN at or above `psn`; TX_NEXT if there is none."""
    p = m[tx + E_PROFILE]
    mask = m[p + P_RING_MASK]
    acked = tx + m[p + P_TX_ACKED]
    lost = tx + m[p + P_TX_LOST]
    end = m[tx + TX_NEXT]
    while psn < end:
        i = psn & mask
        word = ((m[acked + (i >> 5)] | m[lost + (i >> 5)]) ^ bits.LOW32) >> (i & 31)
        if word != 0:
            return min(psn + bits.lowest(word), end)
        psn += 32 - (i & 31)
    return end


# --- arrival -------------------------------------------------------------------------------------------------------


def acknowledge_below(m: Words, tx: int, una: int) -> None:
    """Everything below `una` has arrived."""
    una = min(una, m[tx + TX_NEXT])
    start = m[tx + TX_UNA]
    if una <= start:
        return
    p = m[tx + E_PROFILE]
    mask = m[p + P_RING_MASK]
    if m[tx + TX_LOST] > 0:
        psn = bits.find_set(m, tx + m[p + P_TX_LOST], mask, start, una)
        while psn < una:
            _unlose(m, tx, psn)
            psn = bits.find_set(m, tx + m[p + P_TX_LOST], mask, psn + 1, una)
    bits.take_range(m, tx + m[p + P_TX_ACKED], mask, start, una)
    m[tx + TX_UNA] = una
    m[tx + TX_RETRIES] = 0
    m[tx + TX_ROUNDS] = 0
    _complete(m, tx)


def acknowledge_bitmap(m: Words, tx: int, base: int, word: int) -> None:
    """The PSNs base + i with bit i of a 32-bit word set have arrived."""
    una = m[tx + TX_UNA]
    if base < una:
        word = word >> (una - base) if una - base < bits.WORD_BITS else 0
        base = una
    room = m[tx + TX_NEXT] - base
    if room < bits.WORD_BITS:
        word &= (1 << max(room, 0)) - 1  # a peer may name what was never sent
    if word == 0:
        return
    mask = m[m[tx + E_PROFILE] + P_RING_MASK]
    i = base & mask
    shift = i & 31
    _arrive(m, tx, i >> 5, base - shift, word << shift & bits.LOW32)
    if word >> (bits.WORD_BITS - shift) != 0:
        after = ((i | 31) + 1) & mask
        _arrive(m, tx, after >> 5, base - shift + bits.WORD_BITS, word >> (bits.WORD_BITS - shift))


def close_gap(m: Words, tx: int) -> None:
    """Move una past PSNs that a bitmap has already acknowledged."""
    p = m[tx + E_PROFILE]
    una = m[tx + TX_UNA]
    end = bits.find_clear(m, tx + m[p + P_TX_ACKED], m[p + P_RING_MASK], una, m[tx + TX_NEXT])
    acknowledge_below(m, tx, end)


def _arrive(m: Words, tx: int, index: int, psn0: int, word: int) -> None:
    """Set arrived bits in one ring word, whose bit 0 stands for `psn0`."""
    p = m[tx + E_PROFILE]
    m[tx + m[p + P_TX_ACKED] + index] |= word
    found = word & m[tx + m[p + P_TX_LOST] + index]
    while found != 0:
        _unlose(m, tx, psn0 + bits.lowest(found))
        found &= found - 1


def _unlose(m: Words, tx: int, psn: int) -> None:
    """A PSN declared lost has arrived after all: its path is innocent."""
    p = m[tx + E_PROFILE]
    note_mistake(m, tx)
    paths.forgive(m, tx, record_ev(m[record_address(m, tx, psn)]))
    bits.drop(m, tx + m[p + P_TX_LOST], psn & m[p + P_RING_MASK])
    m[tx + TX_LOST] -= 1
    m[tx + TX_IN_FLIGHT] += record_bytes(m[record_address(m, tx, psn)])


def note_mistake(m: Words, tx: int) -> None:
    """A packet declared lost had only been late: the reorder window widens, for some recoveries; this one was none."""
    m[tx + TX_NUM_SPURIOUS] += 1
    m[tx + TX_RECOVERY] = -1
    m[tx + TX_REORDER] += 1
    m[tx + TX_REORDER_LEFT] = REORDER_PERSIST


def end_recovery(m: Words, tx: int) -> None:
    """Everything sent before the first loss of a recovery is settled; without mistakes the reorder window decays."""
    m[tx + TX_RECOVERY] = -1
    if m[tx + TX_REORDER_LEFT] > 0:
        m[tx + TX_REORDER_LEFT] -= 1
        if m[tx + TX_REORDER_LEFT] == 0:
            m[tx + TX_REORDER] = 0


# --- messages ------------------------------------------------------------------------------------------------------


def message_address(m: Words, tx: int, msn: int) -> int:
    """Address of a posted message in the ring."""
    p = m[tx + E_PROFILE]
    return tx + m[p + P_TX_MSGS] + (msn & m[p + P_MSG_MASK]) * NUM_MSG_FIELDS


def add_message(m: Words, tx: int, num_bytes: int, is_imm: int) -> int:
    """Queue a message; 0 if the ring is full. A message of no bytes still takes one packet."""
    p = m[tx + E_PROFILE]
    msn = m[tx + TX_POSTED]
    if msn - m[tx + TX_DONE] > m[p + P_MSG_MASK]:
        return 0
    address = message_address(m, tx, msn)
    start = m[tx + TX_POSTED_PSN]
    end = start + max((num_bytes + m[p + P_MTU] - 1) // m[p + P_MTU], 1)
    m[address + MSG_START] = start
    m[address + MSG_END] = end
    m[address + MSG_BYTES] = num_bytes
    m[address + MSG_FLAGS] = m[tx + TX_WIMM_POSTED] << 1 | is_imm
    m[tx + TX_WIMM_POSTED] += is_imm
    m[tx + TX_POSTED_PSN] = end
    m[tx + TX_POSTED] = msn + 1
    return 1


def message_of(m: Words, tx: int, psn: int) -> int:
    """The message that a PSN of the window belongs to: near the oldest, for retransmissions go oldest first."""
    msn = m[tx + TX_DONE]
    while m[message_address(m, tx, msn) + MSG_END] <= psn:
        msn += 1
    return msn


def payload_bytes(m: Words, tx: int, message: int, psn: int) -> int:
    """Bytes of payload in a packet of the message at this address."""
    mtu = m[m[tx + E_PROFILE] + P_MTU]
    return min(mtu, m[message + MSG_BYTES] - (psn - m[message + MSG_START]) * mtu)


def wire_bytes(m: Words, tx: int, payload: int) -> int:
    """Nominal packet size for congestion accounting."""
    return payload + m[m[tx + E_PROFILE] + P_OVERHEAD]


def _complete(m: Words, tx: int) -> None:
    """Messages whose last PSN lies below una are complete, in order."""
    msn = m[tx + TX_DONE]
    while msn < m[tx + TX_POSTED]:
        address = message_address(m, tx, msn)
        if m[address + MSG_END] > m[tx + TX_UNA]:
            break
        m[tx + TX_WIMM] -= m[address + MSG_FLAGS] & 1
        msn += 1
    m[tx + TX_DONE] = msn
    m[tx + TX_CURRENT] = max(m[tx + TX_CURRENT], msn)

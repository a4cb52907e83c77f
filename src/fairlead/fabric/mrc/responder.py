"""Law of the responder: the window of received PSNs, when to acknowledge, what to refuse.

Packets are placed in any order, each carries its own address (RETH). The responder keeps three bits per PSN of its
window: received; last of a message; carries immediate data. As the lowest missing PSN moves on, messages complete in
order, and so do immediates, although their packets may have come long before.

    packet                               placed   answer
    already received                     no       SACK at once
    at or beyond cack + mpr              no       NACK PSN_OOR_WINDOW
    trimmed                              no       NACK TRIMMED or TRIMMED_LASTHOP
    RETH outside what it may write       no       NACK UNEXP_EVENT
    one Write-with-Imm too many          no       NACK UNEXP_EVENT, this queue pair fails too
    an immediate without receive request no       NACK NO_RESOURCE
    new                                  yes      SACK if a trigger says so (`_due`)

A SACK carries 64 bits from a base. Rule SACK_MRC takes the base so low that each arrival is reported at least once;
rule SACK_UEC takes the one of the reference simulator, from the PSN that triggered the SACK.
"""
# ruff: noqa: F403, F405, PLR0917 - the law reads the whole register map; handlers take addresses and integers

from __future__ import annotations

from fairlead.fabric.mrc import bits
from fairlead.fabric.mrc.layout import *

RCVD_UNIT_SHIFT = 8  # CC_STATE.rcvd_bytes counts 256 bytes
RCVD_MASK = 0xFFFFFF
OOO_MAX = 0x7FFF
TRUST_PROBES = 2
RESTORE_SACKS = 16  # restore_cwnd is said so often, for SACKs get lost; to hear it twice changes nothing
MPR_UNIT_SHIFT = 7


def accept(m: Words, rx: int, psn: int, num_bytes: int, flags: int, slot: int, echo: int, s: Words, o: int) -> int:
    """Judge one data packet; the answer's fields go to s[o:]. Returns DO_*/DID_* bits."""
    p = m[rx + E_PROFILE]
    psn = bits.unwrap(psn, m[rx + RX_NEXT])
    i = psn & m[p + P_RING_MASK]
    ahead = psn - m[rx + RX_NEXT]
    trimmed = flags & F_TRIMMED
    if not trimmed:
        m[rx + RX_NUM_PACKETS] += 1
        m[rx + RX_TRIGGER] += max(num_bytes, m[p + P_SACK_FLOOR])
    if ahead >= m[p + P_MPR] - 1:  # the window is (cack, cack + mpr), and cack = RX_NEXT - 1
        return write_nack(m, rx, psn, NACK_PSN_OOR_WINDOW, flags, slot, echo, s, o)
    if ahead < 0 or bits.test(m, rx + m[p + P_RX_SEEN], i):
        m[rx + RX_NUM_DUPLICATES] += 1
        m[rx + RX_LOW] = min(m[rx + RX_LOW], psn)  # the SACK that reported it may be lost: report it again
        return write_sack(m, rx, psn, flags & ~F_ASK, slot, echo, s, o)
    if trimmed:
        reason = NACK_TRIMMED_LASTHOP if flags & F_LAST_HOP else NACK_TRIMMED
        return write_nack(m, rx, psn, reason, flags, slot, echo, s, o)
    if flags & F_NO_ACCESS:
        return write_nack(m, rx, psn, NACK_UNEXP_EVENT, flags, slot, echo, s, o)
    if flags & F_IMM and m[rx + RX_WIMM] >= m[p + P_MAX_WIMM_DEST]:
        m[rx + E_ERROR] = ERROR_WIMM
        return DID_FAIL | write_nack(m, rx, psn, NACK_UNEXP_EVENT, flags, slot, echo, s, o)
    if flags & F_NO_RESOURCE:
        return write_nack(m, rx, psn, NACK_NO_RESOURCE, flags, slot, echo, s, o)

    first = 1 if m[rx + RX_RCVD] == 0 else 0
    m[rx + RX_RCVD] += num_bytes + m[p + P_OVERHEAD]
    completed = _receive(m, rx, psn, flags)
    did = DO_PLACE
    if completed > 0:
        did |= DID_COMPLETE | (DO_ACK if m[p + P_MESSAGE_ACK] else 0)
    if _due(m, rx, flags, first):
        did |= write_sack(m, rx, psn, flags, slot, echo, s, o)
    return did


def _receive(m: Words, rx: int, psn: int, flags: int) -> int:
    """Enter a new PSN in the window; the number of messages that this completes."""
    p = m[rx + E_PROFILE]
    mask = m[p + P_RING_MASK]
    i = psn & mask
    if flags & F_LAST:
        bits.put(m, rx + m[p + P_RX_LAST], i)
    if flags & F_IMM:
        bits.put(m, rx + m[p + P_RX_IMM], i)
        m[rx + RX_WIMM] += 1
    bits.put(m, rx + m[p + P_RX_SEEN], i)
    m[rx + RX_MAX] = max(m[rx + RX_MAX], psn)
    m[rx + RX_LOW] = min(m[rx + RX_LOW], psn) if m[rx + RX_OUT_OF_ORDER] > 0 else psn  # cack tells of all below a gap
    start = m[rx + RX_NEXT]
    if psn != start:
        m[rx + RX_OUT_OF_ORDER] += 1
        return 0
    end = bits.find_clear(m, rx + m[p + P_RX_SEEN], mask, start, m[rx + RX_MAX] + 1)
    bits.take_range(m, rx + m[p + P_RX_SEEN], mask, start, end)
    immediates = bits.take_range(m, rx + m[p + P_RX_IMM], mask, start, end)
    completed = bits.take_range(m, rx + m[p + P_RX_LAST], mask, start, end)
    m[rx + RX_NEXT] = end
    m[rx + RX_OUT_OF_ORDER] -= end - start - 1
    m[rx + RX_WIMM] -= immediates
    m[rx + RX_WIMM_DONE] += immediates
    m[rx + RX_DONE] += completed
    return completed


def _due(m: Words, rx: int, flags: int, first: int) -> bool:
    """Whether a new packet is to be acknowledged now: ECN mark, rtx, A, or enough bytes.

    A request made by A is remembered (prev_ar): when the last gap closes, the sender hears of it once more. Rule
    SACK_UEC also answers the very first packet.
    """
    p = m[rx + E_PROFILE]
    due = flags & (F_ECN | F_RTX | F_ASK) != 0 or m[rx + RX_TRIGGER] >= m[p + P_SACK_BYTES]
    if flags & F_ASK:
        m[rx + RX_ASKED] = 1
    if m[rx + RX_ASKED] and m[rx + RX_OUT_OF_ORDER] == 0:
        m[rx + RX_ASKED] = 0
        due = True
    return due or (first == 1 and m[p + P_SACK_RULE] == SACK_UEC)


def _sack_base(m: Words, rx: int, psn: int, flags: int) -> int:
    """The PSN of bit 0."""
    after_cack = m[rx + RX_NEXT]
    if m[m[rx + E_PROFILE] + P_SACK_RULE] == SACK_UEC:
        return psn if flags & (F_ECN | F_ASK) else max(psn - 63, after_cack + 1)
    return max(after_cack, min(m[rx + RX_LOW], m[rx + RX_MAX] - 63))


def write_sack(m: Words, rx: int, psn: int, flags: int, slot: int, echo: int, s: Words, o: int) -> int:
    """Fill the control block with a SACK of everything known; `psn` is the packet that asks for it."""
    p = m[rx + E_PROFILE]
    area = rx + m[p + P_RX_SEEN]
    mask = m[p + P_RING_MASK]
    base = _sack_base(m, rx, psn, flags)
    s[o + S_CACK] = m[rx + RX_NEXT] - 1
    s[o + S_PSN] = psn
    s[o + S_BASE] = base
    s[o + S_LOW] = _seen(m, rx, area, mask, base)
    s[o + S_HIGH] = _seen(m, rx, area, mask, base + bits.WORD_BITS)
    s[o + S_RCVD] = (m[rx + RX_RCVD] + 255 >> RCVD_UNIT_SHIFT) & RCVD_MASK
    mpr = m[p + P_MPR] >> MPR_UNIT_SHIFT if m[p + P_DYNAMIC_MPR] else 0
    s[o + S_INFO] = (
        slot
        | (M_SKIP_ONCE if flags & F_ECN else M_NONE) << INFO_M_SHIFT
        | (INFO_RTX if flags & F_RTX else 0)
        | (INFO_RESTORE if m[rx + RX_RESTORE] else 0)
        | m[rx + RX_PENALTY] << INFO_PEN_SHIFT
        | min(m[rx + RX_OUT_OF_ORDER], OOO_MAX) << INFO_OOO_SHIFT
        | mpr << INFO_MPR_SHIFT
    )
    s[o + S_ECHO] = echo
    m[rx + RX_LOW] = max(m[rx + RX_LOW], base + 64)
    m[rx + RX_RESTORE] = max(m[rx + RX_RESTORE] - 1, 0)
    m[rx + RX_TRIGGER] = 0
    m[rx + RX_NUM_SACKS] += 1
    return DO_SACK


def _seen(m: Words, rx: int, area: int, mask: int, base: int) -> int:
    """Received bits of 32 PSNs from `base`: below RX_NEXT all, above RX_MAX none, whatever the ring shows there."""
    low = m[rx + RX_NEXT] - base
    high = m[rx + RX_MAX] + 1 - base
    if low >= bits.WORD_BITS:
        return bits.LOW32
    if high <= 0:
        return (1 << max(low, 0)) - 1
    word = bits.window32(m, area, mask, base)
    if high < bits.WORD_BITS:
        word &= (1 << high) - 1
    if low > 0:
        word |= (1 << low) - 1
    return word


def write_probe_sack(m: Words, rx: int, probe_id: int, flags: int, slot: int, echo: int, s: Words, o: int) -> int:
    """Answer a reliability probe: a SACK with pr=1, its id in place of the PSN (OCP MRC 1.0, PETH)."""
    m[rx + RX_LOW] = m[rx + RX_NEXT]  # the sender has heard nothing: report all
    write_sack(m, rx, m[rx + RX_MAX], flags & F_ECN, slot, echo, s, o)
    s[o + S_PSN] = probe_id
    s[o + S_INFO] |= INFO_PROBE
    return DO_SACK


def write_nack(m: Words, rx: int, psn: int, reason: int, flags: int, slot: int, echo: int, s: Words, o: int) -> int:
    """Fill the control block with a NACK of one packet. NETH has no place for an ECN mark; the reference's NACK has."""
    says_ecn = m[m[rx + E_PROFILE] + P_SACK_RULE] == SACK_UEC
    s[o + S_CACK] = m[rx + RX_NEXT] - 1
    s[o + S_PSN] = psn
    s[o + S_INFO] = (
        slot
        | (M_SKIP_ONCE if says_ecn and flags & F_ECN else M_NONE) << INFO_M_SHIFT
        | (INFO_RTX if flags & F_RTX else 0)
        | reason << INFO_REASON_SHIFT
    )
    s[o + S_ECHO] = echo
    m[rx + RX_NUM_NACKS] += 1
    return DO_NACK


# --- the way back ---------------------------------------------------------------------------------------------------


def init_reverse(m: Words, rx: int) -> None:
    """A random reverse EV for each plane."""
    p = m[rx + E_PROFILE]
    for plane in range(m[p + P_PLANES]):
        number = bits.random32(m, rx + E_RANDOM) & ((1 << m[p + P_EV_SHIFT]) - 1)
        m[rx + m[p + P_RX_REVERSE] + plane] = plane << m[p + P_EV_SHIFT] | number


def reverse_planes(m: Words, rx: int) -> int:
    """Planes with a reverse EV: all but those in which every EV is denied."""
    p = m[rx + E_PROFILE]
    planes = 0
    for plane in range(m[p + P_PLANES]):
        if m[rx + m[p + P_RX_REVERSE] + plane] >= 0:
            planes |= 1 << plane
    return planes


def is_denied(m: Words, rx: int, slot: int) -> int:
    """1 if the controller took this EV away; known of reverse sets only."""
    p = m[rx + E_PROFILE]
    if m[p + P_REVERSE_RULE] != REVERSE_SET:
        return 0
    return bits.test(m, rx + m[p + P_RX_DENIED], slot)


def allowed_in(m: Words, rx: int, slot: int) -> int:
    """This EV, or the next one of its plane that is not denied; -1 if there is none."""
    shift = m[m[rx + E_PROFILE] + P_EV_SHIFT]
    for i in range(1 << shift):
        other = slot >> shift << shift | (slot + i) & ((1 << shift) - 1)
        if not is_denied(m, rx, other):
            return other
    return -1


def deny(m: Words, rx: int, slot: int) -> None:
    """The controller takes an EV away: no answer leaves on it."""
    p = m[rx + E_PROFILE]
    if m[p + P_REVERSE_RULE] != REVERSE_SET:
        return
    bits.put(m, rx + m[p + P_RX_DENIED], slot)
    place = rx + m[p + P_RX_REVERSE] + (slot >> m[p + P_EV_SHIFT])
    if m[place] == slot:
        m[place] = allowed_in(m, rx, slot)


def allow(m: Words, rx: int, slot: int) -> None:
    """The controller gives an EV back."""
    p = m[rx + E_PROFILE]
    if m[p + P_REVERSE_RULE] != REVERSE_SET:
        return
    bits.drop(m, rx + m[p + P_RX_DENIED], slot)
    place = rx + m[p + P_RX_REVERSE] + (slot >> m[p + P_EV_SHIFT])
    if m[place] < 0:
        m[place] = slot


def doubt_reverse(m: Words, rx: int, slot: int) -> None:
    """A packet that came on `slot` says that answers do not arrive: its plane's reverse EV becomes another, at random.

    Silence has two ways to come about: a reverse EV that was found good is not given up for the first two such packets.
    """
    if m[rx + RX_TRUSTED] > 0:
        m[rx + RX_TRUSTED] -= 1
        return
    p = m[rx + E_PROFILE]
    if m[p + P_REVERSE_RULE] != REVERSE_SET:
        return
    plane = slot >> m[p + P_EV_SHIFT]
    number = bits.random32(m, rx + E_RANDOM) & ((1 << m[p + P_EV_SHIFT]) - 1)
    m[rx + m[p + P_RX_REVERSE] + plane] = allowed_in(m, rx, plane << m[p + P_EV_SHIFT] | number)


def set_reverse(m: Words, rx: int, now: int, slot: int) -> None:
    """This EV is known to work: it becomes its plane's reverse EV, unless it is denied."""
    if is_denied(m, rx, slot):
        return
    p = m[rx + E_PROFILE]
    m[rx + m[p + P_RX_REVERSE] + (slot >> m[p + P_EV_SHIFT])] = slot
    m[rx + RX_PROBE_AT] = now + m[p + P_REVERSE_PROBE_NS]
    m[rx + RX_PROBE_DUE] = 0
    m[rx + RX_TRUSTED] = TRUST_PROBES

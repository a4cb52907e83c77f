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

A SACK carries 64 bits from a base.
"""
# ruff: noqa: PLR0917 - handlers take rows and integers

from __future__ import annotations

from fairlead.fabric.mrc import bits, comparators
from fairlead.fabric.mrc import layout as at
from fairlead.fabric.mrc.rows import Responder, Words

RCVD_UNIT_SHIFT = 8  # CC_STATE.rcvd_bytes counts 256 bytes
RCVD_MASK = 0xFFFFFF
OOO_MAX = 0x7FFF
TRUST_PROBES = 2
RESTORE_SACKS = 16  # restore_cwnd is said so often, for SACKs get lost; to hear it twice changes nothing
MPR_UNIT_SHIFT = 7


def accept(rx: Responder, psn: int, num_bytes: int, flags: int, slot: int, echo: int, s: Words) -> int:
    """Judge one data packet; the answer's fields go to `s`. Returns DO_*/DID_* bits."""
    p = rx.profile
    psn = bits.unwrap(psn, rx.next)
    i = psn & p.ring_mask
    ahead = psn - rx.next
    trimmed = flags & at.F_TRIMMED
    if not trimmed:
        rx.num_packets += 1
        rx.trigger += max(num_bytes, p.sack_floor)
    if ahead >= p.mpr - 1:  # the window is (cack, cack + mpr), and cack = rx.next - 1
        return write_nack(rx, psn, at.NACK_PSN_OOR_WINDOW, flags, slot, echo, s)
    if ahead < 0 or bits.test(rx.seen_bits, i):
        rx.num_duplicates += 1
        rx.low = min(rx.low, psn)  # the SACK that reported it may be lost: report it again
        return write_sack(rx, psn, flags & ~at.F_ASK, slot, echo, s)
    if trimmed:
        reason = at.NACK_TRIMMED_LASTHOP if flags & at.F_LAST_HOP else at.NACK_TRIMMED
        return write_nack(rx, psn, reason, flags, slot, echo, s)
    if flags & at.F_NO_ACCESS:
        return write_nack(rx, psn, at.NACK_UNEXP_EVENT, flags, slot, echo, s)
    if flags & at.F_IMM and rx.wimm >= p.max_wimm_dest:
        rx.error = at.ERROR_WIMM
        return at.DID_FAIL | write_nack(rx, psn, at.NACK_UNEXP_EVENT, flags, slot, echo, s)
    if flags & at.F_NO_RESOURCE:
        return write_nack(rx, psn, at.NACK_NO_RESOURCE, flags, slot, echo, s)

    first = 1 if rx.rcvd == 0 else 0
    rx.rcvd += num_bytes + p.overhead
    completed = _receive(rx, psn, flags)
    did = at.DO_PLACE
    if completed > 0:
        did |= at.DID_COMPLETE | (at.DO_ACK if p.message_ack else 0)
    if _due(rx, flags, first):
        did |= write_sack(rx, psn, flags, slot, echo, s)
    return did


def _receive(rx: Responder, psn: int, flags: int) -> int:
    """Enter a new PSN in the window; the number of messages that this completes."""
    p = rx.profile
    mask = p.ring_mask
    i = psn & mask
    if flags & at.F_LAST:
        bits.put(rx.last_bits, i)
    if flags & at.F_IMM:
        bits.put(rx.imm_bits, i)
        rx.wimm += 1
    bits.put(rx.seen_bits, i)
    rx.max = max(rx.max, psn)
    rx.low = min(rx.low, psn) if rx.out_of_order > 0 else psn  # cack tells of all below a gap
    start = rx.next
    if psn != start:
        rx.out_of_order += 1
        return 0
    end = bits.find_clear(rx.seen_bits, mask, start, rx.max + 1)
    bits.take_range(rx.seen_bits, mask, start, end)
    immediates = bits.take_range(rx.imm_bits, mask, start, end)
    completed = bits.take_range(rx.last_bits, mask, start, end)
    rx.next = end
    rx.out_of_order -= end - start - 1
    rx.wimm -= immediates
    rx.wimm_done += immediates
    rx.done += completed
    return completed


def _due(rx: Responder, flags: int, first: int) -> bool:
    """Whether a new packet is to be acknowledged now: ECN mark, rtx, A, or enough bytes.

    A request made by A is remembered (prev_ar): when the last gap closes, the sender hears of it once more.
    """
    p = rx.profile
    due = flags & (at.F_ECN | at.F_RTX | at.F_ASK) != 0 or rx.trigger >= p.sack_bytes
    if flags & at.F_ASK:
        rx.asked = 1
    if rx.asked and rx.out_of_order == 0:
        rx.asked = 0
        due = True
    return due or (first == 1 and p.sack_rule != at.SACK_MRC)


def _sack_base(rx: Responder, psn: int, flags: int) -> int:
    """The PSN of bit 0, so low that each arrival is reported at least once."""
    if rx.profile.sack_rule != at.SACK_MRC:
        return comparators.sack_base(rx, psn, flags)
    return max(rx.next, min(rx.low, rx.max - 63))


def write_sack(rx: Responder, psn: int, flags: int, slot: int, echo: int, s: Words) -> int:
    """Fill the control block with a SACK of everything known; `psn` is the packet that asks for it."""
    p = rx.profile
    area = rx.seen_bits
    mask = p.ring_mask
    base = _sack_base(rx, psn, flags)
    s[at.S_CACK] = rx.next - 1
    s[at.S_PSN] = psn
    s[at.S_BASE] = base
    s[at.S_LOW] = _seen(rx, area, mask, base)
    s[at.S_HIGH] = _seen(rx, area, mask, base + bits.WORD_BITS)
    s[at.S_RCVD] = (rx.rcvd + 255 >> RCVD_UNIT_SHIFT) & RCVD_MASK
    mpr = p.mpr >> MPR_UNIT_SHIFT if p.dynamic_mpr else 0
    s[at.S_INFO] = (
        slot
        | (at.M_SKIP_ONCE if flags & at.F_ECN else at.M_NONE) << at.INFO_M_SHIFT
        | (at.INFO_RTX if flags & at.F_RTX else 0)
        | (at.INFO_RESTORE if rx.restore else 0)
        | rx.penalty << at.INFO_PEN_SHIFT
        | min(rx.out_of_order, OOO_MAX) << at.INFO_OOO_SHIFT
        | mpr << at.INFO_MPR_SHIFT
    )
    s[at.S_ECHO] = echo
    rx.low = max(rx.low, base + 64)
    rx.restore = max(rx.restore - 1, 0)
    rx.trigger = 0
    rx.num_sacks += 1
    return at.DO_SACK


def _seen(rx: Responder, area: Words, mask: int, base: int) -> int:
    """Received bits of 32 PSNs from `base`: below rx.next all, above rx.max none, whatever the ring shows there."""
    low = rx.next - base
    high = rx.max + 1 - base
    if low >= bits.WORD_BITS:
        return bits.LOW32
    if high <= 0:
        return (1 << max(low, 0)) - 1
    word = bits.window32(area, mask, base)
    if high < bits.WORD_BITS:
        word &= (1 << high) - 1
    if low > 0:
        word |= (1 << low) - 1
    return word


def write_probe_sack(rx: Responder, probe_id: int, flags: int, slot: int, echo: int, s: Words) -> int:
    """Answer a reliability probe: a SACK with pr=1, its id in place of the PSN (OCP MRC 1.0, PETH)."""
    rx.low = rx.next  # the sender has heard nothing: report all
    write_sack(rx, rx.max, flags & at.F_ECN, slot, echo, s)
    s[at.S_PSN] = probe_id
    s[at.S_INFO] |= at.INFO_PROBE
    return at.DO_SACK


def write_nack(rx: Responder, psn: int, reason: int, flags: int, slot: int, echo: int, s: Words) -> int:
    """Fill the control block with a NACK of one packet. NETH has no place for an ECN mark."""
    mark = at.M_NONE if rx.profile.sack_rule == at.SACK_MRC else comparators.nack_mark(flags)
    s[at.S_CACK] = rx.next - 1
    s[at.S_PSN] = psn
    s[at.S_INFO] = (
        slot | mark << at.INFO_M_SHIFT | (at.INFO_RTX if flags & at.F_RTX else 0) | reason << at.INFO_REASON_SHIFT
    )
    s[at.S_ECHO] = echo
    rx.num_nacks += 1
    return at.DO_NACK


# --- the way back ---------------------------------------------------------------------------------------------------


def init_reverse(rx: Responder) -> None:
    """A random reverse EV for each plane."""
    p = rx.profile
    for plane in range(p.planes):
        number = bits.random32(rx) & ((1 << p.ev_shift) - 1)
        rx.reverse[plane] = plane << p.ev_shift | number


def reverse_planes(rx: Responder) -> int:
    """Planes with a reverse EV: all but those in which every EV is denied."""
    p = rx.profile
    planes = 0
    for plane in range(p.planes):
        if rx.reverse[plane] >= 0:
            planes |= 1 << plane
    return planes


def is_denied(rx: Responder, slot: int) -> int:
    """1 if the controller took this EV away; known of reverse sets only."""
    p = rx.profile
    if p.reverse_rule != at.REVERSE_SET:
        return 0
    return bits.test(rx.denied_bits, slot)


def allowed_in(rx: Responder, slot: int) -> int:
    """This EV, or the next one of its plane that is not denied; -1 if there is none."""
    shift = rx.profile.ev_shift
    for i in range(1 << shift):
        other = slot >> shift << shift | (slot + i) & ((1 << shift) - 1)
        if not is_denied(rx, other):
            return other
    return -1


def deny(rx: Responder, slot: int) -> None:
    """The controller takes an EV away: no answer leaves on it."""
    p = rx.profile
    if p.reverse_rule != at.REVERSE_SET:
        return
    bits.put(rx.denied_bits, slot)
    plane = slot >> p.ev_shift
    if rx.reverse[plane] == slot:
        rx.reverse[plane] = allowed_in(rx, slot)


def allow(rx: Responder, slot: int) -> None:
    """The controller gives an EV back."""
    p = rx.profile
    if p.reverse_rule != at.REVERSE_SET:
        return
    bits.drop(rx.denied_bits, slot)
    plane = slot >> p.ev_shift
    if rx.reverse[plane] < 0:
        rx.reverse[plane] = slot


def doubt_reverse(rx: Responder, slot: int) -> None:
    """A packet that came on `slot` says that answers do not arrive: its plane's reverse EV becomes another, at random.

    Silence has two ways to come about: a reverse EV that was found good is not given up for the first two such packets.
    """
    if rx.trusted > 0:
        rx.trusted -= 1
        return
    p = rx.profile
    if p.reverse_rule != at.REVERSE_SET:
        return
    plane = slot >> p.ev_shift
    number = bits.random32(rx) & ((1 << p.ev_shift) - 1)
    rx.reverse[plane] = allowed_in(rx, plane << p.ev_shift | number)


def set_reverse(rx: Responder, now: int, slot: int) -> None:
    """This EV is known to work: it becomes its plane's reverse EV, unless it is denied."""
    if is_denied(rx, slot):
        return
    p = rx.profile
    rx.reverse[slot >> p.ev_shift] = slot
    rx.probe_at = now + p.reverse_probe_ns
    rx.probe_due = 0
    rx.trusted = TRUST_PROBES

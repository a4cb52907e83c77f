"""Law of the requestor's sending side: which PSN may go, and what the packet that carries it says."""

from __future__ import annotations

from fairlead.fabric.mrc import comparators, evs, paths, timers, window
from fairlead.fabric.mrc import layout as at
from fairlead.fabric.mrc.rows import Endpoint, Requestor, Words


def next_psn(tx: Requestor) -> int:
    """The PSN that may be sent now: the oldest lost one, before any new one; -1 if the windows allow none."""
    if tx.hold_at != at.FOREVER:
        return -1
    p = tx.profile
    if tx.lost > 0:
        psn = window.first_lost(tx)
        size = window.record_bytes(window.record_of(tx, psn))
    else:
        psn = tx.next
        msn = tx.current
        if msn >= tx.posted or psn - tx.una >= tx.mpr - 1:
            return -1  # [MRC] a responder takes PSNs in (cack, cack + mpr), and una is cack + 1
        message = window.message_at(tx, msn)
        if (
            tx.messages[message + at.MSG_FLAGS] & 1
            and psn == tx.messages[message + at.MSG_START]
            and tx.wimm >= p.max_wimm
        ):
            return -1
        size = window.wire_bytes(tx, window.payload_bytes(tx, message, psn))
    has_room = tx.in_flight < tx.cwnd  # [MRC] 8
    if p.whole_packet:
        has_room = comparators.fits(tx, size)
    is_idle = tx.in_flight <= 0 or tx.una == tx.next
    return psn if has_room or is_idle else -1


def send_data(tx: Requestor, now: int, psn: int, slot: int, out: Words) -> None:
    """Enter a data packet in the window and describe it."""
    p = tx.profile
    again = psn < tx.next
    msn = window.message_of(tx, psn) if again else tx.current
    message = window.message_at(tx, msn)
    is_imm = tx.messages[message + at.MSG_FLAGS] & 1
    payload = window.payload_bytes(tx, message, psn)
    size = window.wire_bytes(tx, payload)
    flags = at.F_FIRST if psn == tx.messages[message + at.MSG_START] else 0
    if psn + 1 == tx.messages[message + at.MSG_END]:
        flags |= at.F_LAST | (at.F_IMM if is_imm else 0)
    window.note_sent(tx, psn, now, size, slot)
    if again:
        flags |= at.F_RTX | at.F_ASK
        tx.num_rtx += 1
    else:
        tx.num_new += 1
        if flags & at.F_FIRST:
            tx.wimm += is_imm
        if flags & at.F_LAST:
            tx.current = msn + 1
        if _is_last_for_now(tx, size):
            flags |= at.F_ASK
    if tx.rto_at == at.FOREVER:
        tx.rto_at = now + timers.timeout(tx)
    if tx.probe_at == at.FOREVER and p.probe_ns > 0:
        tx.probe_at = now + timers.probe_in(tx)
    timers.set_deadline(tx)
    out[at.D_PSN] = psn
    out[at.D_EV] = slot
    out[at.D_PLANE] = slot >> p.ev_shift
    out[at.D_FLAGS] = flags
    out[at.D_BYTES] = payload
    out[at.D_MSN] = msn
    out[at.D_OFFSET] = (psn - tx.messages[message + at.MSG_START]) * p.mtu
    out[at.D_RQMSN] = tx.messages[message + at.MSG_FLAGS] >> 1


def _is_last_for_now(tx: Requestor, size: int) -> bool:
    """Ask for a SACK (BTH.A) with a packet that nothing can follow: no more data, or a full window ([UEC] set_ar)."""
    return tx.current == tx.posted or tx.in_flight + size >= tx.cwnd or tx.next - tx.una >= tx.mpr - 1


def next_control(tx: Requestor, now: int, ports: int, out: Words) -> int:
    """Port status, reliability probe, EV probe: whichever is due and has a free port."""
    if tx.status & 1:
        slot = paths.choose_aside(tx, ports)
        if slot >= 0:
            send_status(tx, now, slot, out)
            timers.set_deadline(tx)
            return at.SEND_PORT_STATUS
    if tx.probe_due:
        slot = paths.choose_aside(tx, ports)
        if slot >= 0:
            tx.probe_due = 0
            tx.probe_id = (tx.probe_id + 1) & timers.ID_MASK
            tx.probe_sent = now
            describe(tx, tx.probe_id, slot, 0, out)
            return at.SEND_PROBE
    if tx.evp_state == at.EVP_DUE:
        slot = tx.evp_slot
        if ports & evs.open_planes(tx) & 1 << (slot >> tx.profile.ev_shift):
            tx.evp_state = at.EVP_WAITING
            describe(tx, tx.evp_id, slot, 0, out)
            return at.SEND_EV_PROBE
    return at.SEND_NOTHING


def describe(row: Endpoint, number: int, slot: int, mask: int, out: Words) -> None:
    """Fill the block for a packet without payload."""
    out[at.D_PSN] = number
    out[at.D_EV] = slot
    out[at.D_PLANE] = slot >> row.profile.ev_shift
    out[at.D_FLAGS] = 0
    out[at.D_BYTES] = 0
    out[at.D_MSN] = 0
    out[at.D_OFFSET] = mask
    out[at.D_RQMSN] = 0


def send_status(row: Endpoint, now: int, slot: int, out: Words) -> None:
    """Describe a Port Status Update (ERTH op 0)."""
    row.status &= ~1
    row.status_at = now + row.profile.rto_ns
    describe(row, row.status >> 1, slot, row.ports, out)

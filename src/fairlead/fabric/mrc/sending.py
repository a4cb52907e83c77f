"""Law of the requestor's sending side: which PSN may go, and what the packet that carries it says."""
# ruff: noqa: F403, F405, PLR0917 - the law reads the whole register map; handlers take addresses and integers

from __future__ import annotations

from fairlead.fabric.mrc import evs, paths, timers, window
from fairlead.fabric.mrc.layout import *


def next_psn(m: Words, tx: int) -> int:
    """The PSN that may be sent now: the oldest lost one, before any new one; -1 if the windows allow none."""
    if m[tx + TX_HOLD_AT] != FOREVER:
        return -1
    p = m[tx + E_PROFILE]
    if m[tx + TX_LOST] > 0:
        psn = window.first_lost(m, tx)
        size = window.record_bytes(m[window.record_address(m, tx, psn)])
    else:
        psn = m[tx + TX_NEXT]
        msn = m[tx + TX_CURRENT]
        if msn >= m[tx + TX_POSTED] or psn - m[tx + TX_UNA] >= m[tx + TX_MPR] - 1:
            return -1  # [MRC] a responder takes PSNs in (cack, cack + mpr), and una is cack + 1
        message = window.message_address(m, tx, msn)
        if m[message + MSG_FLAGS] & 1 and psn == m[message + MSG_START] and m[tx + TX_WIMM] >= m[p + P_MAX_WIMM]:
            return -1
        size = window.wire_bytes(m, tx, window.payload_bytes(m, tx, message, psn))
    # [UEC] isSendPermitted wants room for the whole packet; [MRC] 8 allows sending while cwnd > inflight
    need = size if m[p + P_WHOLE_PACKET] else 1
    fits = m[tx + TX_IN_FLIGHT] + need <= m[tx + TX_CWND]
    is_idle = m[tx + TX_IN_FLIGHT] <= 0 or m[tx + TX_UNA] == m[tx + TX_NEXT]
    return psn if fits or is_idle else -1


def send_data(m: Words, tx: int, now: int, psn: int, slot: int, out: Words, o: int) -> None:
    """Enter a data packet in the window and describe it."""
    p = m[tx + E_PROFILE]
    again = psn < m[tx + TX_NEXT]
    msn = window.message_of(m, tx, psn) if again else m[tx + TX_CURRENT]
    message = window.message_address(m, tx, msn)
    is_imm = m[message + MSG_FLAGS] & 1
    payload = window.payload_bytes(m, tx, message, psn)
    size = window.wire_bytes(m, tx, payload)
    flags = F_FIRST if psn == m[message + MSG_START] else 0
    if psn + 1 == m[message + MSG_END]:
        flags |= F_LAST | (F_IMM if is_imm else 0)
    window.note_sent(m, tx, psn, now, size, slot)
    if again:
        flags |= F_RTX | F_ASK
        m[tx + TX_NUM_RTX] += 1
    else:
        m[tx + TX_NUM_NEW] += 1
        if flags & F_FIRST:
            m[tx + TX_WIMM] += is_imm
        if flags & F_LAST:
            m[tx + TX_CURRENT] = msn + 1
        if _is_last_for_now(m, tx, size):
            flags |= F_ASK
    if m[tx + TX_RTO_AT] == FOREVER:
        m[tx + TX_RTO_AT] = now + timers.timeout(m, tx)
    if m[tx + TX_PROBE_AT] == FOREVER and m[p + P_PROBE_NS] > 0:
        m[tx + TX_PROBE_AT] = now + timers.probe_in(m, tx)
    timers.set_deadline(m, tx)
    out[o + D_PSN] = psn
    out[o + D_EV] = slot
    out[o + D_PLANE] = slot >> m[p + P_EV_SHIFT]
    out[o + D_FLAGS] = flags
    out[o + D_BYTES] = payload
    out[o + D_MSN] = msn
    out[o + D_OFFSET] = (psn - m[message + MSG_START]) * m[p + P_MTU]
    out[o + D_RQMSN] = m[message + MSG_FLAGS] >> 1


def _is_last_for_now(m: Words, tx: int, size: int) -> bool:
    """Ask for a SACK (BTH.A) with a packet that nothing can follow: no more data, or a full window ([UEC] set_ar)."""
    return (
        m[tx + TX_CURRENT] == m[tx + TX_POSTED]
        or m[tx + TX_IN_FLIGHT] + size >= m[tx + TX_CWND]
        or m[tx + TX_NEXT] - m[tx + TX_UNA] >= m[tx + TX_MPR] - 1
    )


def next_control(m: Words, tx: int, now: int, ports: int, out: Words, o: int) -> int:
    """Port status, reliability probe, EV probe: whichever is due and has a free port."""
    if m[tx + E_STATUS] & 1:
        slot = paths.choose_aside(m, tx, ports)
        if slot >= 0:
            send_status(m, tx, now, slot, out, o)
            timers.set_deadline(m, tx)
            return SEND_PORT_STATUS
    if m[tx + TX_PROBE_DUE]:
        slot = paths.choose_aside(m, tx, ports)
        if slot >= 0:
            m[tx + TX_PROBE_DUE] = 0
            m[tx + TX_PROBE_ID] = (m[tx + TX_PROBE_ID] + 1) & timers.ID_MASK
            m[tx + TX_PROBE_SENT] = now
            describe(m, tx, m[tx + TX_PROBE_ID], slot, 0, out, o)
            return SEND_PROBE
    if m[tx + TX_EVP_STATE] == EVP_DUE:
        slot = m[tx + TX_EVP_SLOT]
        if ports & evs.open_planes(m, tx) & 1 << (slot >> m[m[tx + E_PROFILE] + P_EV_SHIFT]):
            m[tx + TX_EVP_STATE] = EVP_WAITING
            describe(m, tx, m[tx + TX_EVP_ID], slot, 0, out, o)
            return SEND_EV_PROBE
    return SEND_NOTHING


def describe(m: Words, row: int, number: int, slot: int, mask: int, out: Words, o: int) -> None:
    """Fill the block for a packet without payload."""
    out[o + D_PSN] = number
    out[o + D_EV] = slot
    out[o + D_PLANE] = slot >> m[m[row + E_PROFILE] + P_EV_SHIFT]
    out[o + D_FLAGS] = 0
    out[o + D_BYTES] = 0
    out[o + D_MSN] = 0
    out[o + D_OFFSET] = mask
    out[o + D_RQMSN] = 0


def send_status(m: Words, row: int, now: int, slot: int, out: Words, o: int) -> None:
    """Describe a Port Status Update (ERTH op 0)."""
    m[row + E_STATUS] &= ~1
    m[row + E_STATUS_AT] = now + m[m[row + E_PROFILE] + P_RTO_NS]
    describe(m, row, m[row + E_STATUS] >> 1, slot, m[row + E_PORTS], out, o)

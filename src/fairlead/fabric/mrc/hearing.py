"""Law of the requestor's hearing side: what a SACK, a NACK or a transport ACK tells, and what follows from it.

Citations: [MRC] OCP MRC 1.0, [UEC] ultraethernet/uet-htsim htsim/sim/uec.cpp.
"""

from __future__ import annotations

from fairlead.fabric.mrc import bits, congestion, evs, losses, paths, responder, timers, window
from fairlead.fabric.mrc import layout as at
from fairlead.fabric.mrc.rows import Requestor, Words, responder_of

TIMESTAMP_WRAP_MASK = (at.TIMESTAMP_UNIT_NS << at.TIMESTAMP_BITS) - 1
EARLIER = 0
LAST = 1


def on_sack(tx: Requestor, now: int, s: Words) -> int:
    """A SACK came: its fields are in `s` (S_*)."""
    if tx.error:
        return at.DID_NOTHING
    tx.num_sacks += 1
    p = tx.profile
    info = s[at.S_INFO]
    slot = info & at.INFO_EV_MASK
    mark = info >> at.INFO_M_SHIFT & 3
    marked = 1 if mark == at.M_SKIP_ONCE else 0
    done = tx.done
    mistakes = tx.num_spurious

    arrived = _newly_received(tx, s[at.S_RCVD])
    tx.in_flight -= arrived
    congestion.penalise(tx, arrived, info >> at.INFO_PEN_SHIFT & 0x7F)
    if info & at.INFO_RESTORE:
        congestion.restore(tx)
    if info >> at.INFO_MPR_SHIFT & 0xFF:
        set_peer_window(tx, info >> at.INFO_MPR_SHIFT & 0xFF)  # dynamic MPR; 0 when off

    sent = _send_time(tx, now, s[at.S_PSN], info, s[at.S_ECHO])  # before the bitmap takes the packet out of flight
    delay = congestion.usual_delay(tx)
    if 0 <= sent < now:  # a clock that has not moved measures nothing
        delay = congestion.observe_rtt(tx, now, now - sent, marked)
        timers.learn_rtt(tx, now, now - sent)

    una = tx.una
    window.acknowledge_below(tx, bits.unwrap(s[at.S_CACK], una) + 1)
    base = bits.unwrap(s[at.S_BASE], una)
    window.acknowledge_bitmap(tx, base, s[at.S_LOW])
    window.acknowledge_bitmap(tx, base + bits.WORD_BITS, s[at.S_HIGH])
    window.close_gap(tx)
    if tx.una == tx.next:
        tx.in_flight = 0  # whatever the two ends think a packet counts

    _judge_path(tx, now, slot, mark, info & at.INFO_PROBE)
    congestion.on_arrival(tx, now, arrived, delay, marked)
    if tx.num_spurious > mistakes:
        timers.learn_mistake(tx, now)
    if tx.recovery >= 0 and tx.una >= tx.recovery:
        window.end_recovery(tx)
    if sent >= 0 and p.reorder_ns > 0:
        losses.on_arrival(tx, now, sent)
    timers.after_news(tx, now)
    did = at.DID_COMPLETE if tx.done > done else at.DID_NOTHING
    return did | at.DID_FAIL if tx.error else did


def _newly_received(tx: Requestor, rcvd: int) -> int:
    """Bytes by which rcvd_bytes (24 bits, unit 256) has grown; an older SACK overtaken on its way adds nothing."""
    units = (rcvd - tx.rcvd) & responder.RCVD_MASK
    if units > responder.RCVD_MASK >> 1:
        return 0
    tx.rcvd = rcvd
    return units << responder.RCVD_UNIT_SHIFT


def set_peer_window(tx: Requestor, mpr: int) -> None:
    """The range of PSNs that the peer accepts (unit 128), never more than this row's rings hold."""
    tx.mpr = min(mpr << responder.MPR_UNIT_SHIFT, tx.profile.ring_mask + 1)


def _send_time(tx: Requestor, now: int, psn: int, info: int, echo: int) -> int:
    """When the packet that this SACK answers was sent; -1 if that cannot be told.

    The record says when it was last sent. If the answer is to an earlier transmission, sending again was a mistake, and
    the reorder window learns from it.
    """
    if info & at.INFO_PROBE:
        return tx.probe_sent if psn & timers.ID_MASK == tx.probe_id else -1
    psn = bits.unwrap(psn, tx.una)
    if not window.is_in_flight(tx, psn):
        return -1
    record = window.record_of(tx, psn)
    sent = window.sent_at(record, now)
    which = _transmission(record, sent, info, echo)
    if which == EARLIER:
        window.note_mistake(tx)
        if _is_ours(tx, info & at.INFO_EV_MASK):
            paths.forgive(tx, info & at.INFO_EV_MASK)
    return sent if which == LAST else -1


def _is_ours(tx: Requestor, slot: int) -> bool:
    """Whether a slot that a peer has named is one of this row."""
    p = tx.profile
    return slot >> p.ev_shift < p.planes


def _transmission(record: int, sent: int, info: int, echo: int) -> int:
    """Which transmission of a packet an answer is about: the LAST, an EARLIER one, or -1 if that cannot be told.

    An echoed timestamp tells, however often it has wrapped meanwhile. Without one the echoed rtx bit tells of packets
    sent once or twice ([UEC] validateSendTs).
    """
    if echo >= 0:
        return LAST if (sent - echo) & TIMESTAMP_WRAP_MASK < at.TIMESTAMP_UNIT_NS else EARLIER
    tries = window.record_tries(record)
    if info & at.INFO_RTX:
        return LAST if tries == 1 else -1
    return LAST if tries == 0 else EARLIER


def _judge_path(tx: Requestor, now: int, slot: int, mark: int, is_probe: int) -> None:
    """The EV a SACK echoes was good, marked, or is to be dropped; a good one also serves the other direction."""
    if not _is_ours(tx, slot):
        return
    if is_probe:
        evs.probe_answered(tx, slot, mark)  # of no effect on an EV that is not ASSUMED_BAD
        evs.restore_plane(tx, slot)
    if mark == at.M_ALWAYS_SKIP:
        paths.feedback(tx, now, slot, at.PATH_IS_LOSSY)
        return
    paths.feedback(tx, now, slot, at.PATH_IS_GOOD if mark == at.M_NONE else at.PATH_IS_MARKED)
    if tx.responder_address >= 0 and mark == at.M_NONE:
        responder.set_reverse(responder_of(tx), now, slot)


def on_nack(tx: Requestor, now: int, s: Words) -> int:
    """A NACK came: the packet goes again ([MRC]: on a fresh EV).

        TRIMMED                           congestion in the fabric: at once if the window allows; the EV loses a turn
        TRIMMED_LASTHOP                   congestion before the receiver: the same, and the EV is innocent
        NO_*, PSN_OOR_WINDOW, others      the receiver has no room, the network does: after a pause (timers.hold)
        NO_RESOURCE                       the same; waited for as long as for a silent peer (verbs: receiver not ready)
        UNEXP_EVENT                       fatal

    It is believed of a packet in flight only, and the fatal one only if it also names the EV that the packet took: one
    that is old, or was guessed, ends no queue pair.
    """
    if tx.error:
        return at.DID_NOTHING
    tx.num_nacks += 1
    info = s[at.S_INFO]
    reason = info >> at.INFO_REASON_SHIFT & 0xFF
    p = tx.profile
    psn = bits.unwrap(s[at.S_PSN], tx.una)
    if not window.is_in_flight(tx, psn):
        return at.DID_NOTHING
    record = window.record_of(tx, psn)
    sent = window.sent_at(record, now)
    if s[at.S_ECHO] >= 0 and _transmission(record, sent, info, s[at.S_ECHO]) == EARLIER:
        return at.DID_NOTHING  # a later one is on its way
    slot = window.record_ev(record)
    if reason == at.NACK_UNEXP_EVENT:
        return timers.fail(tx, at.ERROR_REMOTE) if info & at.INFO_EV_MASK == slot else at.DID_NOTHING
    if p.rtt_on_nack and sent < now:
        congestion.learn_base_rtt(tx, now, now - sent)
    trimmed = reason in (at.NACK_TRIMMED, at.NACK_TRIMMED_LASTHOP)
    if trimmed:
        congestion.on_nack(tx, now, window.record_bytes(record))
    window.mark_lost(tx, psn)
    if reason == at.NACK_TRIMMED:
        paths.feedback(tx, now, slot, at.PATH_IS_TRIMMED)
    elif trimmed:
        marked = info >> at.INFO_M_SHIFT & 3 != at.M_NONE
        paths.feedback(tx, now, slot, at.PATH_IS_MARKED if marked else at.PATH_IS_GOOD)
    # between programs retries are finite, to tell that a peer is dead: one that answers of what was trimmed is not
    if psn == tx.una and not (trimmed and p.delay_marks):
        if reason == at.NACK_NO_RESOURCE and p.retry_exp < at.RETRY_EXP_INFINITE:
            failed = timers.count_stuck(tx, now, at.ERROR_RNR)
        else:
            failed = timers.retry(tx)
        if failed:
            return at.DID_FAIL
    # nor can a window of one packet get smaller: what is left is to send it less often
    if not trimmed or (p.delay_marks and tx.cwnd <= p.min_cwnd):
        timers.hold(tx, now)
    timers.after_news(tx, now)
    return at.DID_NOTHING


def on_ack(tx: Requestor, now: int, msn: int) -> int:
    """A transport ACK (D1) came: messages up to and including `msn` (24 bits) are complete at the responder."""
    if tx.error:
        return at.DID_NOTHING
    done = tx.done
    last = bits.unwrap(msn, done)
    if last < done or last >= tx.posted:
        return at.DID_NOTHING
    window.acknowledge_below(tx, tx.messages[window.message_at(tx, last) + at.MSG_END])
    window.close_gap(tx)
    timers.after_news(tx, now)
    return at.DID_COMPLETE if tx.done > done else at.DID_NOTHING

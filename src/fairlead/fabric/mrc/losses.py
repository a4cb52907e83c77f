"""Law of losses told by order: what is missing although later packets have arrived, and the plane it was sent over.

RFC 8985 (RACK): a packet is lost when one that was sent a reorder window later has arrived, or, with a timer, would
have by now. Without it a full window that waits for a hole sends nothing that could prove it, until a probe does.

The protocol judges each EV by itself. A program has few packets under way and a plane has several EVs, each of which
would have to lose packets of its own, at a round trip each. Where a profile says so (plane_losses), losses on one
plane count together as long as nothing that was sent after the first of them arrives over that plane. One plane is
followed at a time: losses on several in turn are no sign that one is cut.
"""

from __future__ import annotations

from fairlead.fabric.mrc import bits, congestion, evs, paths, timers, window
from fairlead.fabric.mrc import layout as at
from fairlead.fabric.mrc.rows import Requestor

REORDER_STEPS = 28  # quarters by which the reorder window may grow: to eight times


def on_arrival(tx: Requestor, now: int, sent: int) -> None:
    """A packet that was sent at `sent` has arrived.

    With a timer an earlier one is lost only if it is also older than a long round trip: where queues of planes differ,
    packets overtake each other by more than a window of reordering.
    """
    if sent >= tx.delivered_at:
        tx.delivered_at = sent
        tx.delivered_rtt = now - sent
    before = tx.delivered_at
    if tx.profile.reorder_timer:
        before = min(before, now - timers.long_rtt(tx))
    _infer(tx, now, before - reorder_window(tx))


def on_timer(tx: Requestor, now: int) -> None:
    """A packet sent a reorder window after the oldest one would have arrived by now, if there had been one."""
    before = now - timers.long_rtt(tx) - reorder_window(tx)
    _infer(tx, now, min(before, tx.delivered_at - 1))


def reorder_window(tx: Requestor) -> int:
    """How much later a packet must be sent to prove an earlier one lost; mistakes widen it a while (RFC 8985 6.2)."""
    least = tx.profile.reorder_ns
    return least + min(tx.reorder, REORDER_STEPS) * least // 4


def _infer(tx: Requestor, now: int, before: int) -> None:
    """A packet still missing that was sent at or before `before` is lost.

    First transmissions stand in the window in the order of their send times, so the search ends at the first young one.
    """
    oldest = at.FOREVER
    psn = window.next_in_flight(tx, tx.una)
    while psn < tx.next:
        record = window.record_of(tx, psn)
        sent = window.sent_at(record, now)
        if sent <= before:
            _lose(tx, now, psn, record)
        else:
            oldest = min(oldest, sent)
            if window.record_tries(record) == 0:
                break
        psn = window.next_in_flight(tx, psn + 1)
    tx.loss_at = at.FOREVER
    if tx.profile.reorder_timer and oldest < tx.delivered_at:
        tx.loss_at = oldest + timers.long_rtt(tx) + reorder_window(tx)


def _lose(tx: Requestor, now: int, psn: int, record: int) -> None:
    tx.num_lost += 1
    if tx.recovery < 0:
        tx.recovery = tx.next
    size = window.mark_lost(tx, psn)
    if not tx.profile.trim:
        congestion.on_timeout(tx, size)  # without trimming a silent loss may be a full queue
    paths.feedback(tx, now, window.record_ev(record), at.PATH_IS_SUSPECT)
    judge_plane(tx, psn, window.record_ev(record))
    if psn == tx.una:
        timers.count_stuck(tx, now, at.ERROR_STUCK)


# --- the plane as a whole -----------------------------------------------------------------------------------------


def judge_plane(tx: Requestor, psn: int, slot: int) -> None:
    """A packet seems lost that took this EV; the last plane in use is never given up."""
    p = tx.profile
    plane = slot >> p.ev_shift
    if p.plane_losses == 0 or tx.cut >> plane & 1:
        return
    if tx.losing_num == 0 or tx.losing != plane or _has_arrived(tx, plane, tx.losing_psn):
        tx.losing = plane
        tx.losing_psn = psn
        tx.losing_num = 0
    tx.losing_num += 1
    if tx.losing_num < p.plane_losses:
        return
    if evs.open_planes(tx) & tx.planes_ok & ~(1 << plane):
        tx.losing_num = 0
        evs.cut_plane(tx, plane)


def _has_arrived(tx: Requestor, plane: int, psn: int) -> bool:
    """Whether a packet after `psn` has arrived that took this plane last."""
    p = tx.profile
    mask = p.ring_mask
    acked = tx.acked_bits
    psn = max(psn + 1, tx.next - mask)
    while psn < tx.next:
        is_here = psn < tx.una or bits.test(acked, psn & mask)
        if is_here and window.record_ev(window.record_of(tx, psn)) >> p.ev_shift == plane:
            return True
        psn += 1
    return False

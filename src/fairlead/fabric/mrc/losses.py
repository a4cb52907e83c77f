"""Law of losses told by order: what is missing although later packets have arrived, and the plane it was sent over.

RFC 8985 (RACK): a packet is lost when one that was sent a reorder window later has arrived, or, with a timer, would
have by now. Without it a full window that waits for a hole sends nothing that could prove it, until a probe does.

The protocol judges each EV by itself. A program has few packets under way and a plane has several EVs, each of which
would have to lose packets of its own, at a round trip each. Where a profile says so (P_PLANE_LOSSES), losses on one
plane count together as long as nothing that was sent after the first of them arrives over that plane. One plane is
followed at a time: losses on several in turn are no sign that one is cut.
"""
# ruff: noqa: F403, F405 - the law reads the whole register map; handlers take addresses and integers

from __future__ import annotations

from fairlead.fabric.mrc import bits, congestion, evs, paths, timers, window
from fairlead.fabric.mrc.layout import *

REORDER_STEPS = 28  # quarters by which the reorder window may grow: to eight times


def on_arrival(m: Words, tx: int, now: int, sent: int) -> None:
    """A packet that was sent at `sent` has arrived.

    With a timer an earlier one is lost only if it is also older than a long round trip: where queues of planes differ,
    packets overtake each other by more than a window of reordering.
    """
    if sent >= m[tx + TX_DELIVERED_AT]:
        m[tx + TX_DELIVERED_AT] = sent
        m[tx + TX_DELIVERED_RTT] = now - sent
    before = m[tx + TX_DELIVERED_AT]
    if m[m[tx + E_PROFILE] + P_REORDER_TIMER]:
        before = min(before, now - timers.long_rtt(m, tx))
    _infer(m, tx, now, before - reorder_window(m, tx))


def on_timer(m: Words, tx: int, now: int) -> None:
    """A packet sent a reorder window after the oldest one would have arrived by now, if there had been one."""
    before = now - timers.long_rtt(m, tx) - reorder_window(m, tx)
    _infer(m, tx, now, min(before, m[tx + TX_DELIVERED_AT] - 1))


def reorder_window(m: Words, tx: int) -> int:
    """How much later a packet must be sent to prove an earlier one lost; mistakes widen it a while (RFC 8985 6.2)."""
    least = m[m[tx + E_PROFILE] + P_REORDER_NS]
    return least + min(m[tx + TX_REORDER], REORDER_STEPS) * least // 4


def _infer(m: Words, tx: int, now: int, before: int) -> None:
    """A packet still missing that was sent at or before `before` is lost.

    First transmissions stand in the window in the order of their send times, so the search ends at the first young one.
    """
    oldest = FOREVER
    psn = window.next_in_flight(m, tx, m[tx + TX_UNA])
    while psn < m[tx + TX_NEXT]:
        record = m[window.record_address(m, tx, psn)]
        sent = window.sent_at(record, now)
        if sent <= before:
            _lose(m, tx, now, psn, record)
        else:
            oldest = min(oldest, sent)
            if window.record_tries(record) == 0:
                break
        psn = window.next_in_flight(m, tx, psn + 1)
    m[tx + TX_LOSS_AT] = FOREVER
    if m[m[tx + E_PROFILE] + P_REORDER_TIMER] and oldest < m[tx + TX_DELIVERED_AT]:
        m[tx + TX_LOSS_AT] = oldest + timers.long_rtt(m, tx) + reorder_window(m, tx)


def _lose(m: Words, tx: int, now: int, psn: int, record: int) -> None:
    m[tx + TX_NUM_LOST] += 1
    if m[tx + TX_RECOVERY] < 0:
        m[tx + TX_RECOVERY] = m[tx + TX_NEXT]
    size = window.mark_lost(m, tx, psn)
    if not m[m[tx + E_PROFILE] + P_TRIM]:
        congestion.on_timeout(m, tx, size)  # without trimming a silent loss may be a full queue
    paths.feedback(m, tx, now, window.record_ev(record), PATH_IS_SUSPECT)
    judge_plane(m, tx, psn, window.record_ev(record))


# --- the plane as a whole -----------------------------------------------------------------------------------------


def judge_plane(m: Words, tx: int, psn: int, slot: int) -> None:
    """A packet seems lost that took this EV; the last plane in use is never given up."""
    p = m[tx + E_PROFILE]
    plane = slot >> m[p + P_EV_SHIFT]
    if m[p + P_PLANE_LOSSES] == 0 or m[tx + TX_CUT] >> plane & 1:
        return
    if m[tx + TX_LOSING_NUM] == 0 or m[tx + TX_LOSING] != plane or _has_arrived(m, tx, plane, m[tx + TX_LOSING_PSN]):
        m[tx + TX_LOSING] = plane
        m[tx + TX_LOSING_PSN] = psn
        m[tx + TX_LOSING_NUM] = 0
    m[tx + TX_LOSING_NUM] += 1
    if m[tx + TX_LOSING_NUM] < m[p + P_PLANE_LOSSES]:
        return
    if evs.open_planes(m, tx) & m[tx + TX_PLANES_OK] & ~(1 << plane):
        m[tx + TX_LOSING_NUM] = 0
        evs.cut_plane(m, tx, plane)


def _has_arrived(m: Words, tx: int, plane: int, psn: int) -> bool:
    """Whether a packet after `psn` has arrived that took this plane last."""
    p = m[tx + E_PROFILE]
    mask = m[p + P_RING_MASK]
    acked = tx + m[p + P_TX_ACKED]
    psn = max(psn + 1, m[tx + TX_NEXT] - mask)
    while psn < m[tx + TX_NEXT]:
        is_here = psn < m[tx + TX_UNA] or bits.test(m, acked, psn & mask)
        if is_here and window.record_ev(m[window.record_address(m, tx, psn)]) >> m[p + P_EV_SHIFT] == plane:
            return True
        psn += 1
    return False

"""Law of the requestor's time: the local ACK timeout, its retries, and the pace of EV probes."""

from __future__ import annotations

from fairlead.fabric.mrc import congestion, evs, paths, window
from fairlead.fabric.mrc import layout as at
from fairlead.fabric.mrc.rows import Requestor

ID_MASK = 0xFFFF  # probe ids are 16 bits on the wire
BACKOFF_MAX = 20  # doublings of a period
PROBE_MOST_NS = (
    51_200_000  # ... of EV probes end here, whatever the network, so that a path that comes back is soon found
)
RTTVAR_GAIN = 4  # RFC 6298
LATE_GAIN = 2  # variations by which a packet may be later than the usual one, before order tells that it is lost
BACKOFF_CAP_NS = 1 << 37  # 137 s: no deadline is further off, and the age of any packet fits its record


def set_deadline(tx: Requestor) -> None:
    """Note the earliest timer, the one time a driver has to know."""
    first = min(tx.rto_at, tx.probe_at)
    second = min(tx.evp_at, tx.status_at)
    third = min(tx.hold_at, tx.loss_at)
    tx.deadline = min(first, second, third) if tx.error == 0 else at.FOREVER


def timeout(tx: Requestor) -> int:
    """The local ACK timeout: constant in the linear phase of retries, then doubling with each round of timeouts.

    NACKs count as retries too, but a peer that answers is no reason to wait longer. Between programs the constant is a
    floor: the period is what RFC 6298 reckons from round trips, and no less than the longest of this round.
    """
    p = tx.profile
    period = p.rto_ns
    if p.rto_most_ns > period:
        measured = max(tx.srtt, tx.round_rtt) + RTTVAR_GAIN * tx.rttvar
        period = max(period, min(measured, p.rto_most_ns))
    return _backed_off(tx, period)


def long_rtt(tx: Requestor) -> int:
    """How long a packet may be on its way. Queues of planes differ: no one sample tells, but the longest of late."""
    late = tx.srtt + LATE_GAIN * tx.rttvar
    return max(tx.delivered_rtt, tx.round_rtt, late)


def learn_rtt(tx: Requestor, now: int, rtt: int) -> None:
    """A round trip was measured. RFC 6298 wants one sample a round trip: the longest of each counts."""
    tx.round_rtt = max(tx.round_rtt, rtt)
    if now < tx.round_at:
        return
    sample = tx.round_rtt
    if tx.srtt == 0:
        tx.srtt = sample
        tx.rttvar = sample // 2
    else:
        tx.rttvar += (abs(sample - tx.srtt) - tx.rttvar) // 4
        tx.srtt += (sample - tx.srtt) // 8
    tx.round_rtt = 0
    tx.round_at = now + tx.srtt


def learn_mistake(tx: Requestor, now: int) -> None:
    """Packets that had run out of time arrive after all: a round trip takes at least as long as was waited (RFC 4015).

    Without this a peer that is slower than the timeout would never be measured, for every packet is sent twice.
    """
    if tx.expired_age > 0:
        learn_rtt(tx, now, tx.expired_age)
        tx.expired_age = 0


def _backed_off(tx: Requestor, period: int) -> int:
    doublings = max(tx.rounds - tx.profile.retry_linear, 0)
    return min(period << min(doublings, BACKOFF_MAX), BACKOFF_CAP_NS)


def expire(tx: Requestor, now: int) -> int:
    """Every packet in flight for a whole timeout is lost, and so, perhaps, is its path."""
    limit = timeout(tx)
    earliest = at.FOREVER
    expired = 0
    age = 0
    psn = window.next_in_flight(tx, tx.una)
    while psn < tx.next:
        record = window.record_of(tx, psn)
        sent = window.sent_at(record, now)
        if sent + limit <= now:
            expired += 1
            age = max(age, now - sent)
            paths.feedback(tx, now, window.record_ev(record), at.PATH_IS_LOSSY)
            congestion.on_timeout(tx, window.mark_lost(tx, psn))
        else:
            earliest = min(earliest, sent)
        psn = window.next_in_flight(tx, psn + 1)
    tx.num_timeouts += expired
    if expired > 0:
        tx.rounds += 1
        tx.stuck_at = now
        tx.expired_age = age
        if retry(tx):
            return at.DID_FAIL
    if earliest < at.FOREVER:
        tx.rto_at = earliest + timeout(tx)
    else:
        tx.rto_at = at.FOREVER
        tx.in_flight = 0  # all that was in flight has arrived or is lost
    return at.DID_NOTHING


def retry(tx: Requestor) -> int:
    """Count one retry; 1 if that was one too many. The counter is shared by all packets and restarts when una moves
    ([MRC]).

    A round of timeouts counts once, a NACK only when it names the oldest packet: a trimmed burst is not a dead peer.
    """
    p = tx.profile
    tx.retries += 1
    limit = p.retry_linear + p.retry_exp
    if p.retry_exp >= at.RETRY_EXP_INFINITE or tx.retries <= limit:
        return 0
    fail(tx, at.ERROR_RETRY)
    return 1


def count_stuck(tx: Requestor, now: int, error: int) -> int:
    """The oldest packet is sent in vain once more, and the peer answers; 1 if that was one too many: `error` says why.

    What comes back may be answers to small packets, while nothing of the size of data gets through (RFC 2923 2.1, a
    black hole), or refusals for want of a receive request: no packet then waits for a whole timeout. So each timeout in
    which the oldest packet is sent in vain counts as a round of timeouts. Where retries never end, there is nothing to
    count.
    """
    if tx.profile.retry_exp >= at.RETRY_EXP_INFINITE:
        return 0
    if tx.stuck_psn != tx.una:
        tx.stuck_psn = tx.una
        tx.stuck_at = now
    if now - tx.stuck_at < timeout(tx):
        return 0
    tx.stuck_at = now
    tx.rounds += 1
    if retry(tx):
        tx.error = error
        return 1
    return 0


def fail(tx: Requestor, error: int) -> int:
    """The queue pair goes to the error state."""
    tx.error = error
    tx.deadline = at.FOREVER
    return at.DID_FAIL


def pace(tx: Requestor, now: int, size: int) -> None:
    """A data packet of `size` bytes leaves: when the next one may, at the pace of so many windows a round trip.

    RFC 9002 7.7: rate = N * window / smoothed round trip, N at least 1 (1.25 there, 1.2 in Linux, tcp_pacing_ca_ratio),
    so that the window is used whatever the pace. A sender that was late, or had nothing to send, makes up for a burst
    of the time that a driver's timer is coarse by, and no more. An application's silence earns no larger one.
    """
    p = tx.profile
    rtt = tx.srtt if tx.srtt > 0 else p.network_rtt_ns
    gap = size * rtt * 100 // (tx.cwnd * p.pace_percent)
    tx.leaves_at = max(tx.leaves_at, now - p.pace_burst_ns) + gap
    if tx.leaves_at > now:
        _hold_until(tx, tx.leaves_at)


def hold(tx: Requestor, now: int) -> None:
    """The receiver refused a packet for want of room: no data goes until it may have made some.

    A round trip first, twice as long with each retry of the oldest packet, a timeout at most.
    """
    p = tx.profile
    _hold_until(tx, now + min(p.network_rtt_ns << min(tx.retries, BACKOFF_MAX), p.rto_ns))


def _hold_until(tx: Requestor, until: int) -> None:
    """No data goes before that; the longer of two reasons counts."""
    tx.hold_at = until if tx.hold_at == at.FOREVER else max(tx.hold_at, until)


def probe_in(tx: Requestor) -> int:
    """How long silence lasts before a reliability probe asks about it."""
    return _longer(tx, tx.profile.probe_ns)


def probe_again_in(tx: Requestor) -> int:
    """When an unanswered reliability probe is repeated: like the timeout, at longer times after the linear phase."""
    return _backed_off(tx, _longer(tx, tx.profile.probe_retry_ns))


def _longer(tx: Requestor, period: int) -> int:
    """A period, or a long round trip where timers follow those measured: what a queue holds up is not silence."""
    p = tx.profile
    return max(period, long_rtt(tx)) if p.rto_most_ns > p.rto_ns else period


def after_news(tx: Requestor, now: int) -> None:
    """Set the timers anew after news from the peer."""
    p = tx.profile
    if tx.una == tx.next:
        tx.rto_at = at.FOREVER
        tx.probe_at = at.FOREVER
        tx.probe_due = 0
    else:
        tx.rto_at = min(tx.rto_at, now + timeout(tx))
        if p.probe_ns > 0:
            tx.probe_at = now + probe_in(tx)
    watch_evs(tx, now)
    set_deadline(tx)


def _ev_probe_period(tx: Requestor) -> int:
    """Twice as long with each round of all bad EVs in which none has answered, up to a limit."""
    period = tx.profile.ev_probe_ns
    rounds = tx.evp_missed // max(tx.ev_bad, 1)
    return max(period, min(period << min(rounds, BACKOFF_MAX), PROBE_MOST_NS))


def watch_evs(tx: Requestor, now: int) -> None:
    """Keep the probe timer running while an EV is ASSUMED_BAD; it is soon due for one that has just become it."""
    period = tx.profile.ev_probe_ns
    if tx.ev_bad == 0:
        tx.evp_at = at.FOREVER
        tx.evp_state = at.EVP_IDLE
    elif period > 0 and (tx.evp_at == at.FOREVER or tx.evp_missed == 0):
        tx.evp_at = min(tx.evp_at, now + period)


def probe_next_ev(tx: Requestor, now: int) -> None:
    """The last probe had a whole period to be answered; go on to the next bad EV, or stay with one that answers."""
    slot = tx.evp_slot
    if tx.evp_state == at.EVP_WAITING:
        evs.probe_unanswered(tx, slot)
        tx.evp_missed += 1
    if not evs.is_answering(tx, slot):
        slot = evs.next_bad(tx, slot)
    tx.evp_state = at.EVP_IDLE
    if slot >= 0:
        tx.evp_state = at.EVP_DUE
        tx.evp_slot = slot
        tx.evp_id = (tx.evp_id + 2) & ID_MASK
    tx.evp_at = now + _ev_probe_period(tx)

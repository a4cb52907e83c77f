"""Law of the requestor's time: the local ACK timeout, its retries, and the pace of EV probes."""
# ruff: noqa: F403, F405 - the law reads the whole register map; handlers take addresses and integers

from __future__ import annotations

from fairlead.fabric.mrc import congestion, evs, paths, window
from fairlead.fabric.mrc.layout import *

ID_MASK = 0xFFFF  # probe ids are 16 bits on the wire
BACKOFF_MAX = 20  # doublings of a period
PROBE_MOST_NS = (
    51_200_000  # ... of EV probes end here, whatever the network, so that a path that comes back is soon found
)
RTTVAR_GAIN = 4  # RFC 6298
LATE_GAIN = 2  # variations by which a packet may be later than the usual one, before order tells that it is lost
BACKOFF_CAP_NS = 1 << 37  # 137 s: no deadline is further off, and the age of any packet fits its record


def set_deadline(m: Words, tx: int) -> None:
    """Note the earliest timer, the one time a driver has to know."""
    first = min(m[tx + TX_RTO_AT], m[tx + TX_PROBE_AT])
    second = min(m[tx + TX_EVP_AT], m[tx + E_STATUS_AT])
    third = min(m[tx + TX_HOLD_AT], m[tx + TX_LOSS_AT])
    m[tx + TX_DEADLINE] = min(first, second, third) if m[tx + E_ERROR] == 0 else FOREVER


def timeout(m: Words, tx: int) -> int:
    """The local ACK timeout: constant in the linear phase of retries, then doubling with each round of timeouts.

    NACKs count as retries too, but a peer that answers is no reason to wait longer. Between programs the constant is a
    floor: the period is what RFC 6298 reckons from round trips, and no less than the longest of this round.
    """
    p = m[tx + E_PROFILE]
    period = m[p + P_RTO_NS]
    if m[p + P_RTO_MOST_NS] > period:
        measured = max(m[tx + TX_SRTT], m[tx + TX_ROUND_RTT]) + RTTVAR_GAIN * m[tx + TX_RTTVAR]
        period = max(period, min(measured, m[p + P_RTO_MOST_NS]))
    return _backed_off(m, tx, period)


def long_rtt(m: Words, tx: int) -> int:
    """How long a packet may be on its way. Queues of planes differ: no one sample tells, but the longest of late."""
    late = m[tx + TX_SRTT] + LATE_GAIN * m[tx + TX_RTTVAR]
    return max(m[tx + TX_DELIVERED_RTT], m[tx + TX_ROUND_RTT], late)


def learn_rtt(m: Words, tx: int, now: int, rtt: int) -> None:
    """A round trip was measured. RFC 6298 wants one sample a round trip: the longest of each counts."""
    m[tx + TX_ROUND_RTT] = max(m[tx + TX_ROUND_RTT], rtt)
    if now < m[tx + TX_ROUND_AT]:
        return
    sample = m[tx + TX_ROUND_RTT]
    if m[tx + TX_SRTT] == 0:
        m[tx + TX_SRTT] = sample
        m[tx + TX_RTTVAR] = sample // 2
    else:
        m[tx + TX_RTTVAR] += (abs(sample - m[tx + TX_SRTT]) - m[tx + TX_RTTVAR]) // 4
        m[tx + TX_SRTT] += (sample - m[tx + TX_SRTT]) // 8
    m[tx + TX_ROUND_RTT] = 0
    m[tx + TX_ROUND_AT] = now + m[tx + TX_SRTT]


def learn_mistake(m: Words, tx: int, now: int) -> None:
    """Packets that had run out of time arrive after all: a round trip takes at least as long as was waited (RFC 4015).

    Without this a peer that is slower than the timeout would never be measured, for every packet is sent twice.
    """
    if m[tx + TX_EXPIRED_AGE] > 0:
        learn_rtt(m, tx, now, m[tx + TX_EXPIRED_AGE])
        m[tx + TX_EXPIRED_AGE] = 0


def _backed_off(m: Words, tx: int, period: int) -> int:
    doublings = max(m[tx + TX_ROUNDS] - m[m[tx + E_PROFILE] + P_RETRY_LINEAR], 0)
    return min(period << min(doublings, BACKOFF_MAX), BACKOFF_CAP_NS)


def expire(m: Words, tx: int, now: int) -> int:
    """Every packet in flight for a whole timeout is lost, and so, perhaps, is its path."""
    limit = timeout(m, tx)
    earliest = FOREVER
    expired = 0
    age = 0
    psn = window.next_in_flight(m, tx, m[tx + TX_UNA])
    while psn < m[tx + TX_NEXT]:
        record = m[window.record_address(m, tx, psn)]
        sent = window.sent_at(record, now)
        if sent + limit <= now:
            expired += 1
            age = max(age, now - sent)
            paths.feedback(m, tx, now, window.record_ev(record), PATH_IS_LOSSY)
            congestion.on_timeout(m, tx, window.mark_lost(m, tx, psn))
        else:
            earliest = min(earliest, sent)
        psn = window.next_in_flight(m, tx, psn + 1)
    m[tx + TX_NUM_TIMEOUTS] += expired
    if expired > 0:
        m[tx + TX_ROUNDS] += 1
        m[tx + TX_EXPIRED_AGE] = age
        if retry(m, tx):
            return DID_FAIL
    if earliest < FOREVER:
        m[tx + TX_RTO_AT] = earliest + timeout(m, tx)
    else:
        m[tx + TX_RTO_AT] = FOREVER
        m[tx + TX_IN_FLIGHT] = 0  # all that was in flight has arrived or is lost
    return DID_NOTHING


def retry(m: Words, tx: int) -> int:
    """Count one retry; 1 if that was one too many. The counter is shared by all packets and restarts when una moves
    ([MRC]).

    A round of timeouts counts once, a NACK only when it names the oldest packet: a trimmed burst is not a dead peer.
    """
    p = m[tx + E_PROFILE]
    m[tx + TX_RETRIES] += 1
    limit = m[p + P_RETRY_LINEAR] + m[p + P_RETRY_EXP]
    if m[p + P_RETRY_EXP] >= RETRY_EXP_INFINITE or m[tx + TX_RETRIES] <= limit:
        return 0
    fail(m, tx, ERROR_RETRY)
    return 1


def fail(m: Words, tx: int, error: int) -> int:
    """The queue pair goes to the error state."""
    m[tx + E_ERROR] = error
    m[tx + TX_DEADLINE] = FOREVER
    return DID_FAIL


def hold(m: Words, tx: int, now: int) -> None:
    """The receiver refused a packet for want of room: no data goes until it may have made some.

    A round trip first, twice as long with each retry of the oldest packet, a timeout at most.
    """
    p = m[tx + E_PROFILE]
    pause = min(m[p + P_NET_RTT_NS] << min(m[tx + TX_RETRIES], BACKOFF_MAX), m[p + P_RTO_NS])
    if m[tx + TX_HOLD_AT] == FOREVER:
        m[tx + TX_HOLD_AT] = now + pause
    m[tx + TX_HOLD_AT] = max(m[tx + TX_HOLD_AT], now + pause)


def probe_in(m: Words, tx: int) -> int:
    """How long silence lasts before a reliability probe asks about it."""
    return _longer(m, tx, m[m[tx + E_PROFILE] + P_PROBE_NS])


def probe_again_in(m: Words, tx: int) -> int:
    """When an unanswered reliability probe is repeated: like the timeout, at longer times after the linear phase."""
    return _backed_off(m, tx, _longer(m, tx, m[m[tx + E_PROFILE] + P_PROBE_RETRY_NS]))


def _longer(m: Words, tx: int, period: int) -> int:
    """A period, or a long round trip where timers follow those measured: what a queue holds up is not silence."""
    p = m[tx + E_PROFILE]
    return max(period, long_rtt(m, tx)) if m[p + P_RTO_MOST_NS] > m[p + P_RTO_NS] else period


def _ev_probe_period(m: Words, tx: int) -> int:
    """Twice as long with each round of all bad EVs in which none has answered, up to a limit."""
    period = m[m[tx + E_PROFILE] + P_EV_PROBE_NS]
    rounds = m[tx + TX_EVP_MISSED] // max(m[tx + TX_EV_BAD], 1)
    return max(period, min(period << min(rounds, BACKOFF_MAX), PROBE_MOST_NS))


def watch_evs(m: Words, tx: int, now: int) -> None:
    """Keep the probe timer running while an EV is ASSUMED_BAD; it is soon due for one that has just become it."""
    period = m[m[tx + E_PROFILE] + P_EV_PROBE_NS]
    if m[tx + TX_EV_BAD] == 0:
        m[tx + TX_EVP_AT] = FOREVER
        m[tx + TX_EVP_STATE] = EVP_IDLE
    elif period > 0 and (m[tx + TX_EVP_AT] == FOREVER or m[tx + TX_EVP_MISSED] == 0):
        m[tx + TX_EVP_AT] = min(m[tx + TX_EVP_AT], now + period)


def probe_next_ev(m: Words, tx: int, now: int) -> None:
    """The last probe had a whole period to be answered; go on to the next bad EV, or stay with one that answers."""
    slot = m[tx + TX_EVP_SLOT]
    if m[tx + TX_EVP_STATE] == EVP_WAITING:
        evs.probe_unanswered(m, tx, slot)
        m[tx + TX_EVP_MISSED] += 1
    if not evs.is_answering(m, tx, slot):
        slot = evs.next_bad(m, tx, slot)
    m[tx + TX_EVP_STATE] = EVP_IDLE
    if slot >= 0:
        m[tx + TX_EVP_STATE] = EVP_DUE
        m[tx + TX_EVP_SLOT] = slot
        m[tx + TX_EVP_ID] = (m[tx + TX_EVP_ID] + 2) & ID_MASK
    m[tx + TX_EVP_AT] = now + _ev_probe_period(m, tx)

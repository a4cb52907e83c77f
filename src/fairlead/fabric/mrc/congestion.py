"""Law of congestion control: how the window follows SACKs, NACKs and timeouts.

Two laws, chosen by P_CC_RULE, behind the same four calls: CC_CONSTANT never moves the window; CC_NSCC is the
network-signal congestion control of the Ultra Ethernet specification (section 3.6.13), on which OCP MRC 1.0 section 8
builds. Order and constants follow the reference simulator (ultraethernet/uet-htsim, htsim/sim/uec.cpp). One SACK is
judged by two signals:

    ECN   queueing delay vs target    action
    no    below                       proportional increase; fast increase after a whole window without queueing
    no    at or above                 fair increase
    yes   at or above                 multiplicative decrease
    yes   below                       nothing: another path will do

Where switches do not mark (P_DELAY_MARKS; shaped links of kernels, ordinary clouds), a delay at or above the target
stands for the mark. Without that no SACK ever asks for less: every window stays at its ceiling, and who came first, or
found the shorter base RTT, keeps what it has. The average then takes delays as they are, and a decrease waits for its
effect, which the queue holds up: a base RTT and the usual delay.

Increases gather in TX_INC (bytes^2) and are paid out, divided by the window, once an adjustment period or so many
bytes. Quick adapt comes first: at the end of a round trip in which little arrived and something was trimmed, lost or
much delayed, the window becomes what did arrive, and the rest of the old window is ignored.

Arithmetic is in integers; `Profile` refuses networks so large that a product could reach 2^62. The delay average keeps
10 fractional bits: it stays within 80/1024 ns of real arithmetic (weight 1/80, and each step rounds down by less than a
unit). The proportional gain keeps 8. Against NSCC in floating point the window stays within 0.1 % (test_congestion.py).
"""
# ruff: noqa: F403, F405, PLR0917 - the law reads the whole register map; handlers take addresses and integers

from __future__ import annotations

from fairlead.fabric.mrc.layout import *

MAX_RTT_NS = 1 << 30  # a longer sample, from a peer that echoes nonsense, counts as this
MAX_ARRIVED = 1 << 24  # bytes of one SACK that count towards an increase
ALPHA_BITS = 8  # fractional bits of the proportional gain
AVG_BITS = 10  # fractional bits of TX_AVG_DELAY
FI_SCALE_BITS = 16
# [UEC] initNsccParams; the others, which scale with the network, are in profile.py
GAMMA_NUM = 4  # _gamma 0.8
GAMMA_DEN = 5
MAX_MD_DIVISOR = 2  # multiplicativeDecrease: one decrease takes at most half


def init_cc(m: Words, tx: int) -> None:
    """Window and base RTT before anything is known."""
    p = m[tx + E_PROFILE]
    m[tx + TX_CWND] = m[p + P_CWND]
    m[tx + TX_LEAST_RTT] = FOREVER
    _set_base_rtt(m, tx, m[p + P_NET_RTT_NS])


def largest_window(rtt: int, rate_mbps: int) -> int:
    """1.5 bandwidth-delay products, in bytes: where a window begins and what it never exceeds."""
    return rtt * rate_mbps // 8000 * 3 // 2


def observe_rtt(m: Words, tx: int, now: int, rtt: int, marked: int) -> int:
    """Take a round-trip sample from a SACK; the queueing delay it means, in ns."""
    rtt = min(rtt, MAX_RTT_NS)
    learn_base_rtt(m, tx, now, rtt)
    delay = max(rtt - m[tx + TX_BASE_RTT], 0)
    _average(m, tx, delay, marked | m[m[tx + E_PROFILE] + P_DELAY_MARKS])
    return delay


def learn_base_rtt(m: Words, tx: int, now: int, rtt: int) -> None:
    """The base RTT is the shortest sample, of a SACK or a NACK, of the last one to two ages (P_BASE_AGE_NS).

    Paths change, and one lucky sample must not rule for ever. A renewal never leads above the network's own RTT, so a
    queue that stands for a whole age is not taken for distance; no sample leads below the floor.
    """
    p = m[tx + E_PROFILE]
    rtt = max(rtt, m[p + P_BASE_FLOOR_NS])
    if m[p + P_BASE_AGE_NS] > 0:
        if now >= m[tx + TX_RENEW_AT]:
            if m[tx + TX_LEAST_RTT] < FOREVER:
                _set_base_rtt(m, tx, min(m[tx + TX_LEAST_RTT], m[p + P_NET_RTT_NS]))
            m[tx + TX_LEAST_RTT] = rtt
            m[tx + TX_RENEW_AT] = now + m[p + P_BASE_AGE_NS]
        m[tx + TX_LEAST_RTT] = min(m[tx + TX_LEAST_RTT], rtt)
    if rtt < m[tx + TX_BASE_RTT]:
        _set_base_rtt(m, tx, rtt)


def usual_delay(m: Words, tx: int) -> int:
    """The average queueing delay in ns, for a SACK that carries no sample."""
    return m[tx + TX_AVG_DELAY] >> AVG_BITS


def penalise(m: Words, tx: int, arrived: int, penalty: int) -> None:
    """rcv_cwnd_pen (0..127): the receiver is short of room; take that share of the newly received bytes off the window.

    Worked vector: 4,096 bytes at penalty 64 take 2,048 off, 75,776 -> 73,728.
    """
    if penalty > 0 and m[m[tx + E_PROFILE] + P_CC_RULE] == CC_NSCC:
        m[tx + TX_SAVED_CWND] = max(m[tx + TX_SAVED_CWND], m[tx + TX_CWND])
        m[tx + TX_CWND] -= arrived * penalty >> 7
        _bound(m, tx)


def restore(m: Words, tx: int) -> None:
    """restore_cwnd: the receiver has room again; return to the window from before its penalties."""
    m[tx + TX_CWND] = max(m[tx + TX_CWND], m[tx + TX_SAVED_CWND])
    m[tx + TX_SAVED_CWND] = 0


def on_arrival(m: Words, tx: int, now: int, arrived: int, delay: int, marked: int) -> None:
    """A SACK told of `arrived` new bytes, a queueing delay, and whether its packet was ECN-marked."""
    if m[m[tx + E_PROFILE] + P_CC_RULE] == CC_NSCC:
        m[tx + TX_ACHIEVED] += arrived
        m[tx + TX_RECEIVED] += arrived
        m[tx + TX_QA_IGNORED] += arrived
        _nscc_on_arrival(m, tx, now, arrived, delay, marked | _is_late(m, tx, delay))


def on_nack(m: Words, tx: int, now: int, size: int) -> None:
    """A NACK gave back a packet of `size` bytes."""
    if m[m[tx + E_PROFILE] + P_CC_RULE] == CC_NSCC:
        m[tx + TX_QA_IGNORED] += size
        # a full queue delayed it by about one network RTT
        _average(m, tx, m[m[tx + E_PROFILE] + P_NET_RTT_NS], 1)
        m[tx + TX_QA_ARMED] = 1
        if not _quick_adapt(m, tx, now, 1, 1, 0):
            m[tx + TX_CWND] -= size
            _bound(m, tx)


def on_timeout(m: Words, tx: int, size: int) -> None:
    """A packet of `size` bytes ran out of time."""
    if m[m[tx + E_PROFILE] + P_CC_RULE] == CC_NSCC:
        m[tx + TX_CWND] = max(m[tx + TX_CWND] - size, m[m[tx + E_PROFILE] + P_MIN_CWND])


# --- NSCC ------------------------------------------------------------------------------------------------------


def _set_base_rtt(m: Words, tx: int, rtt: int) -> None:
    m[tx + TX_BASE_RTT] = rtt
    m[tx + TX_MAX_CWND] = largest_window(rtt, m[m[tx + E_PROFILE] + P_RATE_MBPS])


def _is_late(m: Words, tx: int, delay: int) -> int:
    """1 for a delay that stands for a mark."""
    p = m[tx + E_PROFILE]
    return 1 if m[p + P_DELAY_MARKS] and delay >= m[p + P_TARGET_NS] else 0


def _average(m: Words, tx: int, delay: int, marked: int) -> None:
    """Weigh a sample into the delay average; a long unmarked delay counts as a quarter RTT."""
    sample = delay
    if not marked and delay > m[m[tx + E_PROFILE] + P_TARGET_NS]:
        sample = m[tx + TX_BASE_RTT] >> 2
    m[tx + TX_AVG_DELAY] += ((sample << AVG_BITS) - m[tx + TX_AVG_DELAY]) // m[m[tx + E_PROFILE] + P_AVG_DIVISOR]


def _bound(m: Words, tx: int) -> None:
    m[tx + TX_CWND] = max(min(m[tx + TX_CWND], m[tx + TX_MAX_CWND]), m[m[tx + E_PROFILE] + P_MIN_CWND])


def _nscc_on_arrival(m: Words, tx: int, now: int, arrived: int, delay: int, marked: int) -> None:
    p = m[tx + E_PROFILE]
    if _quick_adapt(m, tx, now, 0, marked, delay):
        return
    if delay >= m[p + P_TARGET_NS]:
        if marked:
            _decrease(m, tx, now)
        else:
            m[tx + TX_INC] += m[p + P_FI] * arrived
    elif not marked:
        _increase(m, tx, arrived, delay)
    _bound(m, tx)
    if m[tx + TX_RECEIVED] > m[p + P_ADJUST_BYTES] or now - m[tx + TX_LAST_ADJUST] > m[p + P_ADJUST_NS]:
        m[tx + TX_CWND] += m[tx + TX_INC] // m[tx + TX_CWND]
        if now - m[tx + TX_LAST_ADJUST] >= m[p + P_ADJUST_NS]:
            m[tx + TX_CWND] += m[p + P_ETA]
            m[tx + TX_LAST_ADJUST] = now
        m[tx + TX_INC] = 0
        m[tx + TX_RECEIVED] = 0
        _bound(m, tx)


def _increase(m: Words, tx: int, arrived: int, delay: int) -> None:
    """Proportional to the room below the target; or fast, once a whole window has met no queue."""
    p = m[tx + E_PROFILE]
    if delay < m[p + P_FI_DELAY_NS]:
        m[tx + TX_FI_COUNT] += arrived
        if m[tx + TX_FI_ON] or m[tx + TX_FI_COUNT] > m[tx + TX_CWND]:
            m[tx + TX_CWND] += arrived * m[p + P_FI_SCALE] >> FI_SCALE_BITS
            m[tx + TX_FI_ON] = 1
            return
    else:
        m[tx + TX_FI_COUNT] = 0
    m[tx + TX_FI_ON] = 0
    gain = (m[p + P_ALPHA] << ALPHA_BITS) * (m[p + P_TARGET_NS] - delay) // m[p + P_TARGET_NS]
    m[tx + TX_INC] += min(arrived, MAX_ARRIVED) * gain >> ALPHA_BITS


def _decrease(m: Words, tx: int, now: int) -> None:
    """Cwnd *= max(1 - gamma (avg - target) / avg, 1/2), at most once a base RTT, or a delayed one (P_DELAY_MARKS)."""
    m[tx + TX_FI_ON] = 0
    m[tx + TX_FI_COUNT] = 0
    excess = usual_delay(m, tx) - m[m[tx + E_PROFILE] + P_TARGET_NS]
    pause = m[tx + TX_BASE_RTT] + (usual_delay(m, tx) if m[m[tx + E_PROFILE] + P_DELAY_MARKS] else 0)
    if excess > 0 and now - m[tx + TX_LAST_DEC] > pause:
        cwnd = m[tx + TX_CWND]
        cut = cwnd * GAMMA_NUM * excess // (GAMMA_DEN * usual_delay(m, tx))
        m[tx + TX_CWND] = max(cwnd - min(cut, cwnd // MAX_MD_DIVISOR), m[m[tx + E_PROFILE] + P_MIN_CWND])
        m[tx + TX_LAST_DEC] = now


def _quick_adapt(m: Words, tx: int, now: int, lost: int, marked: int, delay: int) -> int:
    """1 if this signal is spent: it set the window to what arrived, or it belongs to the window before."""
    p = m[tx + E_PROFILE]
    if not m[p + P_QA_ON]:
        return 0
    spent = 0
    if marked and m[tx + TX_QA_IGNORED] < m[tx + TX_QA_IGNORE]:
        spent = 1
    elif now > m[tx + TX_QA_END]:
        bad = lost != 0 or m[tx + TX_QA_ARMED] != 0 or delay > m[p + P_QA_THRESHOLD_NS]
        little = m[tx + TX_ACHIEVED] < m[tx + TX_MAX_CWND] >> m[p + P_QA_GATE]
        if m[tx + TX_QA_END] != 0 and bad and little:
            m[tx + TX_CWND] = max(m[tx + TX_ACHIEVED], m[p + P_MIN_CWND])
            m[tx + TX_QA_IGNORE] = m[tx + TX_IN_FLIGHT]
            m[tx + TX_QA_IGNORED] = 0
            m[tx + TX_QA_ARMED] = 0
            spent = 1
        m[tx + TX_ACHIEVED] = 0
        m[tx + TX_QA_END] = now + m[tx + TX_BASE_RTT] + m[p + P_TARGET_NS]
    if spent:
        m[tx + TX_INC] = 0
        m[tx + TX_RECEIVED] = 0
    return spent

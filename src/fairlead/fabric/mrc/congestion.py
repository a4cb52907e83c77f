"""Law of congestion control: how the window follows SACKs, NACKs and timeouts.

Two laws, chosen by cc_rule, behind the same four calls: CC_CONSTANT never moves the window; CC_NSCC is the
network-signal congestion control of the Ultra Ethernet specification (section 3.6.13), on which OCP MRC 1.0 section 8
builds. Order and constants follow the reference simulator (ultraethernet/uet-htsim, htsim/sim/uec.cpp). One SACK is
judged by two signals:

    ECN   queueing delay vs target    action
    no    below                       proportional increase; fast increase after a whole window without queueing
    no    at or above                 fair increase
    yes   at or above                 multiplicative decrease
    yes   below                       nothing: another path will do

Where switches do not mark (delay_marks; shaped links of kernels, ordinary clouds), a delay at or above the target
stands for the mark. Without that no SACK ever asks for less: every window stays at its ceiling, and who came first, or
found the shorter base RTT, keeps what it has. The average then takes delays as they are, and a decrease waits for its
effect, which the queue holds up: a base RTT and the usual delay.

Increases gather in tx.inc (bytes^2) and are paid out, divided by the window, once an adjustment period or so many
bytes. Quick adapt comes first: at the end of a round trip in which little arrived and something was trimmed, lost or
much delayed, the window becomes what did arrive, and the rest of the old window is ignored.

Arithmetic is in integers; `Profile` refuses networks so large that a product could reach 2^62. The delay average keeps
10 fractional bits: it stays within 80/1024 ns of real arithmetic (weight 1/80, and each step rounds down by less than a
unit). The proportional gain keeps 8. Against NSCC in floating point the window stays within 0.1 % (test_congestion.py).
"""

from __future__ import annotations

from fairlead.fabric.mrc import layout as at
from fairlead.fabric.mrc.rows import Requestor

MAX_RTT_NS = 1 << 30  # a longer sample, from a peer that echoes nonsense, counts as this
MAX_ARRIVED = 1 << 24  # bytes of one SACK that count towards an increase
ALPHA_BITS = 8  # fractional bits of the proportional gain
AVG_BITS = 10  # fractional bits of tx.avg_delay
FI_SCALE_BITS = 16
# [UEC] initNsccParams; the others, which scale with the network, are in profile.py
GAMMA_NUM = 4  # _gamma 0.8
GAMMA_DEN = 5
MAX_MD_DIVISOR = 2  # multiplicativeDecrease: one decrease takes at most half


def init_cc(tx: Requestor) -> None:
    """Window and base RTT before anything is known."""
    p = tx.profile
    tx.cwnd = p.first_cwnd
    tx.least_rtt = at.FOREVER
    _set_base_rtt(tx, p.network_rtt_ns)


def largest_window(rtt: int, rate_mbps: int) -> int:
    """1.5 bandwidth-delay products, in bytes: where a window begins and what it never exceeds."""
    return rtt * rate_mbps // 8000 * 3 // 2


def observe_rtt(tx: Requestor, now: int, rtt: int, marked: int) -> int:
    """Take a round-trip sample from a SACK; the queueing delay it means, in ns."""
    rtt = min(rtt, MAX_RTT_NS)
    learn_base_rtt(tx, now, rtt)
    delay = max(rtt - tx.base_rtt, 0)
    _average(tx, delay, marked | tx.profile.delay_marks)
    return delay


def learn_base_rtt(tx: Requestor, now: int, rtt: int) -> None:
    """The base RTT is the shortest sample, of a SACK or a NACK, of the last one to two ages (base_rtt_age_ns).

    Paths change, and one lucky sample must not rule for ever. A renewal never leads above the network's own RTT, so a
    queue that stands for a whole age is not taken for distance; no sample leads below the floor.
    """
    p = tx.profile
    rtt = max(rtt, p.base_rtt_floor_ns)
    if p.base_rtt_age_ns > 0:
        if now >= tx.renew_at:
            if tx.least_rtt < at.FOREVER:
                _set_base_rtt(tx, min(tx.least_rtt, p.network_rtt_ns))
            tx.least_rtt = rtt
            tx.renew_at = now + p.base_rtt_age_ns
        tx.least_rtt = min(tx.least_rtt, rtt)
    if rtt < tx.base_rtt:
        _set_base_rtt(tx, rtt)


def usual_delay(tx: Requestor) -> int:
    """The average queueing delay in ns, for a SACK that carries no sample."""
    return tx.avg_delay >> AVG_BITS


def penalise(tx: Requestor, arrived: int, penalty: int) -> None:
    """rcv_cwnd_pen (0..127): the receiver is short of room; take that share of the newly received bytes off the window.

    Worked vector: 4,096 bytes at penalty 64 take 2,048 off, 75,776 -> 73,728.
    """
    if penalty > 0 and tx.profile.cc_rule == at.CC_NSCC:
        tx.saved_cwnd = max(tx.saved_cwnd, tx.cwnd)
        tx.cwnd -= arrived * penalty >> 7
        _bound(tx)


def restore(tx: Requestor) -> None:
    """restore_cwnd: the receiver has room again; return to the window from before its penalties."""
    tx.cwnd = max(tx.cwnd, tx.saved_cwnd)
    tx.saved_cwnd = 0


def on_arrival(tx: Requestor, now: int, arrived: int, delay: int, marked: int) -> None:
    """A SACK told of `arrived` new bytes, a queueing delay, and whether its packet was ECN-marked."""
    if tx.profile.cc_rule == at.CC_NSCC:
        tx.achieved += arrived
        tx.received += arrived
        tx.qa_ignored += arrived
        _nscc_on_arrival(tx, now, arrived, delay, marked | _is_late(tx, delay))


def on_nack(tx: Requestor, now: int, size: int) -> None:
    """A NACK gave back a packet of `size` bytes."""
    if tx.profile.cc_rule == at.CC_NSCC:
        tx.qa_ignored += size
        # a full queue delayed it by about one network RTT
        _average(tx, tx.profile.network_rtt_ns, 1)
        tx.qa_armed = 1
        if not _quick_adapt(tx, now, 1, 1, 0):
            tx.cwnd -= size
            _bound(tx)


def on_timeout(tx: Requestor, size: int) -> None:
    """A packet of `size` bytes ran out of time."""
    if tx.profile.cc_rule == at.CC_NSCC:
        tx.cwnd = max(tx.cwnd - size, tx.profile.min_cwnd)


# --- NSCC ------------------------------------------------------------------------------------------------------


def _set_base_rtt(tx: Requestor, rtt: int) -> None:
    tx.base_rtt = rtt
    tx.max_cwnd = largest_window(rtt, tx.profile.rate_mbps)


def _is_late(tx: Requestor, delay: int) -> int:
    """1 for a delay that stands for a mark."""
    p = tx.profile
    return 1 if p.delay_marks and delay >= p.target_ns else 0


def _average(tx: Requestor, delay: int, marked: int) -> None:
    """Weigh a sample into the delay average; a long unmarked delay counts as a quarter RTT."""
    sample = delay
    if not marked and delay > tx.profile.target_ns:
        sample = tx.base_rtt >> 2
    tx.avg_delay += ((sample << AVG_BITS) - tx.avg_delay) // tx.profile.avg_divisor


def _bound(tx: Requestor) -> None:
    tx.cwnd = max(min(tx.cwnd, tx.max_cwnd), tx.profile.min_cwnd)


def _nscc_on_arrival(tx: Requestor, now: int, arrived: int, delay: int, marked: int) -> None:
    p = tx.profile
    if _quick_adapt(tx, now, 0, marked, delay):
        return
    if delay >= p.target_ns:
        if marked:
            _decrease(tx, now)
        else:
            tx.inc += p.fi * arrived
    elif not marked:
        _increase(tx, arrived, delay)
    _bound(tx)
    if tx.received > p.adjust_bytes or now - tx.last_adjust > p.adjust_ns:
        tx.cwnd += tx.inc // tx.cwnd
        if now - tx.last_adjust >= p.adjust_ns:
            tx.cwnd += p.eta
            tx.last_adjust = now
        tx.inc = 0
        tx.received = 0
        _bound(tx)


def _increase(tx: Requestor, arrived: int, delay: int) -> None:
    """Proportional to the room below the target; or fast, once a whole window has met no queue."""
    p = tx.profile
    if delay < p.fi_delay_ns:
        tx.fi_count += arrived
        if tx.fi_on or tx.fi_count > tx.cwnd:
            tx.cwnd += arrived * p.fi_scale >> FI_SCALE_BITS
            tx.fi_on = 1
            return
    else:
        tx.fi_count = 0
    tx.fi_on = 0
    gain = (p.alpha << ALPHA_BITS) * (p.target_ns - delay) // p.target_ns
    tx.inc += min(arrived, MAX_ARRIVED) * gain >> ALPHA_BITS


def _decrease(tx: Requestor, now: int) -> None:
    """Cwnd *= max(1 - gamma (avg - target) / avg, 1/2), at most once a base RTT, or a delayed one (delay_marks)."""
    tx.fi_on = 0
    tx.fi_count = 0
    excess = usual_delay(tx) - tx.profile.target_ns
    pause = tx.base_rtt + (usual_delay(tx) if tx.profile.delay_marks else 0)
    if excess > 0 and now - tx.last_dec > pause:
        cwnd = tx.cwnd
        cut = cwnd * GAMMA_NUM * excess // (GAMMA_DEN * usual_delay(tx))
        tx.cwnd = max(cwnd - min(cut, cwnd // MAX_MD_DIVISOR), tx.profile.min_cwnd)
        tx.last_dec = now


def _quick_adapt(tx: Requestor, now: int, lost: int, marked: int, delay: int) -> int:
    """1 if this signal is spent: it set the window to what arrived, or it belongs to the window before."""
    p = tx.profile
    if not p.quick_adapt:
        return 0
    spent = 0
    if marked and tx.qa_ignored < tx.qa_ignore:
        spent = 1
    elif now > tx.qa_end:
        bad = lost != 0 or tx.qa_armed != 0 or delay > p.qa_threshold_ns
        little = tx.achieved < tx.max_cwnd >> p.qa_gate
        if tx.qa_end != 0 and bad and little:
            tx.cwnd = max(tx.achieved, p.min_cwnd)
            tx.qa_ignore = tx.in_flight
            tx.qa_ignored = 0
            tx.qa_armed = 0
            spent = 1
        tx.achieved = 0
        tx.qa_end = now + tx.base_rtt + p.target_ns
    if spent:
        tx.inc = 0
        tx.received = 0
    return spent

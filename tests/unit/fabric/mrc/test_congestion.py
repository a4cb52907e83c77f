"""NSCC: its four quadrants, quick adapt, receiver penalty, and how far integers stray from real numbers."""

from __future__ import annotations

import random

import pytest

from fairlead.fabric.mrc import congestion
from fairlead.fabric.mrc import layout as at
from fairlead.fabric.mrc.profile import Profile
from support.mrc_rows import Requestor

REFERENCE = Profile.mrc(rate_mbps=100_000, network_rtt_ns=12_000)  # target delay 9 us, window 225,000 at most
TARGET = REFERENCE.target_ns
PACKET = REFERENCE.mtu + REFERENCE.overhead


def make(**changes: object) -> Requestor:
    row = Requestor(Profile.mrc(**{"rate_mbps": 100_000, "network_rtt_ns": 12_000, **changes}))
    row.state.cwnd = 100_000
    row.state.last_adjust = 1_000_000
    return row


def arrive(row: Requestor, now: int, arrived: int = 16_384, delay: int = 0, marked: int = 0) -> None:
    congestion.on_arrival(row.state, now, arrived, delay, marked)


def test_below_target_the_increase_is_proportional_to_the_room() -> None:
    gathered = []
    for delay in (TARGET // 4, TARGET // 2, 3 * TARGET // 4):
        row = make()
        arrive(row, 1_000_001, delay=delay)
        gathered.append(row.state.inc)
    assert gathered[0] == 3 * gathered[2]
    assert gathered[1] == 2 * gathered[2]
    assert gathered[2] == 16_384 * (4 * 4096 * 3 // 4) // 4


def test_above_target_without_a_mark_the_increase_is_fair() -> None:
    row = make()
    arrive(row, 1_000_001, delay=TARGET)
    assert row.state.inc == 16_384 * 5 * 4096
    assert row.state.cwnd == 100_000


def test_gathered_increase_is_paid_once_a_period_or_eight_packets() -> None:
    row = make()
    arrive(row, 1_000_001, arrived=8 * PACKET, delay=TARGET)
    assert row.state.cwnd == 100_000  # exactly eight packets is not more than eight
    arrive(row, 1_000_002, arrived=256, delay=TARGET)
    expected = 100_000 + (8 * PACKET + 256) * 5 * 4096 // 100_000
    assert expected == row.state.cwnd
    assert row.state.inc == row.state.received == 0
    arrive(row, 1_000_000 + 12_001, arrived=0, delay=TARGET)
    assert expected + 614 == row.state.cwnd  # eta, once a network RTT


def test_a_mark_below_target_changes_nothing() -> None:
    row = make()
    arrive(row, 1_000_001, delay=TARGET - 1, marked=1)
    assert (row.state.inc, row.state.cwnd) == (0, 100_000)


def test_a_mark_above_target_decreases_by_gamma_at_most_once_a_round_trip() -> None:
    row = make()
    row.state.avg_delay = 10_000 << congestion.AVG_BITS
    arrive(row, 1_000_001, delay=TARGET, marked=1)
    assert row.state.cwnd == 100_000 - 100_000 * 4 * 1_000 // (5 * 10_000)  # 1 - 0.8 (avg - target) / avg
    before = row.state.cwnd
    row.state.last_adjust = 1_100_000  # no eta in between
    arrive(row, 1_000_001 + 12_000, delay=TARGET, marked=1)
    assert before == row.state.cwnd
    arrive(row, 1_000_001 + 12_001, delay=TARGET, marked=1)
    assert before > row.state.cwnd


def test_one_decrease_takes_half_at_most_and_leaves_one_packet() -> None:
    row = make()
    row.state.avg_delay = 10**9 << congestion.AVG_BITS
    arrive(row, 1_000_001, delay=TARGET, marked=1)
    assert row.state.cwnd == 50_000
    row.state.cwnd = 5_000
    row.state.last_adjust = 1_100_000
    arrive(row, 1_100_000, delay=TARGET, marked=1)
    assert row.state.cwnd == PACKET


def test_no_decrease_while_the_average_delay_is_at_the_target() -> None:
    row = make()
    row.state.avg_delay = TARGET << congestion.AVG_BITS
    arrive(row, 1_000_001, delay=TARGET, marked=1)
    assert row.state.cwnd == 100_000


def test_a_whole_window_without_queue_starts_the_fast_increase_and_any_queue_ends_it() -> None:
    row = make()
    arrive(row, 1_000_001, arrived=100_001, delay=999)
    assert row.state.fi_on == 1
    grown = 100_000 + 100_001 // 4
    assert grown == row.state.cwnd
    arrive(row, 1_000_002, arrived=4_000, delay=0)
    assert grown + 1_000 == row.state.cwnd
    arrive(row, 1_000_003, arrived=4_000, delay=1_000)
    assert (row.state.fi_on, row.state.fi_count) == (0, 0)


def test_the_window_never_exceeds_one_and_a_half_products_of_the_shortest_round_trip() -> None:
    row = make()
    row.state.cwnd = 225_000
    congestion.observe_rtt(row.state, 0, 8_000, 0)
    assert row.state.max_cwnd == 150_000
    arrive(row, 1_000_001, delay=TARGET)
    assert row.state.cwnd == 150_000


def test_quick_adapt_sets_the_window_to_what_arrived() -> None:
    row = make()
    arrive(row, 1_000_001, arrived=4_096)  # opens the first period: 12 us + 9 us
    arrive(row, 1_000_002, arrived=20_000, delay=TARGET)
    row.state.in_flight = 90_000
    congestion.on_nack(row.state, 1_000_001 + 21_001, PACKET)
    assert row.state.cwnd == 20_000
    assert (row.state.qa_ignore, row.state.qa_armed) == (90_000, 0)
    arrive(row, 1_100_000, arrived=4_096, delay=TARGET, marked=1)  # of the window before: ignored
    assert row.state.cwnd == 20_000


def test_a_nack_counts_as_a_delay_of_a_network_round_trip_and_arms_quick_adapt() -> None:
    row = make()
    arrive(row, 1_000_001)  # opens a period
    congestion.on_nack(row.state, 1_000_002, PACKET)
    assert row.state.avg_delay == (12_000 << congestion.AVG_BITS) // 80
    assert row.state.qa_armed == 1
    arrive(row, 1_100_000, arrived=6_000, delay=0)  # little came in that period
    assert row.state.cwnd == 6_000


def test_quick_adapt_waits_for_its_gate_its_period_and_a_reason() -> None:
    enough = make()
    enough.p.adjust_bytes = 1 << 40
    arrive(enough, 1_000_001)
    arrive(enough, 1_000_002, arrived=225_000 >> 3, delay=TARGET)
    congestion.on_nack(enough.state, 1_100_000, PACKET)
    assert enough.state.cwnd == 100_000 - PACKET  # an eighth of the largest window arrived: only the packet's size
    early = make()
    arrive(early, 1_000_001)
    congestion.on_nack(early.state, 1_000_002, PACKET)
    assert early.state.cwnd == 100_000 - PACKET
    calm = make()
    arrive(calm, 1_000_001)
    arrive(calm, 1_100_000, delay=TARGET)
    assert calm.state.cwnd > 100_000


def test_quick_adapt_acts_on_delay_alone_and_can_be_switched_off() -> None:
    for on, expected in ((True, 5_000), (False, 100_000)):
        row = make(quick_adapt=on)
        arrive(row, 1_000_001, arrived=0, delay=TARGET - 1, marked=1)
        arrive(row, 1_000_002, arrived=5_000, delay=TARGET - 1, marked=1)
        row.state.last_adjust = 1_100_000
        arrive(row, 1_100_000, arrived=0, delay=4 * TARGET + 1, marked=1)
        assert expected == row.state.cwnd


def test_receiver_penalty_vector() -> None:
    row = Requestor(Profile.mrc(rate_mbps=400_000))
    row.state.cwnd = 75_776
    congestion.penalise(row.state, 4_096, 64)
    assert row.state.cwnd == 73_728
    congestion.penalise(row.state, 4_096, 0)
    assert row.state.cwnd == 73_728
    congestion.penalise(row.state, 1 << 20, 127)
    assert row.state.cwnd == row.p.min_cwnd
    congestion.restore(row.state)
    assert row.state.cwnd == 75_776  # the window from before the first penalty
    row.state.cwnd = 50_000
    congestion.restore(row.state)
    assert row.state.cwnd == 50_000


def test_a_timeout_takes_the_packet_off_the_window_and_no_more() -> None:
    row = make()
    congestion.on_timeout(row.state, PACKET)
    assert row.state.cwnd == 100_000 - PACKET
    row.state.cwnd = 5_000
    congestion.on_timeout(row.state, PACKET)
    assert row.state.cwnd == PACKET


def test_the_constant_window_does_not_move() -> None:
    row = make(cc_rule=at.CC_CONSTANT, cwnd=77_777)
    row.state.cwnd = 77_777
    arrive(row, 1_000_001, delay=TARGET)
    arrive(row, 1_100_000, delay=10 * TARGET, marked=1)
    congestion.on_nack(row.state, 1_200_000, PACKET)
    congestion.on_timeout(row.state, PACKET)
    congestion.penalise(row.state, 4_096, 64)
    congestion.restore(row.state)
    assert row.state.cwnd == 77_777


def test_long_unmarked_delays_count_as_a_quarter_of_the_base_round_trip() -> None:
    row = make()
    for _ in range(2_000):
        congestion.observe_rtt(row.state, 0, 12_000 + 100_000, 0)
    assert congestion.usual_delay(row.state) == 2_999
    for _ in range(2_000):
        congestion.observe_rtt(row.state, 0, 12_000 + 100_000, 1)
    assert congestion.usual_delay(row.state) == 99_999


# --- switches that do not mark -------------------------------------------------------------------------------------


def silent(**changes: object) -> Requestor:
    return make(delay_marks=True, avg_divisor=8, **changes)


def test_without_marks_a_delay_above_target_decreases() -> None:
    for late, decreases in ((TARGET - 1, False), (TARGET, True)):
        row = silent(quick_adapt=False)
        row.state.avg_delay = 2 * TARGET << congestion.AVG_BITS
        row.state.last_adjust = 1_100_000
        arrive(row, 1_000_001, delay=late)
        assert (row.state.cwnd < 100_000) is decreases
        assert (row.state.inc == 0) is decreases
    row = silent()
    row.state.avg_delay = 2 * TARGET << congestion.AVG_BITS
    arrive(row, 1_000_001, delay=TARGET)
    assert row.state.cwnd == 100_000 - 100_000 * 4 // (5 * 2)  # 1 - 0.8 (avg - target) / avg


def test_without_marks_the_average_takes_delays_as_they_are() -> None:
    for row, expected in ((silent(), 100_000), (make(avg_divisor=8), 3_000)):
        for _ in range(200):
            congestion.observe_rtt(row.state, 0, 12_000 + 100_000, 0)
        assert congestion.usual_delay(row.state) == pytest.approx(expected, abs=1)


def test_without_marks_a_decrease_waits_for_the_one_before_to_come_through_the_queue() -> None:
    row = silent(quick_adapt=False)
    row.state.avg_delay = 20_000 << congestion.AVG_BITS
    row.state.last_adjust = 1_100_000
    arrive(row, 1_000_001, delay=20_000)
    before = row.state.cwnd
    arrive(row, 1_000_001 + 12_000 + 20_000, delay=20_000)
    assert before == row.state.cwnd
    arrive(row, 1_000_001 + 12_000 + 20_001, delay=20_000)
    assert before > row.state.cwnd


def test_programs_reckon_without_marks_and_all_with_the_same_round_trip() -> None:
    row = Requestor(Profile.software(1_000_000, rate_mbps=240, target_delay_ns=4_000_000))
    congestion.observe_rtt(row.state, 0, 200_000, 0)
    assert row.state.base_rtt == 1_000_000  # who finds an empty network has no higher ceiling, and no other target
    assert row.p.delay_marks == 1
    gain = row.p.alpha
    assert gain < row.p.min_cwnd  # a round trip without a queue gives less than a packet at 80 Mb/s
    assert Profile.mrc().delay_marks is Profile.uec().delay_marks is False


# --- the same in floating point ------------------------------------------------------------------------------------


class RealNscc:
    """NSCC in real numbers, written from the reference's description: what the integers are measured against."""

    def __init__(self, p: Profile) -> None:
        self.rtt, self.target, self.mss = p.network_rtt_ns, p.target_ns, p.mtu
        self.packet = p.mtu + p.overhead
        self.a = p.bdp / 150_000
        self.alpha = 4 * self.mss * self.a * (self.target / 12_000) / self.target
        self.rate = p.rate_mbps
        self.base = self.rtt
        self.cwnd = self.top = 1.5 * p.bdp
        self.avg = self.inc = self.fi = self.received = self.achieved = 0.0
        self.ignored = self.ignore = self.last_adjust = self.last_dec = self.qa_end = 0
        self.fast = False

    def sample(self, rtt: int, marked: int) -> float:
        if rtt < self.base:
            self.base, self.top = rtt, 1.5 * rtt * self.rate / 8000
        delay = rtt - self.base
        seen = self.base * 0.25 if not marked and delay > self.target else delay
        self.avg += 0.0125 * (seen - self.avg)
        return delay

    def bound(self) -> None:
        self.cwnd = max(min(self.cwnd, self.top), self.packet)

    def arrive(self, now: int, arrived: int, delay: float, marked: int, in_flight: int) -> None:
        self.achieved += arrived
        self.received += arrived
        self.ignored += arrived
        if marked and self.ignored < self.ignore:
            self.inc = self.received = 0
            return
        if now > self.qa_end:
            adapt = self.qa_end and delay > 4 * self.target and self.achieved < self.top / 8
            if adapt:
                self.cwnd, self.ignore, self.ignored = max(self.achieved, self.packet), in_flight, 0
            self.achieved, self.qa_end = 0, now + self.base + self.target
            if adapt:
                self.inc = self.received = 0
                return
        if delay >= self.target and not marked:
            self.inc += 5 * self.mss * self.a * arrived
        elif delay < self.target and not marked:
            self.grow(arrived, delay)
        elif delay >= self.target:
            self.fast, self.fi = False, 0
            if self.avg > self.target and now - self.last_dec > self.base:
                self.cwnd = max(self.cwnd * max(1 - 0.8 * (self.avg - self.target) / self.avg, 0.5), self.packet)
                self.last_dec = now
        self.bound()
        if self.received > 8 * self.packet or now - self.last_adjust > self.rtt:
            self.cwnd += self.inc / self.cwnd
            if now - self.last_adjust >= self.rtt:
                self.cwnd += 0.15 * self.mss * self.a
                self.last_adjust = now
            self.inc = self.received = 0
            self.bound()

    def grow(self, arrived: int, delay: float) -> None:
        if delay < 1_000:
            self.fi += arrived
            if self.fast or self.fi > self.cwnd:
                self.cwnd += arrived * 0.25 * self.a
                self.fast = True
                return
        else:
            self.fi = 0
        self.fast = False
        self.inc += self.alpha * arrived * (self.target - delay)


@pytest.mark.parametrize("rate", [100_000, 400_000, 800_000])
@pytest.mark.parametrize("seed", range(3))
def test_integers_follow_real_numbers_within_a_thousandth(rate: int, seed: int) -> None:
    """4,000 SACKs: the delay average within 0.1 ns of real arithmetic, the window within 0.1 % + one byte a step."""
    profile = Profile.mrc(rate_mbps=rate, network_rtt_ns=12_000)
    row, real = Requestor(profile), RealNscc(profile)
    rng = random.Random(seed)
    now = 1_000_000
    for _ in range(4_000):
        now += rng.randrange(200, 4_000)
        rtt = 12_000 + int(rng.expovariate(1 / rng.choice((300, 5_000, 20_000))))
        arrived, marked = 256 * rng.randrange(66), int(rng.random() < 0.3)
        row.state.in_flight = 150_000
        delay = congestion.observe_rtt(row.state, 0, rtt, marked)
        assert delay == real.sample(rtt, marked)
        arrive(row, now, arrived, delay, marked)
        real.arrive(now, arrived, delay, marked, 150_000)
        assert abs(row.state.avg_delay / 1024 - real.avg) < 0.1
        assert pytest.approx(real.cwnd, rel=1e-3, abs=64) == row.state.cwnd

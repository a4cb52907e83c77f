"""The sending half: order of packets, windows, loss recovery, timers, probes, the ends of a queue pair."""

from __future__ import annotations

import pytest

from fairlead.fabric.mrc import evs, law, losses, state, timers, window
from fairlead.fabric.mrc import layout as at
from fairlead.fabric.mrc.profile import Profile
from support.mrc_rows import ALL, Requestor, Responder, sack_block

MTU = 4096
SIZE = MTU + Profile.mrc().overhead
RTO = 262_144


def profile(**changes: object) -> Profile:
    base = {
        "planes": 4,
        "evs_per_plane": 8,
        "evs_active": 4,
        "ev_min_active": 2,
        "mpr": 128,
        "max_messages": 8,
        "cc_rule": at.CC_CONSTANT,
        "cwnd": 1 << 20,
        "probe_ns": 0,
        "reorder_ns": 0,
        "ev_probe_ns": 0,
        "rto_ns": RTO,
    }
    return Profile.mrc(**{**base, **changes})


def make(*, psn: int = 0, **changes: object) -> Requestor:
    return Requestor(profile(**changes), psn=psn)


def psns(sent: list[tuple[int, int, int]]) -> list[int]:
    return [psn for psn, _, _ in sent]


# --- messages ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_bytes", "sizes"),
    [(0, [0]), (1, [1]), (MTU, [MTU]), (MTU + 1, [MTU, 1]), (3 * MTU - 5, [MTU, MTU, MTU - 5])],
)
def test_a_message_is_cut_into_packets_marked_first_and_last(num_bytes: int, sizes: list[int]) -> None:
    row = make()
    row.post(num_bytes, imm=1)
    for i, size in enumerate(sizes):
        assert row.next() == at.SEND_DATA
        flags = row.out[at.D_FLAGS]
        assert (row.out[at.D_BYTES], row.out[at.D_OFFSET], row.out[at.D_MSN]) == (size, i * MTU, 0)
        assert row.out[at.D_PLANE] == row.out[at.D_EV] >> 3
        assert bool(flags & at.F_FIRST) == (i == 0)
        assert bool(flags & at.F_LAST) == bool(flags & at.F_IMM) == (i == len(sizes) - 1)
    assert row.next() == at.SEND_NOTHING


def test_messages_follow_each_other_and_count_immediates() -> None:
    row = make()
    for num_bytes, imm in ((MTU, 0), (1, 1), (1, 0), (1, 1)):
        assert row.post(num_bytes, imm)
    numbers = []
    for _ in range(4):
        row.next()
        numbers.append((row.out[at.D_PSN], row.out[at.D_MSN], row.out[at.D_RQMSN]))
    assert numbers == [(0, 0, 0), (1, 1, 0), (2, 2, 1), (3, 3, 1)]


def test_the_message_ring_refuses_one_too_many_and_has_room_again_after_a_completion() -> None:
    row = make(max_messages=2)
    assert [row.post(1), row.post(1), row.post(1)] == [1, 1, 0]
    row.send(2)
    assert row.sack(cack=0) == at.DID_COMPLETE
    assert row.state.done == 1
    assert row.post(1) == 1


def test_no_more_immediates_are_in_flight_than_agreed() -> None:
    row = make(max_wimm=2)
    for _ in range(3):
        row.post(2 * MTU, imm=1)
    assert len(row.send(4)) == 4
    assert (row.next(), law.ready(row.state)) == (at.SEND_NOTHING, 0)
    row.sack(cack=1)
    assert psns(row.send(2)) == [4, 5]


# --- windows -------------------------------------------------------------------------------------------------------


def test_the_psn_window_is_open_at_both_ends() -> None:
    """A responder takes PSNs in (cack, cack + mpr); with cack = -1 the last one is mpr - 2."""
    row = make()
    row.post(1 << 20)
    assert psns(row.send(127))[-1] == 126
    assert row.next() == at.SEND_NOTHING
    row.sack(cack=0)
    assert psns(row.send(1)) == [127]


def test_dynamic_mpr_narrows_and_widens_the_window_within_the_ring() -> None:
    row = make(mpr=256, cwnd=4 << 20)
    row.post(1 << 20)
    row.sack(cack=-1, info=1 << at.INFO_MPR_SHIFT)
    assert psns(row.send(127))[-1] == 126
    assert row.next() == at.SEND_NOTHING
    row.sack(cack=-1, info=200 << at.INFO_MPR_SHIFT)
    assert psns(row.send(128))[-1] == 254
    assert row.next() == at.SEND_NOTHING


@pytest.mark.parametrize(("whole", "num"), [(False, 3), (True, 2)])
def test_the_congestion_window_wants_room_for_a_byte_or_for_the_packet(whole: bool, num: int) -> None:
    row = make(cwnd=2 * SIZE + 1, whole_packet=whole)
    row.post(1 << 20)
    row.send(num)
    assert row.next() == at.SEND_NOTHING
    row.sack(cack=num - 1, rcvd=-(-num * SIZE // 256))
    assert row.next() == at.SEND_DATA


def test_with_nothing_outstanding_one_packet_may_always_go() -> None:
    row = make(cwnd=SIZE, whole_packet=True)
    row.post(3 * MTU)
    row.send(1)
    row.state.in_flight = 10**6  # the ends disagree about what a packet counts
    assert row.next() == at.SEND_NOTHING
    row.sack(cack=0)
    assert row.state.in_flight == 0
    row.state.in_flight = 10**6
    assert row.next() == at.SEND_DATA


def test_received_bytes_close_the_flight_whatever_order_sacks_come_in() -> None:
    row = make()
    row.post(1 << 20)
    row.send(8)
    row.sack(cack=-1, bitmap=0b1100, rcvd=33)
    after = row.state.in_flight
    assert after == 8 * SIZE - 33 * 256
    row.sack(cack=-1, bitmap=0b0100, rcvd=17)  # overtaken on its way
    assert after == row.state.in_flight
    row.state.rcvd = 0xFFFFFF
    row.sack(cack=-1, rcvd=1)  # the counter wraps at 24 bits
    assert after - 2 * 256 == row.state.in_flight


def test_an_ack_is_asked_for_when_nothing_can_follow() -> None:
    row = make(cwnd=3 * SIZE)
    row.post(8 * MTU)
    asked = [bool(flags & at.F_ASK) for _, _, flags in row.send(3)]
    assert asked == [False, True, True]  # with the second, one more packet would fill the window
    end = make()
    end.post(3 * MTU)
    assert [bool(flags & at.F_ASK) for _, _, flags in end.send(3)] == [False, False, True]
    window = make()
    window.post(1 << 20)
    assert [bool(flags & at.F_ASK) for _, _, flags in window.send(127)] == [False] * 126 + [True]


# --- retransmission ------------------------------------------------------------------------------------------------


def test_the_oldest_gap_goes_first_and_before_new_data_with_rtx_and_ask_on_another_ev() -> None:
    row = make()
    row.post(1 << 20)
    sent = row.send(10)
    for psn in (7, 3, 5):
        row.nack(psn)
    again = row.send(4)
    assert psns(again) == [3, 5, 7, 10]
    assert all(flags & at.F_RTX and flags & at.F_ASK for _, _, flags in again[:3])
    assert not again[3][2] & at.F_RTX
    slots = {psn: slot for psn, slot, _ in sent}
    assert all(slot != slots[psn] for psn, slot, _ in again[:3])


def test_a_nack_gives_the_bytes_back_once_and_a_late_sack_takes_the_packet_off_the_list() -> None:
    row = make()
    row.post(1 << 20)
    row.send(4)
    row.nack(2)
    row.nack(2)
    assert (row.state.in_flight, row.state.lost) == (3 * SIZE, 1)
    row.sack(cack=-1, bitmap=0b100)  # it had arrived: rcvd_bytes counts it, so the flight must too
    assert (row.state.in_flight, row.state.lost, row.state.num_spurious) == (4 * SIZE, 0, 1)
    row.nack(3)
    row.sack(cack=3)
    assert (row.state.lost, row.state.una, row.state.num_spurious) == (0, 4, 2)


def test_a_packet_goes_again_on_an_ev_that_did_not_fail_it() -> None:
    row = make(planes=1, evs_per_plane=2, evs_active=2)
    row.post(1 << 20)
    for psn in range(60):
        slot = row.send(1)[0][1]
        row.nack(psn, at.NACK_TRIMMED_LASTHOP)
        assert row.send(1)[0][:2] == (psn, 1 - slot)
        row.sack(cack=psn)


def test_a_lost_packet_waits_for_the_window() -> None:
    row = make(cwnd=2 * SIZE)
    row.post(1 << 20)
    row.send(2)
    row.nack(0)
    row.state.cwnd = SIZE
    assert (row.next(), law.ready(row.state)) == (at.SEND_NOTHING, 0)


@pytest.mark.parametrize(
    ("reason", "state"),
    [
        (at.NACK_TRIMMED, at.STATE_SKIP),
        (at.NACK_TRIMMED_LASTHOP, at.STATE_GOOD),
        (at.NACK_NO_BITMAP, at.STATE_GOOD),
        (at.NACK_NO_PKT_BUFFER, at.STATE_GOOD),
        (at.NACK_NO_RESOURCE, at.STATE_GOOD),
        (at.NACK_PSN_OOR_WINDOW, at.STATE_GOOD),
    ],
)
def test_every_nack_resends_and_only_a_trim_inside_the_fabric_speaks_against_the_ev(reason: int, state: int) -> None:
    row = make()
    row.post(1 << 20)
    slot = row.send(3)[1][1]
    row.nack(1, reason)
    assert row.state.lost == 1
    assert evs.ev_state(row.state, slot) == state


def test_a_nack_of_an_earlier_transmission_is_ignored_where_a_timestamp_tells() -> None:
    row = make()
    row.post(1 << 20)
    row.send(3, now=1_000_000)
    row.nack(1, now=1_010_000, echo=1_000_000)
    row.send(1, now=1_010_000)
    row.nack(1, now=1_012_000, echo=1_000_000)
    assert row.state.lost == 0
    row.nack(1, now=1_020_000, echo=1_010_000)
    assert row.state.lost == 1


def test_nacks_and_sacks_of_psns_never_sent_or_long_done_are_ignored() -> None:
    row = make()
    row.post(1 << 20)
    row.send(10)
    row.sack(cack=4)
    for psn in (0, 4, 10, 11, 9_999):
        row.nack(psn)
    assert row.state.lost == 0
    row.sack(cack=-1, base=-60, bitmap=(1 << 64) - 1)
    row.sack(cack=-1, base=8, bitmap=(1 << 64) - 1)
    assert (row.state.una, row.state.next) == (5, 10)
    row.sack(cack=500)
    assert row.state.una == 10
    row.send(80)
    assert all(window.is_in_flight(row.state, psn) for psn in range(10, 90))


def test_the_worked_example_of_the_specification() -> None:
    """PSN 0 to 11 sent, 5 and 8 lost: cack 4, offset 1, bitmap 0x76."""
    row = make(reorder_ns=1_000)
    row.post(12 * MTU)
    row.send(11, now=0)
    row.send(1, now=5_000)
    row.sack(now=10_000, cack=4, base=5, bitmap=0x76, psn=11, echo=5_000)
    assert row.state.una == 5
    assert psns(row.send(2, now=10_000)) == [5, 8]
    assert row.next(10_000) == at.SEND_NOTHING


@pytest.mark.parametrize(("lowers", "base"), [(True, 3_000), (False, 12_000)])
def test_a_nack_may_shorten_the_base_round_trip(lowers: bool, base: int) -> None:
    row = make(rtt_on_nack=lowers)
    row.post(1)
    row.send(1, now=1_000)
    row.nack(0, now=4_000)
    assert base == row.state.base_rtt


def test_psns_wrap_at_24_bits() -> None:
    row = make(psn=0xFFFFFD)
    row.post(6 * MTU)
    assert psns(row.send(6)) == [0xFFFFFD + i for i in range(6)]
    row.nack(1)  # as it stands on the wire
    row.sack(cack=0xFFFFFF, base=2, bitmap=1)
    assert row.state.una == 0x1000000
    assert psns(row.send(1)) == [0x1000001]
    row.sack(cack=2)
    assert row.state.done == 1


# --- losses inferred from order --------------------------------------------------------------------------------------


def staggered(**changes: object) -> Requestor:
    """Ten packets, 1 us apart from t = 0."""
    row = make(reorder_ns=4_000, **changes)
    row.post(1 << 20)
    for i in range(10):
        row.send(1, now=i * 1_000)
    return row


def test_a_hole_is_lost_when_a_packet_sent_the_reorder_window_later_has_arrived() -> None:
    row = staggered()
    row.sack(now=20_000, cack=-1, psn=6, base=0, bitmap=1 << 6, echo=6_000)
    assert psns(row.send(3, now=20_000)) == [0, 1, 2]
    assert row.next(20_000) == at.SEND_DATA
    assert row.out[at.D_PSN] == 10  # 3 was sent 3 us before: not lost yet
    assert row.state.num_lost == 3


def test_the_record_tells_the_send_time_where_no_timestamp_is_echoed() -> None:
    row = staggered()
    row.sack(now=20_000, cack=-1, psn=6, base=0, bitmap=1 << 6)
    assert row.state.num_lost == 3


def test_a_retransmission_is_judged_by_its_own_time() -> None:
    row = staggered()
    row.sack(now=20_000, cack=-1, psn=6, base=0, bitmap=1 << 6, echo=6_000)
    row.send(3, now=20_000)
    row.sack(now=21_000, cack=-1, psn=7, base=0, bitmap=1 << 7, echo=7_000)
    assert row.state.num_lost == 4  # 3 now; 0 to 2 were sent again at 20 us
    row.send(1, now=25_000)
    row.sack(now=40_000, cack=-1, psn=3, base=0, bitmap=1 << 3, info=at.INFO_RTX, echo=25_000)
    assert psns(row.send(8, now=40_000)) == [0, 1, 2, 4, 5, 8, 9, 10]


@pytest.mark.parametrize("age", [10_000, (1 << 23) + 10_000, (1 << 33) + 10_000])
def test_an_echo_tells_which_transmission_arrived_however_often_it_has_wrapped(age: int) -> None:
    start = 10**12
    for first in (True, False):
        row = make(reorder_ns=1 << 40)
        row.post(1)
        row.send(1, now=start)
        row.nack(0, now=start + 20_000)
        row.send(1, now=start + 20_000)
        echo = (start if first else start + 20_000) // 128 * 128 % (1 << 23)  # what a 16-bit field keeps of it
        base = row.state.base_rtt
        row.sack(now=start + 20_000 + age, psn=0, cack=-1, bitmap=0, echo=echo)
        assert (1 if first else 0) == row.state.num_spurious
        assert base - row.state.base_rtt == (0 if first else max(12_000 - age, 0))


def test_an_inferred_loss_counts_against_the_ev_and_without_trimming_cuts_the_window() -> None:
    row = staggered()
    slot = row.state.records[0] & 0xFF
    row.sack(now=20_000, cack=-1, psn=6, base=0, bitmap=1 << 6, echo=6_000)
    assert evs.nibble(row.state, slot) == evs.SUSPICION
    for trim, cut in ((True, 0), (False, 3 * SIZE)):
        other = staggered(cc_rule=at.CC_NSCC, trim=trim, cwnd=400_000, rate_mbps=400_000)
        other.p.adjust_ns = 1 << 40
        other.sack(now=20_000, cack=-1, psn=6, base=0, bitmap=1 << 6, echo=6_000)
        assert 400_000 - cut == other.state.cwnd


def test_each_mistake_widens_the_reorder_window_up_to_eight_times() -> None:
    row = staggered()
    row.sack(now=20_000, cack=-1, psn=6, base=0, bitmap=1 << 6, echo=6_000)
    row.send(3, now=20_000)
    row.sack(now=21_000, cack=-1, psn=0, base=0, bitmap=1, echo=0)  # the first transmission came after all
    assert row.state.num_spurious == 1
    assert losses.reorder_window(row.state) == 5_000
    row.state.reorder = 1_000
    assert losses.reorder_window(row.state) == 32_000


def test_no_sample_is_taken_where_two_transmissions_may_be_meant() -> None:
    row = staggered()
    row.nack(4, now=10_000)
    row.send(1, now=10_000)
    base = row.state.base_rtt
    row.sack(now=10_100, cack=-1, psn=4, base=4, bitmap=1)  # sent twice, rtx not echoed
    assert base == row.state.base_rtt
    row.nack(5, now=10_000)
    row.send(1, now=10_000)
    row.sack(now=12_000, cack=-1, psn=5, base=5, bitmap=1, info=at.INFO_RTX)  # the only retransmission: sure
    assert row.state.base_rtt == 2_000
    row.sack(now=12_000, cack=-1, psn=5, base=5, bitmap=1)  # known already: says nothing
    assert row.state.base_rtt == 2_000


# --- time --------------------------------------------------------------------------------------------------------


def test_a_packet_in_flight_for_a_whole_timeout_is_lost_and_its_ev_assumed_bad() -> None:
    row = make()
    row.post(1 << 20)
    first = row.send(1, now=0)
    row.send(1, now=1_000)
    assert row.state.deadline == RTO
    row.timer(RTO - 1)
    assert row.state.num_timeouts == 0
    row.timer(RTO)
    assert (row.state.num_timeouts, row.state.lost, row.state.retries) == (1, 1, 1)
    assert evs.ev_state(row.state, first[0][1]) == at.STATE_ASSUMED_BAD
    assert row.state.deadline == RTO + 1_000
    row.send(1, now=RTO)
    row.timer(RTO + 1_000)
    assert row.state.deadline == 2 * RTO  # the retransmission has the base timeout again


def test_news_of_others_does_not_put_off_the_timeout_of_a_packet() -> None:
    row = make()
    row.post(1 << 20)
    row.send(2, now=0)
    row.sack(now=RTO - 1, cack=-1, base=1, bitmap=1)
    assert row.state.deadline == RTO


def test_packets_that_time_out_together_are_one_round() -> None:
    row = make()
    row.post(1 << 20)
    row.send(5, now=0)
    row.timer(RTO)
    assert (row.state.num_timeouts, row.state.rounds, row.state.retries) == (5, 1, 1)


def test_timeouts_stay_for_the_linear_phase_then_double() -> None:
    row = make(retry_linear=3)
    row.post(1)
    waits = []
    now = 0
    for _ in range(7):
        row.send(1, now=now)
        waits.append((row.state.deadline - now) // RTO)
        now = row.state.deadline
        assert row.timer(now) == at.DID_NOTHING
    assert waits == [1, 1, 1, 1, 2, 4, 8]


def test_progress_restarts_the_count_and_the_timeout() -> None:
    row = make(retry_linear=1)
    row.post(2)
    now = 0
    for _ in range(5):
        row.send(1, now=now)
        now = row.state.deadline
        row.timer(now)
    row.post(1)
    row.send(2, now=now)
    assert row.state.deadline - now > 8 * RTO
    row.sack(now=now, cack=0)
    assert (row.state.retries, row.state.deadline - now) == (0, RTO)


def measure(row: Requestor, now: int, rtt: int) -> int:
    """One packet there and back; the timeout of the next one."""
    row.post(1)
    row.send(1, now=now)
    row.sack(now=now + rtt, cack=row.state.next - 1, psn=row.state.next - 1, base=row.state.next, bitmap=0)
    return timers.timeout(row.state)


def test_the_timeout_follows_round_trips_as_rfc_6298_says() -> None:
    row = make(rto_ns=1_000, rto_most_ns=1 << 30)
    assert timers.timeout(row.state) == 1_000
    assert measure(row, 0, 8_000) == 8_000 + 4 * 4_000  # (2.2): SRTT = R, RTTVAR = R / 2, RTO = SRTT + 4 RTTVAR
    assert measure(row, 100_000, 8_000) == 8_000 + 4 * 3_000  # (2.3): RTTVAR = 3/4 RTTVAR + 1/4 |SRTT - R'|
    assert measure(row, 200_000, 16_000) == 9_000 + 4 * 4_250  # SRTT = 7/8 SRTT + 1/8 R'
    for i in range(60):
        last = measure(row, 300_000 + 100_000 * i, 8_000)
    assert last < 8_000 + 100


def test_the_longest_round_trip_of_a_round_counts_at_once_and_as_one_sample() -> None:
    row = make(rto_ns=1_000, rto_most_ns=1 << 30)
    measure(row, 0, 8_000)  # the next round ends 8,000 ns later
    timers.learn_rtt(row.state, 9_000, 200)
    timers.learn_rtt(row.state, 9_100, 50_000)
    timers.learn_rtt(row.state, 9_200, 300)
    assert timers.timeout(row.state) == 50_000 + 4 * 4_000
    assert row.state.srtt == 8_000
    timers.learn_rtt(row.state, 17_000, 400)
    assert row.state.srtt == 8_000 + (50_000 - 8_000) // 8


def test_the_timeout_stays_between_its_floor_and_its_ceiling_or_does_not_move() -> None:
    row = make(rto_ns=20_000, rto_most_ns=60_000)
    assert measure(row, 0, 1_000) == 20_000
    assert measure(row, 100_000, 900_000) == 60_000
    fixed = make(rto_ns=20_000)
    assert measure(fixed, 0, 900_000) == 20_000


def test_a_peer_slower_than_the_timeout_is_waited_for_after_one_mistake() -> None:
    """Every packet would be sent twice, and so none measured, if the mistake itself taught nothing."""
    row = make(rto_ns=10_000, rto_most_ns=1 << 30)
    row.post(2 * MTU)
    row.send(2, now=0)
    row.timer(10_000)
    assert row.state.num_timeouts == 2
    row.sack(now=25_000, cack=1, psn=0, base=2, bitmap=0)  # both arrive after all, never sent again
    assert row.state.num_spurious == 2
    row.post(1)
    row.send(1, now=30_000)
    row.timer(55_000)
    assert row.state.num_timeouts == 2
    assert row.state.deadline == 30_000 + 10_000 + 4 * 5_000


def test_the_backoff_has_a_ceiling() -> None:
    row = make(retry_linear=0, rto_ns=1 << 35)
    row.state.rounds = 60
    row.post(1)
    row.send(1, now=5)
    assert row.state.deadline == 5 + (1 << 37)


@pytest.mark.parametrize(("exp", "fails_at"), [(0, 3), (2, 5), (25, None)])
def test_exhausted_retries_fail_the_queue_pair_and_25_means_for_ever(exp: int, fails_at: int | None) -> None:
    row = make(retry_linear=2, retry_exp=exp)
    row.post(1)
    results = []
    now = 0
    for _ in range(40):
        if row.next(now) == at.SEND_NOTHING:
            break
        now = row.state.deadline
        results.append(row.timer(now))
    if fails_at is None:
        assert len(results) == 40
    else:
        assert results == [at.DID_NOTHING] * (fails_at - 1) + [at.DID_FAIL]
        assert (row.state.error, row.state.deadline) == (at.ERROR_RETRY, at.FOREVER)


def test_a_nack_counts_as_a_retry_only_for_the_oldest_packet() -> None:
    row = make(retry_linear=2, retry_exp=0)
    row.post(1 << 20)
    row.send(20)
    for psn in range(1, 20):
        assert row.nack(psn) == at.DID_NOTHING
    assert row.state.retries == 0
    results = []
    for _ in range(3):
        results.append(row.nack(0))
        row.next()
    assert results == [at.DID_NOTHING, at.DID_NOTHING, at.DID_FAIL]


def test_a_timer_set_for_what_is_done_only_moves_on() -> None:
    row = make()
    row.post(2 * MTU)
    row.send(2, now=0)
    row.sack(now=1, cack=1)
    assert row.state.deadline == at.FOREVER
    row.state.deadline = 0
    before = row.state.num_timeouts
    row.timer(10**9)
    assert (before, row.state.deadline) == (row.state.num_timeouts, at.FOREVER)


def test_when_all_in_flight_is_lost_the_flight_is_empty() -> None:
    row = make(cwnd=2 * SIZE)
    row.post(1 << 20)
    row.send(2)
    row.state.in_flight += 77
    row.timer(row.state.deadline)
    assert (row.state.in_flight, row.state.rto_at) == (0, at.FOREVER)


# --- reliability probes ----------------------------------------------------------------------------------------------


def test_after_silence_a_probe_asks_what_arrived_and_its_sack_reveals_the_lost_tail() -> None:
    row = make(probe_ns=30_000, probe_retry_ns=50_000, reorder_ns=4_000)
    row.post(5 * MTU)
    row.send(5, now=0)
    assert row.state.deadline == 30_000
    row.timer(30_000)
    assert law.ready(row.state) == 1
    assert row.next(30_000) == at.SEND_PROBE
    probe_id = row.out[at.D_PSN]
    assert row.state.next == 5  # a probe consumes no PSN
    assert row.next(30_000) == at.SEND_NOTHING
    row.sack(now=40_000, cack=2, psn=probe_id, info=at.INFO_PROBE)
    assert psns(row.send(2, now=40_000)) == [3, 4]
    assert row.state.num_timeouts == 0


def test_a_probe_is_repeated_and_the_answer_to_an_older_one_proves_nothing() -> None:
    row = make(probe_ns=30_000, probe_retry_ns=50_000, reorder_ns=4_000)
    row.post(5 * MTU)
    row.send(5, now=0)
    ids = []
    for now in (30_000, 80_000):
        assert now == row.state.deadline
        row.timer(now)
        row.next(now)
        ids.append(row.out[at.D_PSN])
    row.sack(now=90_000, cack=2, psn=ids[0], info=at.INFO_PROBE)
    assert row.state.lost == 0
    row.sack(now=90_000, cack=2, psn=ids[1] - 0x10000, info=at.INFO_PROBE)  # signed on the wire
    assert row.state.lost == 2


def test_an_answer_to_a_probe_never_sent_and_an_absurd_round_trip_do_no_harm() -> None:
    row = make(reorder_ns=4_000, cc_rule=at.CC_NSCC)
    row.post(5 * MTU)
    row.send(5, now=10**15)
    row.sack(now=10**15 + 1, cack=-1, psn=0, info=at.INFO_PROBE)
    assert (row.state.lost, row.state.avg_delay) == (0, 0)
    row.sack(now=10**15, cack=-1, psn=4, base=4, bitmap=1, echo=0, mark=at.M_SKIP_ONCE)
    assert row.state.avg_delay < (1 << 30 << 10) // 80


def test_news_puts_the_probe_off_and_completion_cancels_it() -> None:
    row = make(probe_ns=30_000)
    row.post(5 * MTU)
    row.send(5, now=0)
    row.sack(now=29_000, cack=0)
    assert row.state.deadline == 59_000
    row.timer(59_000)
    row.sack(now=59_500, cack=4)
    assert (row.state.probe_due, row.state.deadline) == (0, at.FOREVER)


def test_a_probe_that_finds_no_free_port_stays_due() -> None:
    row = make(probe_ns=30_000)
    row.post(1)
    row.send(1)
    row.timer(30_000)
    assert row.next(30_000, ports=0) == at.SEND_NOTHING
    assert row.next(30_000) == at.SEND_PROBE


# --- probing bad EVs -------------------------------------------------------------------------------------------------


def lose_ev(row: Requestor, now: int = 0) -> int:
    """Send a packet, let its EV be dropped by the peer's word, acknowledge the packet."""
    row.post(1)
    psn, slot, _ = row.send(1, now=now)[0]
    row.sack(now=now, cack=psn, slot=slot, mark=at.M_ALWAYS_SKIP)
    return slot


def test_a_bad_ev_is_probed_and_enough_answers_bring_it_back() -> None:
    row = make(network_rtt_ns=900, ev_probe_ns=1_000, ev_probe_ok=2)
    slot = lose_ev(row)
    assert evs.ev_state(row.state, slot) == at.STATE_ASSUMED_BAD
    for now in (1_000, 2_000):
        assert now == row.state.deadline
        row.timer(now)
        assert row.next(now) == at.SEND_EV_PROBE
        assert row.out[at.D_EV] == slot
        law.on_ev_reply(row.state, now, row.out[at.D_PSN], at.M_NONE)
        law.on_ev_reply(row.state, now, row.out[at.D_PSN], at.M_NONE)  # doubled: counts once
    assert evs.ev_state(row.state, slot) == at.STATE_STANDBY
    assert row.state.deadline == at.FOREVER


@pytest.mark.parametrize("seed", range(8))
def test_ids_of_probes_tell_the_two_halves_apart(seed: int) -> None:
    """One endpoint response serves both: a requestor's ids are even, a responder's odd."""
    row, other = Requestor(profile(network_rtt_ns=900, ev_probe_ns=1_000), seed=seed), Responder(profile(), seed=seed)
    lose_ev(row)
    for now in (1_000, 2_000, 3_000):
        row.timer(now)
        row.next(now)
        other.state.probe_due = 1
        law.next_control(other.state, now, ALL, other.out)
        assert (row.out[at.D_PSN] & 1, other.out[at.D_PSN] & 1) == (0, 1)


def test_an_unanswered_or_foreign_probe_does_not_count() -> None:
    row = make(network_rtt_ns=900, ev_probe_ns=1_000, ev_probe_ok=2)
    slot = lose_ev(row)
    row.timer(1_000)
    law.on_ev_reply(row.state, 1_000, row.state.evp_id, at.M_NONE)  # not even sent
    row.next(1_000)
    law.on_ev_reply(row.state, 1_000, row.state.evp_id, at.M_NONE)
    assert evs.nibble(row.state, slot) == 1
    row.timer(2_000)
    row.next(2_000)
    law.on_ev_reply(row.state, 2_000, row.state.evp_id ^ 2, at.M_NONE)
    row.timer(3_000)
    assert evs.nibble(row.state, slot) == 0


def test_ev_probes_wait_for_the_port_of_their_plane_and_do_not_hold_up_data() -> None:
    row = make(network_rtt_ns=900, ev_probe_ns=1_000)
    slot = lose_ev(row)
    plane = 1 << (slot >> 3)
    row.timer(1_000)
    row.post(1)
    assert row.next(1_000, ports=0xF & ~plane) == at.SEND_DATA
    assert row.next(1_000, ports=plane) == at.SEND_EV_PROBE
    assert (row.out[at.D_EV], row.out[at.D_PLANE]) == (slot, slot >> 3)


def test_no_probe_while_the_bad_evs_plane_is_closed() -> None:
    row = make(network_rtt_ns=900, ev_probe_ns=1_000)
    slot = lose_ev(row)
    law.on_peer_ports(row.state, 0xF & ~(1 << (slot >> 3)), 1, (slot >> 3) ^ 1)
    row.timer(1_000)
    assert (row.state.evp_state, row.state.deadline) == (at.EVP_IDLE, 2_000)


def test_a_reliability_probe_answered_on_a_bad_ev_counts_for_it() -> None:
    row = make(ev_probe_ok=1)
    slot = lose_ev(row)
    row.sack(cack=0, slot=slot, info=at.INFO_PROBE)
    assert evs.ev_state(row.state, slot) == at.STATE_STANDBY


# --- acknowledgements of messages, and ends ------------------------------------------------------------------------


def test_a_transport_ack_completes_messages_up_to_its_number() -> None:
    row = make()
    for _ in range(3):
        row.post(2 * MTU)
    row.send(6)
    assert law.on_ack(row.state, 0, 1) == at.DID_COMPLETE
    assert (row.state.done, row.state.una) == (2, 4)
    for msn in (1, 0, 3, 0xFFFFFF):
        assert law.on_ack(row.state, 0, msn) == at.DID_NOTHING
    assert row.state.done == 2


def test_penalty_and_restore_reach_congestion_control() -> None:
    row = make(cc_rule=at.CC_NSCC, cwnd=75_776, rate_mbps=400_000)
    row.state.last_adjust = 10**9
    row.sack(now=10**9, cack=-1, rcvd=16, info=64 << at.INFO_PEN_SHIFT)
    assert row.state.cwnd == 73_728
    row.sack(now=10**9, cack=-1, rcvd=16, info=at.INFO_RESTORE)
    assert row.state.cwnd == 75_776


def test_a_sack_names_no_ev_of_ours() -> None:
    row = make()
    row.post(1)
    row.send(1)
    before = row.state.ev_active
    row.sack(cack=0, slot=at.INFO_EV_MASK, mark=at.M_ALWAYS_SKIP)
    assert before == row.state.ev_active


def test_the_fatal_nack_ends_the_queue_pair_and_then_nothing_moves() -> None:
    row = make(probe_ns=10)
    row.post(2)
    slot = row.send(1)[0][1]
    assert row.nack(0, at.NACK_UNEXP_EVENT, slot=slot) == at.DID_FAIL
    assert row.state.error == at.ERROR_REMOTE
    before = row.snapshot()
    assert row.post(1) == 0
    assert row.next() == at.SEND_NOTHING
    assert law.ready(row.state) == 0
    assert row.sack(cack=0) == row.nack(0) == row.timer(10**12) == at.DID_NOTHING
    assert law.on_ack(row.state, 0, 0) == at.DID_NOTHING
    assert row.snapshot() == before


def test_all_ports_gone_is_fatal_and_a_change_is_announced_until_answered() -> None:
    row = make()
    assert law.on_ports(row.state, 0, 0b0111, 1) == at.DO_CONTROL
    assert law.ready(row.state) == 1
    assert row.next(5) == at.SEND_PORT_STATUS
    number, mask = row.out[at.D_PSN], row.out[at.D_OFFSET]
    assert mask == 0b0111
    assert row.out[at.D_PLANE] != 3
    assert row.next(5) == at.SEND_NOTHING
    assert row.state.deadline == 5 + RTO
    row.timer(5 + RTO)
    assert row.next(5 + RTO) == at.SEND_PORT_STATUS
    assert row.out[at.D_PSN] == number
    law.on_status_reply(row.state, number + 1)
    assert row.state.status_at < at.FOREVER
    law.on_status_reply(row.state, number)
    assert row.state.status_at == at.FOREVER
    assert law.on_ports(row.state, 9, 0b0111, 1) == at.DID_NOTHING  # no change
    assert law.on_ports(row.state, 9, 0b0011, 0) == at.DID_NOTHING  # said by the other half
    assert law.on_peer_ports(row.state, 0b1110, 1, 1) == at.DID_NOTHING
    assert law.on_ports(row.state, 9, 0b0001, 1) == at.DID_FAIL  # the one that is left, the peer has not
    assert row.state.error == at.ERROR_PORTS
    alone = make()
    assert law.on_ports(alone.state, 0, 0, 1) == at.DID_FAIL
    assert alone.state.error == at.ERROR_PORTS


def test_an_update_of_the_peers_ports_that_was_overtaken_is_no_news() -> None:
    row = make()

    def hear(up: int, number: int) -> int:
        law.on_peer_ports(row.state, up, number, up.bit_length() - 1)
        return evs.open_planes(row.state)

    assert hear(0b0001, 0xFFFE) == 0b0001  # the first one counts, whatever its number
    assert hear(0b0011, 0xFFFE) == 0b0011  # said again
    assert hear(0b0111, 1) == 0b0111  # ids wrap
    assert hear(0b1000, 0xFFFF) == 0b0111
    assert hear(0b1000, 0) == 0b0111
    assert hear(0b1000, 0x8001) == 0b0111
    assert hear(0b1000, 0x8000) == 0b1000
    assert hear(0b0110, 1) == 0b1000


def test_a_late_answer_to_a_status_stops_its_repetition() -> None:
    row = make()
    law.on_ports(row.state, 0, 0b0111, 1)
    row.next(0)
    row.timer(RTO)
    assert law.ready(row.state) == 1
    law.on_status_reply(row.state, row.out[at.D_PSN])
    assert (law.ready(row.state), row.next(RTO)) == (0, at.SEND_NOTHING)


def test_a_queue_pair_that_failed_has_no_deadline() -> None:
    row = make()
    row.post(1)
    row.send(1)
    assert row.state.deadline == RTO
    law.on_ports(row.state, 0, 0, 1)
    assert row.timer(RTO) == at.DID_NOTHING
    assert row.state.deadline == at.FOREVER


def test_a_status_that_finds_no_free_port_stays_due() -> None:
    row = make()
    law.on_ports(row.state, 0, 0b0111, 1)
    assert row.next(0, ports=0b1000) == at.SEND_NOTHING
    assert row.next(0, ports=0b0010) == at.SEND_PORT_STATUS


def test_slot_zero_is_as_good_as_any() -> None:
    row = make(planes=1, evs_per_plane=1, evs_active=1, probe_ns=1_000, network_rtt_ns=900, ev_probe_ns=1_000)
    row.post(1)
    assert row.next() == at.SEND_DATA
    row.state.status |= 1
    row.timer(1_000)
    assert [row.next(1_000) for _ in range(3)] == [at.SEND_PORT_STATUS, at.SEND_PROBE, at.SEND_NOTHING]
    row.state.evp_state = at.EVP_DUE
    assert row.next(1_000) == at.SEND_EV_PROBE
    assert row.out[at.D_EV] == 0


def test_nothing_to_send_leaves_the_row_as_it_was() -> None:
    row = make()
    row.post(1)
    before = row.snapshot()
    assert row.next(0, ports=0) == at.SEND_NOTHING
    assert row.snapshot() == before
    assert law.ready(row.state) == 1


def test_good_sacks_refresh_the_reverse_ev_of_the_same_queue_pair() -> None:
    shared = profile()
    rows = state.allocate([shared], 1, 1)
    tx = law.init_tx(rows.plain(), rows.tx(0), 0, 1, 0)
    rx = law.init_rx(rows.plain(), rows.rx(0), 0, 2, 0)
    tx.responder_address = rx.address
    rx.reverse[2] = 16
    for slot, mark in ((13, at.M_NONE), (22, at.M_SKIP_ONCE)):
        law.on_sack(tx, 500, sack_block(slot=slot, mark=mark))
    assert rx.reverse[1] == 13
    assert rx.reverse[2] == 16
    assert rx.probe_at == 500 + rx.profile.reverse_probe_ns

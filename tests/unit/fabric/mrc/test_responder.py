"""The receiving half: what is placed, what is answered, what a SACK reports, in which order messages complete."""

from __future__ import annotations

import random

import pytest

from fairlead.fabric.mrc import law
from fairlead.fabric.mrc import layout as at
from fairlead.fabric.mrc.profile import Profile
from support.mrc_rows import ALL, Responder

SIZE = 4096 + Profile.mrc().overhead
PLACE, SACK, NACK, ACK, DONE = at.DO_PLACE, at.DO_SACK, at.DO_NACK, at.DO_ACK, at.DID_COMPLETE


def make(*, psn: int = 0, **changes: object) -> Responder:
    base = {"planes": 4, "evs_per_plane": 8, "evs_active": 4, "mpr": 128, "sack_bytes": 1 << 30, "reverse_probe_ns": 0}
    return Responder(Profile.mrc(**{**base, "message_ack": False, **changes}), psn=psn)


def reason(row: Responder) -> int:
    return row.block[at.S_INFO] >> at.INFO_REASON_SHIFT & 0xFF


def mark(row: Responder) -> int:
    return row.block[at.S_INFO] >> at.INFO_M_SHIFT & 3


# --- placement and window ------------------------------------------------------------------------------------------


def test_packets_are_placed_in_any_order_and_once() -> None:
    row = make()
    order = [5, 0, 3, 1, 2, 4]
    assert [row.data(psn) & PLACE for psn in order] == [PLACE] * 6
    assert row.state.next == 6
    assert [row.data(psn) for psn in order] == [SACK] * 6  # duplicates: acknowledged, not placed
    assert (row.state.num_duplicates, row.state.next, row.state.rcvd) == (6, 6, 6 * SIZE)


@pytest.mark.parametrize("psn", [0, 0xFFFF80])
def test_the_window_ends_before_cack_plus_mpr(psn: int) -> None:
    row = make(psn=psn)
    assert row.data((psn + 127) & 0xFFFFFF) == NACK
    assert reason(row) == at.NACK_PSN_OOR_WINDOW
    assert row.data((psn + 126) & 0xFFFFFF) == PLACE
    assert row.data(psn) == PLACE
    assert row.data((psn + 127) & 0xFFFFFF) == PLACE


def test_numbers_far_behind_are_duplicates() -> None:
    row = make(psn=1000)
    assert row.data(1000 - 0x7FFFFF) == SACK
    assert row.state.next == 1000


def test_the_ring_holds_no_ghosts_after_many_windows() -> None:
    row = make()
    rng = random.Random(3)
    base = 0
    for _ in range(60):
        psns = list(range(base, base + 100))
        rng.shuffle(psns)
        assert all(row.data(psn) & PLACE for psn in psns)
        base += 100
        assert base == row.state.next
        assert row.state.out_of_order == 0


# --- answers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "did"),
    [
        (0, PLACE),
        (at.F_ECN, PLACE | SACK),
        (at.F_RTX, PLACE | SACK),
        (at.F_ASK, PLACE | SACK),
        (at.F_LAST, PLACE | DONE),
        (at.F_TRIMMED, NACK),
        (at.F_NO_ACCESS, NACK),
        (at.F_NO_RESOURCE, NACK),
    ],
)
def test_what_each_flag_asks_for(flags: int, did: int) -> None:
    row = make()
    assert row.data(0, flags) == did
    assert (row.state.next == 1) == bool(did & PLACE)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (at.F_TRIMMED, at.NACK_TRIMMED),
        (at.F_TRIMMED | at.F_LAST_HOP, at.NACK_TRIMMED_LASTHOP),
        (at.F_NO_ACCESS, at.NACK_UNEXP_EVENT),
        (at.F_NO_RESOURCE, at.NACK_NO_RESOURCE),
    ],
)
def test_reasons(flags: int, expected: int) -> None:
    row = make()
    row.data(3, flags, slot=9)
    assert (row.block[at.S_PSN], reason(row)) == (3, expected)
    assert row.block[at.S_INFO] & at.INFO_EV_MASK == 9


def test_a_duplicate_is_acknowledged_whatever_else_is_wrong_with_it() -> None:
    row = make()
    row.data(0)
    for flags in (at.F_TRIMMED, at.F_NO_ACCESS, at.F_NO_RESOURCE, at.F_ASK, at.F_IMM):
        assert row.data(0, flags) == SACK


def test_bytes_trigger_a_sack_and_small_packets_count_as_a_kilobyte() -> None:
    row = make(sack_bytes=8192)
    assert [row.data(psn, num_bytes=4096) for psn in range(4)] == [PLACE, PLACE | SACK, PLACE, PLACE | SACK]
    small = make(sack_bytes=4096)
    assert [small.data(psn, num_bytes=1) & SACK for psn in range(8)] == [0, 0, 0, SACK, 0, 0, 0, SACK]


def test_a_request_is_answered_again_when_the_last_gap_closes() -> None:
    row = make()
    assert row.data(2, at.F_ASK) == PLACE | SACK
    assert row.data(0) == PLACE
    assert row.data(1) == PLACE | SACK
    assert row.cack == 2
    assert row.data(3) == PLACE


def test_the_reference_rule_answers_the_first_packet_too() -> None:
    row = make(sack_rule=at.SACK_UEC)
    assert [row.data(psn) & SACK for psn in range(3)] == [SACK, 0, 0]


def test_a_sack_echoes_ev_mark_rtx_and_counts() -> None:
    row = make(dynamic_mpr=True)
    law.on_pressure(row.state, 64)
    row.state.restore = 1
    row.data(3, slot=1)
    row.data(5, at.F_ECN | at.F_RTX, slot=17)
    info = row.block[at.S_INFO]
    assert info & at.INFO_EV_MASK == 17
    assert mark(row) == at.M_SKIP_ONCE
    assert info & at.INFO_RTX
    assert info & at.INFO_RESTORE
    assert info >> at.INFO_PEN_SHIFT & 0x7F == 64
    assert info >> at.INFO_OOO_SHIFT & 0x7FFF == 2
    assert info >> at.INFO_MPR_SHIFT & 0xFF == 1
    assert row.block[at.S_PSN] == 5
    assert row.block[at.S_RCVD] == -(-2 * SIZE // 256)
    row.data(6, at.F_ASK)
    assert not row.block[at.S_INFO] & (at.INFO_RESTORE | at.INFO_RTX)  # restore is said once


def test_a_receiver_that_has_room_again_says_so() -> None:
    row = make()
    said = []
    for psn, penalty in enumerate((0, 64, 32, 0, 0)):
        law.on_pressure(row.state, penalty)
        row.data(psn, at.F_ASK)
        said.append((row.block[at.S_INFO] >> at.INFO_PEN_SHIFT & 0x7F, bool(row.block[at.S_INFO] & at.INFO_RESTORE)))
    assert said == [(0, False), (64, False), (32, False), (0, True), (0, True)]


def test_received_bytes_wrap_at_24_bits_of_256() -> None:
    row = make()
    row.state.rcvd = (1 << 32) - SIZE
    row.data(0, at.F_ASK)
    assert row.block[at.S_RCVD] == 0


# --- what a SACK reports -------------------------------------------------------------------------------------------


def test_the_worked_example_of_the_specification() -> None:
    row = make()
    for psn in (0, 1, 2, 3, 4, 6, 7, 9, 10):
        row.data(psn)
    row.data(11, at.F_ASK)
    assert row.cack == 4
    assert row.block[at.S_BASE] - row.cack == 1
    assert row.block[at.S_HIGH] << 32 | row.block[at.S_LOW] == 0x76


def test_each_arrival_is_reported_at_least_once_even_in_a_wide_window() -> None:
    rng = random.Random(5)
    for trial in range(30):
        row = make(mpr=512, sack_bytes=3 * 4096)
        psns = list(range(1, 500))
        rng.shuffle(psns)
        told: set[int] = set()
        for psn in psns:
            if row.data(psn, at.F_ECN if rng.random() < 0.05 else 0) & SACK:
                told |= row.reported()
        law.on_probe(row.state, 1, 0, 0, -1, row.block)
        told |= row.reported()
        for _ in range(8):  # what came last may need a few more SACKs
            row.data(500 + trial % 2, at.F_RTX)
            told |= row.reported()
        assert set(psns) <= told


def test_a_sack_reports_nothing_that_has_not_come() -> None:
    rng = random.Random(6)
    for rule in (at.SACK_MRC, at.SACK_UEC):
        for mpr in (128, 256):
            row = make(mpr=mpr, sack_rule=rule, sack_bytes=1)
            come: set[int] = set()
            for _ in range(2_000):
                psn = row.state.next + rng.randrange(-5, mpr - 1)
                flags = rng.choice((0, 0, at.F_ASK, at.F_ECN))
                if psn < 0 or not row.data(psn, flags) & SACK:
                    continue
                come.add(psn)
                assert all(n in come for n in range(row.cack - 3, row.cack + 1) if n >= 0)
                assert row.cack + 1 not in come
                assert {n for n in row.reported() if n > row.cack} <= come


def test_the_bitmap_ends_with_the_highest_psn_received() -> None:
    row = make()
    row.data(70, at.F_ASK)
    assert row.block[at.S_BASE] == 7
    assert row.block[at.S_HIGH] == 1 << 31
    assert row.block[at.S_INFO] >> at.INFO_MPR_SHIFT == 0  # dynamic MPR is off


def test_a_lost_sack_is_made_good_by_the_next_duplicate() -> None:
    row = make()
    row.data(70)
    row.data(5, at.F_ASK)  # this SACK is lost
    row.data(100, at.F_ASK)
    assert 5 not in row.reported()
    row.data(5)
    assert 5 in row.reported()


def test_the_reference_rule_takes_the_base_from_the_trigger() -> None:
    row = make(sack_rule=at.SACK_UEC)
    row.data(0)
    for flags, base in ((at.F_ECN, 80), (at.F_ASK, 81), (at.F_RTX, 82 - 63)):
        row.data(base if flags != at.F_RTX else 82, flags)
        assert row.block[at.S_BASE] == base
    row.data(10, at.F_RTX)
    assert row.block[at.S_BASE] == 2  # expected + 1
    row.data(82, at.F_ASK)  # a duplicate
    assert row.block[at.S_BASE] == 82 - 63


def test_a_reliability_probe_is_answered_with_all_that_is_known() -> None:
    row = make()
    row.data(0)
    row.data(4)
    row.data(100, at.F_ASK)
    assert law.on_probe(row.state, 77, at.F_ECN, 12, -1, row.block) == SACK
    assert row.block[at.S_PSN] == 77
    assert row.block[at.S_INFO] & at.INFO_PROBE
    assert mark(row) == at.M_SKIP_ONCE
    assert row.cack == 0
    assert 4 in row.reported()


# --- messages and immediates -----------------------------------------------------------------------------------------


def test_messages_complete_in_order_whenever_their_packets_come() -> None:
    row = make(message_ack=True)
    assert row.data(3, at.F_LAST) == PLACE
    assert row.data(1, at.F_LAST) == PLACE
    assert row.data(0) == PLACE | DONE | ACK
    assert row.state.done == 1
    assert row.data(2) == PLACE | DONE | ACK
    assert row.state.done == 2


def test_immediates_are_counted_until_their_turn() -> None:
    row = make(max_wimm_dest=2)
    row.data(3, at.F_LAST | at.F_IMM)
    row.data(1, at.F_LAST | at.F_IMM)
    assert (row.state.wimm, row.state.wimm_done) == (2, 0)
    row.data(0)
    assert (row.state.wimm, row.state.wimm_done) == (1, 1)
    assert row.data(4, at.F_LAST | at.F_IMM) == PLACE


def test_one_immediate_too_many_is_fatal_on_both_sides() -> None:
    row = make(max_wimm_dest=1)
    row.data(3, at.F_LAST | at.F_IMM)
    assert row.data(5, at.F_LAST | at.F_IMM) == at.DID_FAIL | NACK
    assert reason(row) == at.NACK_UNEXP_EVENT
    assert row.state.error == at.ERROR_WIMM
    before = row.snapshot()
    assert row.data(0) == law.on_probe(row.state, 1, 0, 0, -1, row.block) == at.DID_NOTHING
    assert law.next_control(row.state, 0, ALL, row.out) == at.SEND_NOTHING
    assert row.snapshot() == before


# --- the way back --------------------------------------------------------------------------------------------------


def test_answers_take_the_plane_the_packet_came_by_and_its_reverse_ev() -> None:
    row = make()
    reverse = [row.state.reverse[plane] for plane in range(4)]
    assert [slot >> 3 for slot in reverse] == [0, 1, 2, 3]
    assert [law.control_slot(row.state, plane << 3, ALL) for plane in range(4)] == reverse
    law.on_ports(row.state, 0, 0b1101, 0)
    others = [law.control_slot(row.state, 1 << 3, ALL) >> 3 for _ in range(6)]
    assert set(others) == {0, 2, 3}
    assert law.control_slot(row.state, 2 << 3, 0b0001) == reverse[0]
    assert law.control_slot(row.state, 2 << 3, 0b0010) == -1


def test_the_echo_rule_answers_on_the_ev_itself() -> None:
    row = make(reverse_rule=at.REVERSE_ECHO)
    assert law.control_slot(row.state, 21, ALL) == 21
    law.on_peer_ports(row.state, 0b0001, 1, 0)
    assert law.control_slot(row.state, 21, ALL) == 5  # same number, the plane that is open


def test_while_receiving_one_random_ev_is_probed_at_a_time_and_a_good_answer_makes_it_the_reverse_ev() -> None:
    row = make(reverse_probe_ns=12_000)
    probed = set()
    for i in range(64):
        now = i * 12_000
        assert row.data(2 * i, now=now) & at.DO_CONTROL
        assert law.next_control(row.state, now, ALL, row.out) == at.SEND_EV_PROBE
        assert law.next_control(row.state, now, ALL, row.out) == at.SEND_NOTHING
        slot, number = row.out[at.D_EV], row.out[at.D_PSN]
        assert not row.data(2 * i + 1, now=now + 11_999) & at.DO_CONTROL
        before = row.state.reverse[slot >> 3]
        law.on_reverse_reply(row.state, now, number, at.M_SKIP_ONCE)
        law.on_reverse_reply(row.state, now, number + 2, at.M_NONE)
        assert row.state.reverse[slot >> 3] == before
        law.on_reverse_reply(row.state, now, number, at.M_NONE)
        assert row.state.reverse[slot >> 3] == slot
        probed.add(slot)
    assert len(probed) > 20
    assert law.next_control(row.state, 10**9, 0, row.out) == at.SEND_NOTHING


def test_a_responder_announces_its_ports_and_says_it_again() -> None:
    row = make(rto_ns=1_000)
    assert law.on_ports(row.state, 0, 0b0111, 1) == at.DO_CONTROL
    assert row.data(0) & at.DO_CONTROL
    assert law.next_control(row.state, 10, ALL, row.out) == at.SEND_PORT_STATUS
    assert row.out[at.D_OFFSET] == 0b0111
    assert row.state.deadline == 1_010
    assert law.on_rx_timer(row.state, 1_009) == at.DID_NOTHING
    assert row.state.deadline == 1_010
    assert law.on_rx_timer(row.state, 1_010) == at.DO_CONTROL
    law.next_control(row.state, 1_010, ALL, row.out)
    law.on_status_reply(row.state, row.out[at.D_PSN])
    assert law.on_rx_timer(row.state, 3_000) == at.DID_NOTHING
    assert row.state.deadline == at.FOREVER


def test_a_responder_that_failed_has_no_deadline() -> None:
    row = make(rto_ns=1_000)
    law.on_ports(row.state, 0, 0b0111, 1)
    law.next_control(row.state, 10, ALL, row.out)
    law.on_ports(row.state, 20, 0, 1)
    assert row.state.error == at.ERROR_PORTS
    assert law.on_rx_timer(row.state, 1_010) == at.DID_NOTHING
    assert row.state.deadline == at.FOREVER


def test_the_mark_of_an_ev_probe_is_what_its_packet_met() -> None:
    assert [law.probe_mark(flags) for flags in (0, at.F_ECN)] == [at.M_NONE, at.M_SKIP_ONCE]

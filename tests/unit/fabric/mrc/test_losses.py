"""Losses told by time where the window is full, and by plane: found together, left at once, back at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import pytest

from fairlead.errors import FabricError
from fairlead.fabric.mrc import evs, law, losses, paths, timers
from fairlead.fabric.mrc import layout as at
from fairlead.fabric.mrc.profile import Profile
from support.mrc_rows import Requestor

PLANES, EVS = 4, 8


def sent_by(num: int, **changes: object) -> tuple[Requestor, list[tuple[int, int]]]:
    """A requestor that has sent so many packets: PSN and plane of each."""
    own = {"planes": PLANES, "evs_per_plane": EVS, "evs_active": EVS, "plane_losses": 3, "probe_ns": 0}
    row = Requestor(Profile.mrc(**{**own, **changes}))
    row.post(num * 4096)
    return row, [(psn, slot // EVS) for psn, slot, _ in row.send(num)]


def lose(row: Requestor, psn: int) -> None:
    slot = row.state.records[psn] & at.REC_EV_MASK
    losses.judge_plane(row.state, psn, slot)


def bad(row: Requestor) -> Counter[int]:
    """EVs that are bad, by plane."""
    slots = [s for s in range(PLANES * EVS) if evs.ev_state(row.state, s) == at.STATE_ASSUMED_BAD]
    return Counter(slot // EVS for slot in slots)


def psns(sent: Collection[tuple[int, int]], plane: int) -> list[int]:
    return [psn for psn, own in sent if own == plane]


def test_three_losses_and_nothing_that_arrives_are_a_plane() -> None:
    row, sent = sent_by(16)
    lost = psns(sent, 2)[:3]
    for psn in lost[:2]:
        lose(row, psn)
    assert not bad(row)
    lose(row, lost[2])
    assert bad(row) == {2: EVS}
    assert row.state.planes_ok == 0b1011


def test_what_arrives_over_the_plane_in_between_clears_it() -> None:
    row, sent = sent_by(20)
    first, second, arrives, *later = psns(sent, 1)
    lose(row, first)
    lose(row, second)
    row.sack(base=0, bitmap=1 << arrives)
    lose(row, later[0])
    lose(row, later[1])
    assert not bad(row)


def test_what_was_sent_before_the_first_loss_proves_nothing_for_the_plane() -> None:
    row, sent = sent_by(20)
    arrives, *lost = psns(sent, 1)
    row.sack(base=0, bitmap=1 << arrives)
    for psn in lost[:3]:
        lose(row, psn)
    assert bad(row) == {1: EVS}


def test_what_was_acknowledged_and_left_the_window_counts_as_arrived() -> None:
    row, sent = sent_by(20)
    first, arrives, *later = psns(sent, 1)
    lose(row, first)
    row.sack(cack=arrives)
    for psn in later[:2]:
        lose(row, psn)
    assert not bad(row)


def test_losses_on_planes_in_turn_are_no_cut() -> None:
    row, sent = sent_by(24)
    for pair in zip(psns(sent, 0), psns(sent, 3), strict=True):
        for psn in pair:
            lose(row, psn)
    assert not bad(row)


def test_the_last_plane_is_never_given_up() -> None:
    row, sent = sent_by(40, ev_min_active=0)
    for plane in range(PLANES):
        for psn in psns(sent, plane)[:5]:
            lose(row, psn)
    assert len(bad(row)) == PLANES - 1


def test_the_protocol_itself_judges_each_ev_alone() -> None:
    row, sent = sent_by(40, plane_losses=0)
    for psn in psns(sent, 2):
        lose(row, psn)
    assert not bad(row)
    assert Profile.mrc().plane_losses == 0 < Profile.software(1_000_000).plane_losses


def cut(**changes: object) -> Requestor:
    row, sent = sent_by(16, **changes)
    for psn in psns(sent, 2)[:3]:
        lose(row, psn)
    assert bad(row) == {2: EVS}
    return row


def test_one_ev_that_answers_its_probes_brings_the_whole_plane_back() -> None:
    row = cut(ev_probe_ns=20_000, ev_probe_ok=3)
    row.sack(cack=15)  # what was lost has arrived by other planes; only the probes are left
    row.timer(0)
    for answers in range(3):
        assert bad(row) == {2: EVS}, answers
        while row.next(row.state.deadline) != at.SEND_EV_PROBE:
            row.timer(row.state.deadline)
        law.on_ev_reply(row.state, 0, row.out[at.D_PSN], at.M_NONE)
    assert not bad(row)
    assert row.state.planes_ok == 0b1111


def test_a_packet_that_was_only_late_brings_it_back_too() -> None:
    row = cut()
    paths.forgive(row.state, 2 * EVS + 5)
    assert not bad(row)


def test_evs_that_were_bad_by_themselves_stay_so_where_their_plane_was_never_cut() -> None:
    row, _ = sent_by(1, ev_min_active=0)
    for slot in (8, 9, 10):
        evs.assume_bad(row.state, slot)
    paths.forgive(row.state, 8)
    assert bad(row) == {1: 2}


@pytest.mark.parametrize("num", [-1, 1 << 16])
def test_a_number_of_losses_that_means_nothing_is_refused(num: int) -> None:
    with pytest.raises(FabricError, match="plane_losses"):
        Profile.mrc(plane_losses=num)


# --- the timer ---------------------------------------------------------------------------------------------------


REORDER, TRIP = 6_000, 10_000
LOST_AT = TRIP + timers.LATE_GAIN * TRIP // 2 + REORDER
"""After one sample a round trip is known to half of itself (RFC 6298)."""


def full_window(**changes: object) -> Requestor:
    """Eight packets, one each microsecond; all but the first have arrived a round trip later, and no more can go."""
    own = {"reorder_ns": REORDER, "reorder_timer": True, "probe_ns": 1_000_000, "rto_ns": 10_000_000}
    row = Requestor(Profile.mrc(**{**own, **changes}))
    row.post(8 * 4096)
    for i in range(8):
        row.send(1, now=1_000 * i)
    for i in range(1, 5):
        row.sack(now=1_000 * i + TRIP, psn=i, base=0, bitmap=(2 << i) - 2, echo=1_000 * i)
    return row


def test_a_hole_that_a_full_window_waits_for_is_lost_when_time_is_up() -> None:
    row = full_window()
    assert row.state.deadline == LOST_AT
    row.timer(LOST_AT - 1)
    assert row.state.num_lost == 0
    row.timer(LOST_AT)
    assert row.state.num_lost == 1
    assert row.next(LOST_AT) == at.SEND_DATA
    assert row.out[at.D_PSN] == 0


def test_what_was_sent_after_all_that_has_arrived_is_left_to_the_probe() -> None:
    row = full_window()
    row.timer(LOST_AT)
    row.send(1, now=LOST_AT)
    assert row.state.loss_at == at.FOREVER  # 5 to 7 and the repetition are younger than 4, which has arrived
    assert row.state.deadline == 4_000 + TRIP + 1_000_000


def test_the_protocol_itself_has_no_such_timer() -> None:
    row = full_window(reorder_timer=False)
    assert row.state.loss_at == at.FOREVER
    row.timer(900_000)
    assert row.state.num_lost == 0
    assert not Profile.mrc().reorder_timer
    assert Profile.software(1_000_000).reorder_timer


def test_all_that_arrives_in_time_stops_the_timer() -> None:
    row = full_window()
    row.sack(now=TRIP + 5_000, cack=7, psn=0, echo=0)
    assert row.state.deadline == at.FOREVER
    assert (row.state.num_lost, row.state.num_spurious) == (0, 0)

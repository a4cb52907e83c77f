"""The life of an entropy value, the rotation, and replacement in the same plane."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from fairlead.fabric.mrc import evs, law, paths
from fairlead.fabric.mrc import layout as at
from fairlead.fabric.mrc.profile import Profile
from support.mrc_rows import ALL, Requestor

PROFILE = Profile.mrc(planes=4, evs_per_plane=8, evs_active=4, ev_min_active=3, ev_probe_ok=3)
GOOD, SKIP, BAD, DENIED, STANDBY = at.STATE_GOOD, at.STATE_SKIP, at.STATE_ASSUMED_BAD, at.STATE_DENIED, at.STATE_STANDBY


def make(**changes: object) -> Requestor:
    return Requestor(
        Profile.mrc(
            **{
                **{
                    k: getattr(PROFILE, k)
                    for k in ("planes", "evs_per_plane", "evs_active", "ev_min_active", "ev_probe_ok")
                },
                **changes,
            }
        )
    )


def state(row: Requestor, slot: int) -> int:
    return evs.ev_state(row.state, slot)


def take(row: Requestor, num: int, ports: int = ALL, avoid: int = -1) -> list[int]:
    return [paths.choose(row.state, ports, avoid) for _ in range(num)]


def feel(row: Requestor, slot: int, *what: int) -> None:
    for each in what:
        paths.feedback(row.state, 0, slot, each)


def probe(row: Requestor, slot: int, *marks: int) -> None:
    for mark in marks:
        evs.probe_answered(row.state, slot, mark)


MARK, TRIM, LOSS, FINE = at.PATH_IS_MARKED, at.PATH_IS_TRIMMED, at.PATH_IS_LOSSY, at.PATH_IS_GOOD


@pytest.mark.parametrize(
    ("before", "events", "after"),
    [
        ("", (FINE,), GOOD),
        ("", (MARK,), SKIP),
        ("", (TRIM,), SKIP),
        ("", (LOSS,), BAD),
        ("", (MARK, LOSS), BAD),
        ("", (MARK, FINE), SKIP),  # only its turn ends a skip
        ("", (LOSS, FINE), BAD),  # only probes bring it back
        ("", (LOSS, MARK), BAD),
        ("deny", (MARK,), DENIED),
        ("deny", (LOSS,), DENIED),
    ],
)
def test_what_packets_do_to_an_ev_in_rotation(before: str, events: tuple[int, ...], after: int) -> None:
    row = make()
    slot = take(row, 1)[0]
    if before:
        evs.deny(row.state, slot)
    feel(row, slot, *events)
    assert state(row, slot) == after


@pytest.mark.parametrize(
    ("marks", "after"),
    [
        ((at.M_NONE, at.M_NONE), BAD),  # not enough
        ((at.M_NONE,) * 3, STANDBY),  # its place was taken by the replacement
        ((at.M_NONE, at.M_NONE, at.M_ALWAYS_SKIP, at.M_NONE), BAD),  # counting begins again
        ((at.M_SKIP_ONCE,) * 3, STANDBY),
    ],
)
def test_several_probes_bring_an_ev_back(marks: tuple[int, ...], after: int) -> None:
    row = make()
    slot = take(row, 1)[0]
    feel(row, slot, LOSS)
    probe(row, slot, *marks)
    assert state(row, slot) == after


def test_an_ev_that_comes_back_fills_an_empty_place_and_a_mark_on_its_last_probe_makes_it_wait() -> None:
    row = make()
    plane = list(range(8))
    for slot in plane:
        feel(row, slot, LOSS)
    assert [state(row, slot) for slot in plane] == [BAD] * 8
    probe(row, 0, *(at.M_NONE,) * 3)
    probe(row, 1, *(at.M_NONE,) * 2, at.M_SKIP_ONCE)
    assert (state(row, 0), state(row, 1)) == (GOOD, SKIP)
    assert row.state.ev_bad == 6


def test_a_lost_probe_begins_the_count_again() -> None:
    row = make()
    feel(row, 0, LOSS)
    probe(row, 0, at.M_NONE, at.M_NONE)
    evs.probe_unanswered(row.state, 0)
    probe(row, 0, at.M_NONE)
    assert evs.nibble(row.state, 0) == 1


def test_probes_of_a_good_ev_change_nothing() -> None:
    row = make()
    before = row.snapshot()
    probe(row, 0, at.M_NONE, at.M_SKIP_ONCE, at.M_ALWAYS_SKIP)
    assert row.snapshot() == before


def test_a_skipped_ev_misses_exactly_one_turn() -> None:
    row = make(planes=1, evs_active=8)
    first = take(row, 8)
    assert sorted(first) == list(range(8))
    feel(row, 5, MARK)
    laps = [take(row, 7), take(row, 8)]
    assert 5 not in laps[0]
    assert state(row, 5) == GOOD
    assert Counter(laps[0] + laps[1])[5] == 1


def test_when_all_are_to_be_skipped_sending_goes_on() -> None:
    row = make(planes=1, evs_active=8)
    for slot in range(8):
        feel(row, slot, MARK)
    assert take(row, 1)[0] >= 0


@pytest.mark.parametrize("packets", [4, 16])
def test_with_all_in_rotation_marked_one_changes_places_with_a_standby_once_in_four_windows(packets: int) -> None:
    row = make(planes=1, evs_per_plane=4, evs_active=1, ev_min_active=1)
    row.state.cwnd = packets * row.state.profile.min_cwnd
    slots, turns = take(row, 1), 4000
    for _ in range(turns):
        feel(row, slots[-1], MARK)
        slots += take(row, 1)
        assert [state(row, slot) for slot in range(4)].count(GOOD) == 1
        assert state(row, slots[-1]) == GOOD
    moves = sum(a != b for a, b in itertools.pairwise(slots))
    assert moves == pytest.approx(turns / (4 * packets), rel=0.3)
    assert set(slots) == {0, 1, 2, 3}


def test_with_another_ev_in_rotation_unmarked_none_changes_places() -> None:
    row = make(planes=1, evs_per_plane=4, evs_active=2, ev_min_active=1)
    row.state.cwnd = row.state.profile.min_cwnd
    marked = take(row, 1)[0]
    for _ in range(400):
        feel(row, marked, MARK)
        take(row, 1)
    assert {slot for slot in range(4) if state(row, slot) in (GOOD, SKIP)} == {0, 1}


def test_replacement_comes_from_the_same_plane_and_planes_stay_equally_loaded() -> None:
    row = make()
    for _ in range(4):
        slot = next(s for s in range(16, 24) if state(row, s) == GOOD)
        feel(row, slot, LOSS)
        in_rotation = [s for s in range(32) if state(row, s) == GOOD]
        assert Counter(s >> 3 for s in in_rotation) == {0: 4, 1: 4, 2: 4, 3: 4}
    assert Counter(s >> 3 for s in take(row, 400)) == {0: 100, 1: 100, 2: 100, 3: 100}


def test_a_plane_without_good_evs_is_left_out_and_comes_back() -> None:
    row = make()
    for slot in range(8, 16):
        feel(row, slot, LOSS)
    assert {s >> 3 for s in take(row, 30)} == {0, 2, 3}
    probe(row, 9, *(at.M_NONE,) * 3)
    assert {s for s in take(row, 40) if s >> 3 == 1} == {9}


def test_at_the_floor_suspects_change_places_with_other_bad_ones() -> None:
    row = make()
    used: set[int] = set()
    for _ in range(400):
        slot = take(row, 1)[0]
        used.add(slot)
        feel(row, slot, LOSS)
        assert row.state.ev_active >= 3
        assert sum(state(row, slot) == BAD for slot in range(32)) == row.state.ev_bad
    assert row.state.ev_active == 3
    assert used == set(range(32))  # each gets another chance, though nobody probes


def test_at_the_floor_the_only_suspect_stays() -> None:
    row = make(planes=1, evs_per_plane=1, evs_active=1, ev_min_active=1)
    feel(row, 0, LOSS)
    assert (state(row, 0), take(row, 2)) == (GOOD, [0, 0])
    closed = make(planes=2, evs_per_plane=1, evs_active=1, ev_min_active=2)
    law.on_peer_ports(closed.state, 0b10, 1, 1)
    feel(closed, 0, LOSS)
    assert state(closed, 0) == GOOD  # no bad EV on an open plane to change with


def test_when_every_usable_ev_is_gone_the_least_bad_are_used_but_never_a_denied_one() -> None:
    row = make(ev_min_active=0)
    for slot in range(32):
        feel(row, slot, LOSS)
    for slot in (3, *range(8, 16)):
        evs.deny(row.state, slot)
    assert row.state.planes_ok == 0
    assert set(take(row, 160)) == set(range(32)) - {3, *range(8, 16)}  # the plane that is denied whole is passed over
    for slot in range(32):
        evs.deny(row.state, slot)
    assert take(row, 1) == [-1]


def test_a_busy_port_is_waited_for_rather_than_a_bad_ev_used() -> None:
    row = make()
    for slot in range(8):
        feel(row, slot, LOSS)  # plane 0 has nothing left
    before = row.snapshot()
    assert take(row, 1, ports=0b0001) == [-1]
    assert row.snapshot() == before
    assert take(row, 1, ports=0b0011)[0] >> 3 == 1


@pytest.mark.parametrize("slot", [0, 7])
def test_denied_and_allowed(slot: int) -> None:
    row = make()
    before = state(row, slot)
    evs.deny(row.state, slot)
    evs.deny(row.state, slot)
    assert state(row, slot) == DENIED
    assert row.state.ev_active == 16
    assert slot not in take(row, 64)
    evs.allow(row.state, slot)
    assert state(row, slot) == STANDBY
    assert before in {GOOD, STANDBY}
    unchanged = row.snapshot()
    evs.allow(row.state, slot)
    assert row.snapshot() == unchanged


def test_denying_a_bad_ev_ends_its_probing() -> None:
    row = make()
    feel(row, 4, LOSS)
    evs.deny(row.state, 4)
    assert (state(row, 4), row.state.ev_bad) == (DENIED, 0)
    probe(row, 4, *(at.M_NONE,) * 3)
    assert state(row, 4) == DENIED


def test_a_retransmission_avoids_the_ev_that_failed_unless_it_is_the_only_one() -> None:
    row = make(planes=1, evs_per_plane=2, evs_active=2)
    assert all(take(row, 1, avoid=slot) != [slot] for slot in (0, 1) for _ in range(8))
    single = make(planes=1, evs_per_plane=1, evs_active=1)
    assert take(single, 1, avoid=0) == [0]


def test_every_ev_in_rotation_gets_its_turn_each_lap() -> None:
    row = make(planes=1, evs_per_plane=64, evs_active=64)
    laps = [take(row, 64) for _ in range(6)]
    assert all(sorted(lap) == list(range(64)) for lap in laps)
    assert len({tuple(lap) for lap in laps}) > 3


def test_queue_pairs_that_start_together_do_not_walk_in_step() -> None:
    """With 64 EVs, two queue pairs should meet on about one in 64 packets."""
    profile = Profile.mrc(planes=1, evs_per_plane=64, evs_active=64)
    walks = [take(Requestor(profile, seed=seed), 640) for seed in range(40)]
    meetings = sum(
        a == b for one, two in zip(walks[::2], walks[1::2], strict=True) for a, b in zip(one, two, strict=True)
    )
    assert 100 < meetings < 320  # 12,800 pairs of packets; 200 by chance


def test_bad_evs_are_probed_in_turn_and_only_on_open_planes() -> None:
    row = make()
    for slot in (2, 9, 30):
        feel(row, slot, LOSS)
    assert [evs.next_bad(row.state, after) for after in (0, 2, 9, 30, 31)] == [2, 9, 30, 2, 2]
    law.on_peer_ports(row.state, 0b1101, 1, 0)
    assert evs.next_bad(row.state, 2) == 30
    law.on_peer_ports(row.state, 0b0100, 1, 2)
    assert evs.next_bad(row.state, 2) == -1


def test_ports_that_are_down_at_either_end_are_left_out() -> None:
    row = make()
    law.on_ports(row.state, 0, 0b0111, 0)
    law.on_peer_ports(row.state, 0b1101, 1, 0)
    assert {s >> 3 for s in take(row, 12)} == {0, 2}
    assert take(row, 1, ports=0b1010) == [-1]


# --- runs --------------------------------------------------------------------------------------------------------


def runs(slots: list[int]) -> list[tuple[int, int]]:
    """Slot and length of each run."""
    out: list[tuple[int, int]] = []
    for slot in slots:
        if out and out[-1][0] == slot:
            out[-1] = slot, out[-1][1] + 1
        else:
            out.append((slot, 1))
    return out


def test_new_packets_share_an_ev_for_a_run_and_planes_take_turns_run_by_run() -> None:
    row = make(ev_run=5)
    row.post(40 * 4096)
    sent = runs([slot for _, slot, _ in row.send(20)])
    assert [length for _, length in sent] == [5, 5, 5, 5]
    assert sorted(slot >> 3 for slot, _ in sent) == [0, 1, 2, 3]


def test_a_run_ends_where_its_ev_is_marked_or_lossy_or_its_port_busy() -> None:
    for event in (MARK, LOSS, None):
        row = make(ev_run=8)
        row.post(40 * 4096)
        (first, second) = (slot for _, slot, _ in row.send(2))
        assert first == second
        if event is None:
            assert row.next(0, ALL & ~(1 << (first >> 3))) == at.SEND_DATA
            assert row.out[at.D_EV] != first
            continue
        feel(row, first, event)
        after = runs([slot for _, slot, _ in row.send(9)])
        assert after[0][0] != first
        assert [length for _, length in after] == [8, 1]


def test_what_is_sent_again_takes_another_ev_than_its_run() -> None:
    row = make(ev_run=8)
    row.post(40 * 4096)
    sent = row.send(10)
    row.nack(sent[3][0])
    row.nack(sent[4][0])
    (one, two), new = row.send(2), row.send(2)
    assert [psn for psn, _, _ in (one, two)] == [sent[3][0], sent[4][0]]
    assert sent[3][1] not in (one[1], two[1])
    assert one[1] != two[1]
    assert [slot for _, slot, _ in new] == [sent[9][1]] * 2  # the run of new packets goes on

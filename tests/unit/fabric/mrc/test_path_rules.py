"""The path rules that MRC's is compared with."""

from __future__ import annotations

from collections import Counter

from fairlead.fabric.mrc import evs, law, paths
from fairlead.fabric.mrc import layout as at
from fairlead.fabric.mrc.profile import Profile
from support.mrc_rows import ALL, Requestor


def make(rule: int, **changes: object) -> Requestor:
    options = {"path_rule": rule, "evs_per_plane": 16, "evs_active": 16, "ring_size": 8, "freeze_ns": 1_000, **changes}
    return Requestor(Profile.uec(**options))


def take(row: Requestor, num: int, ports: int = ALL) -> list[int]:
    return [paths.choose(row.state, ports, -1) for _ in range(num)]


def feel(row: Requestor, slot: int, what: int, now: int = 0) -> None:
    paths.feedback(row.state, now, slot, what)


def test_oblivious_uses_each_ev_once_a_lap_whatever_happens() -> None:
    row = make(at.PATH_OBLIVIOUS)
    laps = []
    for _ in range(4):
        laps.append(take(row, 16))
        for what in (at.PATH_IS_LOSSY, at.PATH_IS_TRIMMED, at.PATH_IS_MARKED):
            feel(row, 3, what)
    assert all(sorted(lap) == list(range(16)) for lap in laps)
    assert len({tuple(lap) for lap in laps}) > 1


def test_bitmap_penalties_add_up_to_fifteen() -> None:
    row = make(at.PATH_BITMAP)
    seen = []
    for what in (at.PATH_IS_GOOD, at.PATH_IS_MARKED, at.PATH_IS_TRIMMED, at.PATH_IS_TRIMMED, at.PATH_IS_LOSSY):
        feel(row, 3, what)
        seen.append(evs.nibble(row.state, 3))
    assert seen == [0, 1, 5, 9, 15]


def test_bitmap_passes_over_a_penalised_ev_and_takes_a_point_off() -> None:
    row = make(at.PATH_BITMAP)
    feel(row, 3, at.PATH_IS_MARKED)
    feel(row, 3, at.PATH_IS_MARKED)
    laps = [Counter(take(row, 15)) for _ in range(2)]
    assert [lap[3] for lap in laps] == [0, 0]
    assert evs.nibble(row.state, 3) == 0
    assert Counter(take(row, 16))[3] == 1


def test_bitmap_takes_one_point_a_packet_even_if_it_passes_over_many() -> None:
    row = make(at.PATH_BITMAP)
    for slot in range(16):
        feel(row, slot, at.PATH_IS_LOSSY)
    before = sum(evs.nibble(row.state, slot) for slot in range(16))
    take(row, 5)
    assert sum(evs.nibble(row.state, slot) for slot in range(16)) == before - 5


def test_reps_uses_good_evs_again_oldest_first_and_each_once() -> None:
    row = make(at.PATH_REPS)
    for slot in (5, 2, 9):
        feel(row, slot, at.PATH_IS_GOOD)
    feel(row, 7, at.PATH_IS_MARKED)
    assert take(row, 3) == [5, 2, 9]
    assert row.state.ring_fresh == 0


def test_reps_keeps_the_newest_eight() -> None:
    row = make(at.PATH_REPS)
    for slot in range(10):
        feel(row, slot, at.PATH_IS_GOOD)
    assert take(row, 8) == [2, 3, 4, 5, 6, 7, 8, 9]


def test_reps_explores_at_random_when_it_knows_nothing() -> None:
    row = make(at.PATH_REPS)
    used = Counter(take(row, 640))
    assert set(used) == set(range(16))
    assert max(used.values()) < 80


def test_reps_freezes_on_loss_reuses_what_it_has_then_explores_sixteen_times() -> None:
    row = make(at.PATH_REPS)
    for slot in (1, 2, 3):
        feel(row, slot, at.PATH_IS_GOOD)
    feel(row, 0, at.PATH_IS_LOSSY, now=100)
    feel(row, 0, at.PATH_IS_LOSSY, now=900)  # no longer for that
    assert row.state.frozen_until == 1_100
    assert take(row, 7) == [1, 2, 3, 1, 2, 3, 1]
    assert row.state.ring_fresh == 0
    feel(row, 4, at.PATH_IS_GOOD, now=1_101)
    assert row.state.frozen_until == 0
    assert row.state.explore == 16
    take(row, 16)
    assert take(row, 1) == [4]


def test_reps_does_not_freeze_while_exploring_and_frozen_with_an_empty_ring_goes_on() -> None:
    row = make(at.PATH_REPS)
    feel(row, 0, at.PATH_IS_LOSSY, now=100)
    assert set(take(row, 200)) == set(range(16))
    feel(row, 0, at.PATH_IS_MARKED, now=2_000)
    feel(row, 0, at.PATH_IS_LOSSY, now=2_001)
    assert (row.state.frozen_until, row.state.explore) == (0, 16)


def test_mixed_recycles_first_and_falls_back_on_the_bitmap() -> None:
    row = make(at.PATH_MIXED, ring_size=64)
    feel(row, 6, at.PATH_IS_GOOD)
    feel(row, 3, at.PATH_IS_LOSSY)
    assert take(row, 1) == [6]
    assert 3 not in take(row, 15)


def test_with_several_planes_rules_act_inside_the_free_ones() -> None:
    for rule in (at.PATH_OBLIVIOUS, at.PATH_BITMAP, at.PATH_REPS, at.PATH_MIXED):
        row = make(rule, planes=4)
        for slot in (0, 17, 33, 49):
            feel(row, slot, at.PATH_IS_GOOD)
        assert all(slot >> 4 in (1, 3) for slot in take(row, 40, ports=0b1010))
        feel(row, 0, at.PATH_IS_LOSSY, now=1)
        assert all(slot >> 4 in (1, 3) for slot in take(row, 40, ports=0b1010))
        law.on_ports(row.state, 0, 0b1000, 0)
        assert take(row, 1, ports=0b0111) == [-1]
        assert all(slot >> 4 == 3 for slot in take(row, 20))

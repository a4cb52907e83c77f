"""How often ranks measure: until two values agree or the time is spent, and everywhere alike."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest

from fairlead.preflight.ranks.onnode.device import AGREE, RUNS, Card, has_settled
from fairlead.preflight.ranks.onnode.rank import BRIEF, TURNS, WARMUPS, Collectives, is_enough


@pytest.mark.parametrize(
    ("seen", "spent_s", "next_s", "enough"),
    [
        ([0.0, 0.25], 0.25, 0.25, False),  # a first time, and nothing promised it
        ([0.28, 0.25], 0.25, 0.25, True),  # as the size before promised
        ([0.0, 0.40, 0.25], 0.65, 0.25, False),  # the first made connections
        ([0.0, 0.40, 0.25, 0.24], 0.89, 0.24, True),
        ([0.0, 0.001, 0.001], 0.002, 0.005, False),  # quick: as many as there are to be
        ([0.0, 0.7], 0.7, 0.7, True),  # no time for another
    ],
)
def test_a_size_is_tried_until_two_times_agree_or_its_time_is_spent(seen, spent_s, next_s, enough):
    assert is_enough(seen, spent_s, next_s, brief_s=0.05, share_s=1.0) is enough


def timed_with(takes, promised_s, first_s, all_s=1.0, share_s=1.0):
    """What a size gets whose all-reduces take these times: (batches, all-reduces in them, not counted, seconds)."""
    asked, sizes = [], []

    def timed(_, num):
        mine = list(itertools.islice(takes, num))
        asked.append(num)
        return sum(mine) / num if mine else 0.0

    found, warmups, spent_s = Collectives.times(SimpleNamespace(timed=timed), None, promised_s, first_s, all_s, share_s)
    sizes += asked[-len(found) :] if asked else [1]
    return len(found), sum(sizes), warmups, spent_s


def test_quick_ones_are_timed_as_nccl_tests_does():
    batches, num, warmups, spent_s = timed_with(itertools.repeat(0.0003), 0.0, 0.2)
    assert (batches, num, warmups) == (4, TURNS, WARMUPS + 2)
    assert spent_s == pytest.approx(0.2 + 26 * 0.0003)


def test_a_slow_one_that_is_as_promised_is_done_once():
    assert timed_with(itertools.repeat(0.25), 0.28, 0.25) == (1, 1, 0, 0.25)


def test_a_slow_one_whose_first_connected_is_done_until_two_agree():
    batches, num, warmups, spent_s = timed_with(iter([0.2, 0.1, 0.1, 0.1]), 0.0, 0.3)
    assert (batches, num, warmups) == (3, 3, 1)
    assert spent_s == pytest.approx(0.7)


def test_times_that_never_agree_cost_no_more_than_their_share():
    for share_s in (0.1, 0.5):
        *_, spent_s = timed_with(itertools.cycle([0.01, 0.02]), 0.0, 0.03, share_s=share_s)
        assert share_s / 2 < spent_s <= share_s
    assert BRIEF < 0.1, "each size may have its tenth"


def test_a_cpu_is_measured_until_two_runs_agree_and_a_gpu_in_full():
    assert not has_settled([1.0], is_gpu=False)
    assert not has_settled([1.0, 1.2], is_gpu=False)
    assert has_settled([1.3, 1.0, 1.0 * AGREE], is_gpu=False)
    assert not has_settled([1.0, 1.0], is_gpu=True)
    assert has_settled([1.0] * RUNS, is_gpu=True)


def test_a_run_of_a_card_is_never_left_out():
    card = Card.__new__(Card)
    card.is_gpu, card.sync, card.until = False, lambda: None, 0.0
    done = []
    assert card.best(lambda: done.append(1), 4, 0.0) > 0
    assert len(done) == 5, "one that is not counted, and a run"

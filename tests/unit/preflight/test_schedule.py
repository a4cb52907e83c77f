"""Rounds: every directed pair once, nobody twice in a round, never more rounds than promised."""

from __future__ import annotations

from itertools import chain

import pytest

from fairlead.preflight.pairs.schedule import (
    MAX_BATCHES,
    all_pairs,
    fit,
    in_round,
    log_degree,
    max_adaptive_rounds,
    max_rounds,
)
from fairlead.preflight.pairs.schedule import (
    Test as PairTest,
)


@pytest.mark.parametrize("n", [2, 3, 4, 7, 16, 65, 200])
def test_each_directed_pair_meets_once_and_no_port_carries_two_bursts(n):
    met = []
    for shift in chain.from_iterable(all_pairs(n)):
        pairs = list(in_round(n, shift))
        assert len({src for src, _ in pairs}) == len({dst for _, dst in pairs}) == n
        met += pairs
    assert len(met) == len(set(met)) == n * (n - 1)


@pytest.mark.parametrize("n", [2, 64, 65, 66, 1024, 5000])
def test_rounds_are_sent_in_a_bounded_number_of_batches(n):
    batches = all_pairs(n)
    assert len(batches) <= MAX_BATCHES
    assert sum(map(len, batches)) == n - 1


def test_one_node_has_nobody_to_test():
    assert all_pairs(1) == []
    assert log_degree(1) == []


@pytest.mark.parametrize(("n", "shifts"), [(2, [1]), (3, [1, 2]), (4, [1, 2]), (8, [1, 2, 4]), (9, [1, 2, 4, 8])])
def test_rates_are_measured_in_log_rounds(n, shifts):
    assert log_degree(n) == shifts


@pytest.mark.parametrize(("n", "log2"), [(2, 1), (4, 2), (5, 3), (1024, 10), (1025, 11)])
def test_the_bound_is_the_promised_one(n, log2):
    assert max_rounds(n) == 2 * log2 + 6
    assert max_adaptive_rounds(n) == log2 + 6


def test_a_round_takes_the_most_urgent_first_and_no_node_twice():
    wanted = [PairTest(0, 1, (1,)), PairTest(1, 2, (1,)), PairTest(2, 3, (2,)), PairTest(0, 1, (2,))]
    assert fit(wanted) == [PairTest(0, 1, (1, 2)), PairTest(2, 3, (2,))]

"""The ways of entropy values: even, whatever the numbers, and the same for both drivers."""

from __future__ import annotations

from collections import Counter

import pytest

from fairlead.fabric.mrc import ways


@pytest.mark.parametrize("num_ways", [1, 2, 3, 8, 12, 31, 64])
@pytest.mark.parametrize("num_evs", [8, 32, 64])
def test_each_way_carries_as_many_evs_as_any_other_or_one_more(num_ways: int, num_evs: int) -> None:
    for step in ways.steps(num_ways):
        for first in (0, num_ways - 1):
            taken = Counter(ways.way_of(number, num_ways, first, step) for number in range(num_evs))
            assert set(taken) <= set(range(num_ways))
            counts = [taken[way] for way in range(num_ways)]
            assert max(counts) - min(counts) <= 1


def test_all_steps_are_there() -> None:
    assert ways.steps(12) == (1, 5, 7, 11)
    assert ways.steps(1) == (1,)

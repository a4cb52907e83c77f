"""Durations in little memory, held against the standard library's own reckoning over all of them."""

from __future__ import annotations

import random
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.cli.fabric_perf import check, sizes_of
from fairlead.cli.fabric_times import STEPS, Times
from fairlead.errors import UsageError

WIDTH = 2 ** (1 / STEPS)


def times_of(values: list[float]) -> Times:
    times = Times()
    for us in values:
        times.add(us)
    return times


@given(st.lists(st.floats(0.01, 1e8), min_size=1, max_size=300))
def test_they_are_what_all_values_say(values) -> None:
    times, ordered = times_of(values), sorted(values)
    assert (times.count, times.lowest, times.highest) == (len(values), ordered[0], ordered[-1])
    assert times.mean == pytest.approx(statistics.fmean(values))
    assert times.deviation == pytest.approx(statistics.pstdev(values), rel=1e-6, abs=ordered[-1] * 1e-6)
    for percent in (50, 99, 100):
        exact = ordered[-(-len(values) * percent // 100) - 1]
        assert exact * (1 - 1e-9) <= times.percentile(percent / 100) <= exact * WIDTH * (1 + 1e-9)
    ends = times.histogram()
    for (below, _), (upper, num) in zip([(0.0, 0), *ends], ends, strict=False):
        assert num == pytest.approx(sum(below * (1 + 1e-9) < us <= upper * (1 + 1e-9) for us in values), abs=1)
    assert sum(num for _, num in ends) == len(values)


def test_none_and_very_many_take_little_room() -> None:
    assert (Times().percentile(0.5), Times().deviation, Times().histogram()) == (0.0, 0.0, [])
    chance = random.Random(1)
    times = times_of([chance.lognormvariate(6, 2) for _ in range(100_000)])
    assert len(times._buckets) < 1000
    assert len(times.histogram()) < 80


def test_sizes_are_those_of_perftest_or_those_asked_for() -> None:
    assert sizes_of("all") == [2**i for i in range(1, 24)]  # ib_write_bw -a: 2 to 2^23
    assert (sizes_of(""), sizes_of("65536,8,8")) == ([], [8, 65536])
    for text in ("1k", ",", "64,", "64,,128"):
        with pytest.raises(UsageError):
            sizes_of(text)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"sizes": [0, 64]}, "one byte or more"),
        ({"sizes": [-1]}, "one byte or more"),
        ({"sizes": [1 << 28], "depth": 2}, "at most 268435456 bytes"),
        ({"target": "n0"}, "two nodes"),
        ({"source": "n[2-3]"}, "one node each"),
        ({"target": "n1,n2"}, "one node each"),
        ({"target": ""}, "one node each"),
        ({"duration": float("nan")}, "--duration"),
        ({"interval": float("inf")}, "--interval"),
        ({"sealed": True, "trim": True}, "exclude each other"),
    ],
)
def test_what_no_measurement_can_be_is_said(asked: dict[str, Any], said: str) -> None:
    good: dict[str, Any] = {"source": "n0", "target": "n1", "duration": 1.0, "interval": 1.0, "sizes": [8], "depth": 1}
    check(**good, sealed=True)
    with pytest.raises(UsageError, match=said):
        check(**good | asked)

from __future__ import annotations

import math

import pytest

from fairlead.report.scale import Axis, nice_step, scale, thin, written


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (250e6, "b/s", "250 Mb/s"),
        (999.6, "b/s", "1 kb/s"),
        (400e9, "b/s", "400 Gb/s"),
        (0.0, "b/s", "0 b/s"),
        (0.00034, "s", "340 µs"),
        (0.0009999, "s", "1 ms"),
        (7200.0, "s", "7.2e+03 s"),
        (64 * 2**20, "B", "64 MiB"),
        (93.4, "%", "93.4 %"),
        (12345, "", "12.3 k"),
        (1.5, "events", "1.5 events"),
        (math.nan, "s", "-"),
        (math.inf, "s", "-"),
    ],
)
def test_values_are_written_with_one_fitting_prefix(value, unit, text):
    assert written(value, unit) == text


def test_an_axis_has_one_unit_and_round_ends():
    found = scale(Axis("goodput", "b/s", lo=0), [1.2e8, 2.37e8], num_ticks=5)
    assert found.title == "goodput (Mb/s)"
    assert [t.label for t in found.ticks] == ["0", "50", "100", "150", "200", "250"]
    assert (found.lo, found.hi) == (0, 250e6)
    assert found.show(2.37e8) == "237"


def test_bytes_tick_at_binary_sizes():
    found = scale(Axis("size", "B", lo=0), [3.2 * 2**30], num_ticks=4)
    assert [t.label for t in found.ticks] == ["0", "1", "2", "3", "4"]
    assert found.ticks[1].value == 2**30


def test_decades_carry_their_own_unit():
    found = scale(Axis("FCT", "s", log=True), [2e-6, 5e-3])
    assert [t.label for t in found.ticks] == ["1 µs", "10 µs", "100 µs", "1 ms", "10 ms"]
    assert found.title == "FCT"
    assert found.place(1e-4) == pytest.approx(0.5)
    assert found.show(3.4e-4) == "340 µs"


def test_a_logarithmic_axis_refuses_a_limit_at_zero():
    with pytest.raises(ValueError, match="above zero"):
        scale(Axis("FCT", "s", log=True, lo=0), [1.0])


def test_what_lies_outside_is_put_on_the_edge():
    found = scale(Axis("x", lo=0, hi=10), [])
    assert (found.place(-5), found.place(15), found.place(5)) == (0, 1, 0.5)


@pytest.mark.parametrize("values", [[], [5.0], [5.0, 5.0], [0.0], [-3.0], [math.nan, math.inf]])
@pytest.mark.parametrize("log", [False, True])
def test_any_data_gives_a_usable_scale(values, log):
    found = scale(Axis("x", "s", log=log), values)
    assert found.hi > found.lo
    assert found.ticks
    assert all(0 <= found.place(v) <= 1 for v in values if math.isfinite(v) and (v > 0 or not log))


def test_steps_are_one_two_five():
    assert [nice_step(s, 5) for s in (1, 3, 7, 10, 12, 49)] == [0.2, 1, 2, 2, 5, 10]


def test_thinning_keeps_ends_and_extremes():
    points = [(float(i), 0.0) for i in range(10_000)]
    points[5123] = (5123.0, 99.0)
    points[777] = (777.0, -7.0)
    kept = thin(points, 100)
    assert len(kept) <= 400
    assert {points[0], points[-1], points[5123], points[777]} <= set(kept)
    assert kept == sorted(kept, key=lambda p: p[0])


def test_short_curves_are_left_alone():
    points = [(0.0, 1.0), (1.0, 2.0)]
    assert thin(points, 100) == points

"""Counters to rates: saturated, wrapped, reset, backwards, of another device."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fairlead.watch.onnode import rates
from support.watching import port

SMALL, WRAP = 1 << 20, 1 << 32


@given(st.integers(0, 1 << 64), st.integers(0, 1 << 60))
def test_a_counter_that_only_grows_is_told_exactly(start, growth):
    assert rates.delta(start, start + growth) == growth


@given(st.integers(0, SMALL), st.integers(0, SMALL))
def test_a_32_bit_counter_that_wraps_is_told_exactly(before_end, growth):
    start = WRAP - 1 - before_end
    now = (start + growth) % WRAP
    assert rates.delta(start, now) == growth


@given(st.integers(0, 254), st.integers(0, 400))
def test_a_register_that_stands_at_its_end_says_nothing_and_below_it_is_exact(start, growth):
    # IBTA PortCounters: LinkDowned has 8 bits and stops at 255
    now = min(255, start + growth)
    assert rates.delta(start, now, 255) == (growth if now < 255 else None)


@given(st.integers(1, WRAP - (1 << 29)), st.integers(1, 1 << 40))
def test_one_that_ran_backwards_was_reset_and_says_nothing(start, less):
    assert rates.delta(start, max(0, start - less)) is None


@given(st.one_of(st.none(), st.text(), st.booleans(), st.floats(), st.integers(max_value=-1), st.just({"unread": "x"})))
def test_what_is_no_counter_says_nothing(junk):
    assert rates.delta(junk, 7) is None
    assert rates.delta(7, junk) is None


def test_another_device_of_the_same_name_has_no_past():
    grown = rates.port_deltas(port(data=0), port(data=800, guid="b83f:d203:ffff:ffff"))
    assert grown == {}
    assert rates.port_bytes(grown) == (None, None)


def test_data_is_counted_in_words_of_four_bytes():
    grown = rates.port_deltas(port(data=0), port(data=8000))
    assert rates.port_bytes(grown) == (4000, 4000)


@given(st.lists(st.tuples(st.floats(0.01, 50), st.integers(0, 9)), max_size=300))
def test_a_window_holds_what_grew_within_it_and_stays_small(steps):
    window, at, told = rates.Growth(600.0), 0.0, []
    for wait, growth in steps:
        at += wait
        told.append((at, growth))
        found = window.add(at, growth)
        assert len(window.steps) <= rates.Growth.STEPS + 1
        # growth within one step is put down to its beginning, so it may leave the window one step early
        assert found <= sum(g for t, g in told if t > at - 600.0)
        assert found >= sum(g for t, g in told if t > at - 600.0 + 600.0 / rates.Growth.STEPS)

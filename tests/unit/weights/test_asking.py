"""Requests at the origin: few at first, more while that brings more, back where it does not. Origins are arithmetic."""

from __future__ import annotations

from fairlead.weights.asking import AGAIN_S, WATCHED_S, Asking
from fairlead.weights.onnode.gate import Gate


def told(asking: Asking, rate_at, seconds: int) -> list[tuple[int, int]]:
    """(second, requests a node) of every change, of an origin that gives `rate_at(requests a node)` bytes a second."""
    came, changes = 0, []
    for second in range(seconds):
        if (now := asking.look(came, float(second))) is not None:
            changes.append((second, now))
        came += int(rate_at(asking.at_once))
    return changes


def test_nodes_together_begin_with_what_one_alone_has():
    assert [Asking(8, num, 100).at_once for num in (1, 2, 3, 8, 16, 1000)] == [8, 4, 3, 1, 1, 1]
    assert Asking(8, 0, 100).at_once == 8


def test_of_many_chunks_nodes_ask_for_a_fiftieth_at_first():
    assert [Asking(8, 16, num).at_once for num in (256, 2048, 4096, 98_548)] == [1, 2, 5, 8]


def test_an_origin_that_gives_each_request_so_much_is_used_whole():
    changes = told(Asking(8, 16, 100), lambda at_once: 60e6 * at_once, 60)
    assert changes == [(2, 2), (4, 4), (6, 8)]


def test_a_step_that_brings_nothing_is_taken_back_and_tried_again_later():
    changes = told(Asking(8, 16, 100), lambda _: 1e9, 60)
    assert changes == [(2, 2), (4, 1), (4 + AGAIN_S, 2), (6 + AGAIN_S, 1)]


def test_it_stays_where_the_origin_or_the_ring_is_full():
    changes = told(Asking(8, 16, 100), lambda at_once: min(60e6 * at_once, 200e6), 30)
    assert [now for _, now in changes] == [2, 4, 8, 4]


def test_nothing_is_changed_while_nothing_comes():
    assert told(Asking(8, 16, 100), lambda _: 0, 100) == []
    late = Asking(8, 16, 100)
    assert late.look(0, 0.0) is None
    assert late.look(10, WATCHED_S / 2) is None


def test_a_gate_that_a_busy_origin_has_narrowed_is_not_opened_by_an_order_for_less():
    gate = Gate(1, 0.0)
    gate.allow(8)
    assert gate.now == 8
    gate.is_busy(0.0)
    gate.allow(6)
    assert (gate.most, gate.now) == (6, 4)
    gate.allow(2)
    assert (gate.most, gate.now) == (2, 2)
    gate.allow(1)
    gate.is_busy(0.0)
    assert gate.now == 1

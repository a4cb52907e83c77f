"""Sets of faults compared: overlap, order, and what a change asks to be done."""

from __future__ import annotations

from fairlead.lab.faults.effects import Change, Effects, Flap, Port, changes, merged

A, B = Port("s", "d0"), Port("s", "d1")


def test_from_nothing_to_nothing_there_is_nothing_to_do():
    assert changes(Effects(), Effects()) == []


def test_what_two_faults_ask_for_stays_when_one_is_healed():
    one, two = Effects(down={A: 1}), Effects(down={A: 2, B: 2})
    assert changes(merged([one, two]), two) == []
    assert changes(merged([one, two]), one) == [Change("down", B, is_on=False, value=2)]


def test_the_last_rate_counts_and_the_one_before_comes_back():
    slow, slower = Effects(queues={A: ("10",)}), Effects(queues={A: ("1",)})
    assert changes(slow, merged([slow, slower])) == [Change("queues", A, is_on=True, value=("1",))]
    assert changes(merged([slow, slower]), slow) == [Change("queues", A, is_on=True, value=("10",))]


def test_filters_of_one_port_are_separate():
    loss, mark = Effects(filters={A: {1: "drop"}}), Effects(filters={A: {2: "mark"}})
    both = merged([loss, mark])
    assert both.filters == {A: {1: "drop", 2: "mark"}}
    assert changes(both, mark) == [Change("filters", (A, 1), is_on=False, value="drop")]


def test_a_file_hidden_and_a_file_left_alone_are_not_the_same():
    hidden = Effects(files={("n0", "etc/x"): None})
    assert changes(Effects(), hidden) == [Change("files", ("n0", "etc/x"), is_on=True, value=None)]
    assert changes(hidden, Effects()) == [Change("files", ("n0", "etc/x"), is_on=False, value=None)]


def test_a_port_that_somebody_wants_down_does_not_flap_until_that_is_healed():
    flap, down = Effects(flaps={A: Flap(1, 1)}), Effects(down={A: 2})
    assert merged([flap, down]).flaps == merged([down, flap]).flaps == {}
    assert [c.what for c in changes(merged([flap, down]), flap)] == ["down", "flaps"]


def test_a_loop_ends_before_its_port_goes_down_and_begins_after():
    before = Effects(flaps={A: Flap(1, 1)})
    after = Effects(down={A: 1}, flaps={B: Flap(1, 1)})
    assert [(c.what, c.key, c.is_on) for c in changes(before, after)] == [
        ("flaps", A, False),
        ("down", A, True),
        ("flaps", B, True),
    ]

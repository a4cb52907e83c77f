"""When a group of ranks is over: nobody waits for a hang, and nobody is called hung who only imports slowly."""

from __future__ import annotations

import pytest

from fairlead.preflight.ranks import LAST_WORDS_S, SILENT_S, STALL_S, Watch


def phase(name):
    return {"say": "phase", "phase": name}


BEAT = {"say": "beat"}


def watch(num=4, at=5.0):
    """Ranks that are past their import."""
    made = Watch(num, 120.0)
    for rank in range(num):
        made.line(rank, phase("import"), 0.5)
        made.line(rank, phase("rendezvous"), at)
    return made


def beat(made, ranks, until, since=5.0):
    now = since
    while now <= until:
        for rank in ranks:
            made.line(rank, BEAT, now)
        now += 0.5


def test_while_they_step_on_nothing_is_over():
    made = watch()
    for i, name in enumerate(["join", "ddp", "reduce", "split"]):
        at = 5.0 + i * (STALL_S - 1)
        beat(made, range(4), at + 1, at)
        for rank in range(4):
            made.line(rank, phase(name), at + 1)
        assert made.over(at + 1.5) == ""


def test_no_step_by_anybody_is_a_hang():
    made = watch()
    beat(made, range(4), 5.0 + STALL_S + 1)
    assert made.over(5.0 + STALL_S - 0.5) == ""
    assert "no rank made a step for 6 s" in made.over(5.0 + STALL_S + 0.5)


def test_one_silent_rank_while_others_speak_is_a_hang_sooner():
    made = watch()
    beat(made, [0, 1, 2], 5.0 + SILENT_S + 0.5)
    assert "a rank said nothing" in made.over(5.0 + SILENT_S + 0.6)
    assert made.silent(5.0 + SILENT_S + 0.6) == [3]


def test_where_all_are_silent_the_machine_is_busy_and_nobody_is_named():
    made = watch()
    assert made.over(5.0 + SILENT_S + 1.0) == ""


def test_imports_may_take_as_long_again_as_the_quickest():
    made = Watch(4, 120.0)
    for rank in range(3):
        made.line(rank, phase("rendezvous"), 20.0)
    beat(made, range(3), 45.0, 20.0)
    assert made.over(39.0) == ""
    assert "no rank made a step" in made.over(41.0)


def test_where_nobody_comes_past_its_start_the_limit_ends_it():
    made = Watch(4, 120.0)
    made.line(0, phase("import"), 0.5)
    assert made.over(119.0) == ""
    assert "no rank came past its start" in made.over(121.0)


@pytest.mark.parametrize(("is_well", "over"), [(False, True), (True, False)])
def test_after_a_bad_end_the_others_have_a_moment_for_their_last_words(is_well, over):
    made = watch()
    made.end(1, is_well=is_well, now=6.0)
    assert made.over(6.0 + LAST_WORDS_S - 0.1) == ""
    assert bool(made.over(6.0 + LAST_WORDS_S + 0.1)) is over

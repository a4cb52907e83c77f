"""Who is named where a spread gets no further, though everything is on some node."""

from __future__ import annotations

from fairlead.weights.outcome import NodeState, stalled

NOW, GIVE_UP_S = 1000.0, 120.0


def node(number: int, *, came: int, count: int, quiet_s: float = 121.0) -> NodeState:
    made = NodeState(f"n{number}", number, "10.0.0.1", came=came, count=count)
    made.moved_s = NOW - quiet_s
    return made


def test_nobody_is_named_while_one_still_moves_or_nobody_waits():
    assert stalled([], NOW, GIVE_UP_S) is None
    assert stalled([node(0, came=9, count=5), node(1, came=5, count=5, quiet_s=119.0)], NOW, GIVE_UP_S) is None
    assert stalled([node(0, came=9, count=5, quiet_s=120.0)], NOW, GIVE_UP_S) is None


def test_the_disk_that_takes_nothing_is_named_and_not_those_behind_it():
    behind = [node(1, came=3, count=3), node(2, came=3, count=3)]
    found = stalled([*behind, node(3, came=40, count=4)], NOW, GIVE_UP_S)
    assert found is not None
    assert (found[0].name, found[1]) == ("n3", "its disk takes nothing more, for 120 s")


def test_without_such_a_disk_it_is_the_one_that_lacks_most():
    found = stalled([node(0, came=8, count=8), node(1, came=2, count=2), node(2, came=5, count=5)], NOW, GIVE_UP_S)
    assert found is not None
    assert (found[0].name, found[1]) == ("n1", "nothing more reaches it, for 120 s")

"""A timeline of faults: read whole, refused whole, played in order."""

from __future__ import annotations

import pytest

from fairlead.errors import LabError, SpecError
from fairlead.lab.faults import apply, script
from fairlead.lab.shape import LabShape
from fairlead.records.labstate import Fault

SHAPE = LabShape()
GOOD = """
# comment
0      silent-drop p2/n3
2.5s   loss p*/n1 percent=5 side=up   # both forms of a time
5      heal silent-drop p2/n3
5      heal all
"""


def test_a_script_is_read_line_by_line():
    steps = script.parse(GOOD, SHAPE)
    assert [(s.at_s, s.line, s.kind or f"heal {s.which}") for s in steps] == [
        (0.0, 3, "silent-drop"),
        (2.5, 4, "loss"),
        (5.0, 5, "heal silent-drop p2/n3"),
        (5.0, 6, "heal all"),
    ]
    assert dict(steps[1].settings) == {"percent": "5", "side": "up"}


def test_every_bad_line_is_named_at_once():
    bad = """0 silent-drop p2/n3
x loss p0/n0
1 los p0/n0
2 loss p0/n9
3 loss p0/n0 percent=999
1 heal all
4 loss
5 heal
nan heal all
inf loss p0/n0
6 heal loss p0/n1
6 heal 3
-1 heal all
"""
    with pytest.raises(SpecError) as caught:
        script.parse(bad, SHAPE, "s.txt")
    assert [p.line for p in caught.value.problems] == list(range(2, 14))
    assert "s.txt:3" in str(caught.value)
    assert "did you mean `loss`" in str(caught.value)


def test_what_is_in_force_already_can_be_healed():
    there = [Fault(id=3, kind="flap", target="p0/n0")]
    for which in ("3", "flap", "p0/n0", "flap p0/n0", "all"):
        (step,) = script.parse(f"0 heal {which}", SHAPE, in_force=there)
        assert step.which == which
    with pytest.raises(SpecError):
        script.parse("0 heal 4", SHAPE, in_force=there)


@pytest.fixture
def played(monkeypatch):
    """What a script did, with apply's two verbs taken note of and time standing still."""
    seen = []

    def inject(name, kind, target, settings):
        seen.append(("inject", kind, target))
        return Fault(id=len(seen), kind=kind, target=target)

    monkeypatch.setattr(apply, "inject", inject)
    monkeypatch.setattr(apply, "heal", lambda _, which: seen.append(("heal", which)) or [])
    return seen


def test_steps_are_played_at_their_times(played):
    slept, said = [], []
    script.play("lab", script.parse(GOOD, SHAPE), said.append, sleep=slept.append)
    assert played == [
        ("inject", "silent-drop", "p2/n3"),
        ("inject", "loss", "p*/n1"),
        ("heal", "silent-drop p2/n3"),
        ("heal", "all"),
    ]
    assert [round(s, 1) for s in slept] == [0.0, 2.5, 5.0, 5.0]
    assert len(said) == 4


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), LabError("lab/node-dead", "n1 is dead")])
def test_a_script_that_cannot_go_on_heals_what_it_injected(played, monkeypatch, stop):
    class State:
        faults = (Fault(id=1, kind="silent-drop", target="p2/n3"), Fault(id=9, kind="loss", target="p0/n0"))

    monkeypatch.setattr(script.store, "running", lambda _: State)

    def sleep(seconds):
        if seconds > 1:
            raise stop

    with pytest.raises(type(stop)):
        script.play("lab", script.parse(GOOD, SHAPE), lambda _: None, sleep=sleep)
    assert played == [("inject", "silent-drop", "p2/n3"), ("heal", "1")]

"""A timeline of faults: read whole, refused whole, played in order."""

from __future__ import annotations

import pytest

from fairlead.errors import SpecError
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
"""
    with pytest.raises(SpecError) as caught:
        script.parse(bad, SHAPE, "s.txt")
    assert [p.line for p in caught.value.problems] == [2, 3, 4, 5, 6, 7, 8]
    assert "s.txt:3" in str(caught.value)
    assert "did you mean `loss`" in str(caught.value)


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


def test_an_interrupted_script_heals_what_it_injected(played, monkeypatch):
    class State:
        faults = (Fault(id=1, kind="silent-drop", target="p2/n3"), Fault(id=9, kind="loss", target="p0/n0"))

    monkeypatch.setattr(script.store, "running", lambda _: State)

    def sleep(seconds):
        if seconds > 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        script.play("lab", script.parse(GOOD, SHAPE), lambda _: None, sleep=sleep)
    assert played == [("inject", "silent-drop", "p2/n3"), ("heal", "1")]

"""Ranks that lie: who speaks is known by the connection; what is no message of ours ends that rank alone."""

from __future__ import annotations

import json

import pytest

from fairlead.cluster.protocol import Line
from fairlead.launch import Lied, Patience, Said, ears
from fairlead.launch.run import Ranks
from fairlead.launch.watch import Watch, _numbers
from unit.launch.test_stream import Spoken, says


def stream(lines, **more):
    """What comes of these lines, where all three ranks then end."""
    group = Spoken([*lines, *(Line(f"n{i}", i, "stderr", "") for i in range(3))])
    return group, list(Ranks(group, Watch(Patience(ranks=3), 60.0), 3, **more))


def out(rank: int, text: str) -> Line:
    return Line(f"n{rank}", rank, "stdout", text)


def test_a_rank_that_names_another_node_is_on_its_own():
    _, events = stream([says(0, "start"), out(2, json.dumps({"say": "error", "node": "n0", "rank": 0}))])
    assert [(e.what, e.rank, e.node) for e in events if isinstance(e, Said)] == [("start", 0, "n0"), ("error", 2, "n2")]


LIES = {
    "a port beyond all": (0, {"say": "store", "port": 70_000}),
    "a port below all": (0, {"say": "store", "port": -1}),
    "a port that is a list": (0, {"say": "store", "port": []}),
    "no port": (0, {"say": "store"}),
    "somebody else's address": (0, {"say": "store", "port": 80, "host": "192.0.2.7"}),
    "a host that is none": (0, {"say": "store", "port": 80, "host": "-x"}),
    "a store of another rank": (1, {"say": "store", "port": 4711}),
}


@pytest.mark.parametrize(("rank", "lie"), LIES.values(), ids=LIES)
def test_a_rendezvous_that_cannot_be_reaches_nobody(rank, lie):
    group, events = stream([out(rank, json.dumps(lie)), says(2, "start")], host="10.0.0.1")
    assert [s for s in group.sent if s["do"] == "store"] == []
    assert [(e.rank, e.node) for e in events if isinstance(e, Lied)] == [(rank, f"n{rank}")]
    assert [e.rank for e in events if isinstance(e, Said)] == [2]


def test_a_second_rendezvous_reaches_nobody():
    group, events = stream([says(0, "store", port=4711), says(0, "store", port=22)])
    assert [s["port"] for s in group.sent if s["do"] == "store"] == [4711]
    assert len([e for e in events if isinstance(e, Lied)]) == 1


DEEP = "[" * 20 + "]" * 20
WITHOUT_END = {
    "deep": ['{"say":"start","env":' + "[" * 100_000 + "]" * 100_000 + "}"],
    "deeper than any message": ['{"say":"start","env":' + DEEP + ',"x":"' + "[" * 99 + '"}'],
    "pieces of ever new messages": [f"~{i} 0 2 x" for i in range(100)],
    "a piece of too many": ["~1 0 9999 x"],
    "a piece behind the last": ["~1 5 2 x"],
    "words": ["x" * 100_000] * 100,
    "messages": [json.dumps({"say": "phase", "phase": "x" * 1000})] * 10_000,
}


@pytest.mark.parametrize("lines", WITHOUT_END.values(), ids=WITHOUT_END)
def test_what_has_no_end_ends_its_own_rank(lines):
    _, events = stream([*(out(1, line) for line in lines), says(0, "start"), says(1, "start"), says(2, "start")])
    (lie,) = [e for e in events if isinstance(e, Lied)]
    assert (lie.rank, lie.node) == (1, "n1")
    assert (lie.what + lie.said).isprintable()
    assert [e.rank for e in events if isinstance(e, Said) and e.what == "start"] == [0, 2]
    kept = sum(len(str(e)) for e in events)
    assert kept < 3 * ears.MAX_SAID_BYTES


@pytest.mark.parametrize("text", ["0-99999999999", "1-", "x", "9" * 5000, "-3", "0,,1", "³", "5-2"])
def test_who_is_missing_are_numbers_of_this_group(text):
    watch = Watch(Patience(ranks=3), 60.0)
    for event in stream([says(1, "missing", ranks="0"), says(0, "missing", ranks=text), says(2, "start")])[1]:
        watch.hear(event)
    assert watch.missing == text

    assert set(_numbers(text, 3)) <= {0, 1, 2}

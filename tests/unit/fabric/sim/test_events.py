"""A run as events: what they say is what the summary counts and the scenario says."""

from __future__ import annotations

import msgspec

from fairlead.fabric.sim.events import events
from fairlead.records.fabricevent import FabricEvent, line
from support.sim_runs import MRC_64, play

FLOW = '[[traffic]]\nkind = "flow"\nnics = "0"\nto = 40\nsize_bytes = 4_000_000\nqps = 2\n[run]\nuntil_us = 4000\n'
FAULTS = (
    '[[fault]]\nkind = "t1"\nplane = 2\nt1 = 3\nat_us = 20\nuntil_us = 40\n'
    '[[fault]]\nkind = "port"\nplane = 1\nnic = 0\nat_us = 3900\n'
)


def test_messages_and_faults_are_told_in_order_and_what_came_after_the_end_is_not() -> None:
    results = play(MRC_64 + FLOW + FAULTS).results
    found = [msgspec.json.decode(line(e), type=FabricEvent) for e in events(results)]
    assert [e.at_ns for e in found] == sorted(e.at_ns for e in found)
    begun, complete = ([e for e in found if e.what == what] for what in ("begun", "complete"))
    assert len(begun) == len(complete) == sum(part.done for part in results.parts) > 0
    assert {(e.node, e.peer) for e in begun} == {("0", "40")}
    assert sum(e.num_bytes for e in complete) == sum(part.payload_bytes for part in results.parts)
    assert max(e.at_ns for e in complete) == results.end.time_ps // 1000
    told = [(e.what, e.at_ns, e.op, e.plane, e.path) for e in found if e.what in ("fault", "repair")]
    assert told == [("fault", 20_000, "t1", 2, "t1-3"), ("repair", 40_000, "t1", 2, "t1-3")]

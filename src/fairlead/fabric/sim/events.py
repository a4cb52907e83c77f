"""A run as events, the same as a wire has them: messages that begin and are complete, faults that come and go.

Single packets are not told: there are millions of them in a millisecond.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from fairlead.fabric.sim.faults import each
from fairlead.fabric.sim.results import Ints, Results
from fairlead.records.fabricevent import FabricEvent

PS_PER_NS = 1000
NS_PER_US = 1000


def events(results: Results) -> list[FabricEvent]:
    """In order of time; of messages those of `Results.spans`."""
    return sorted([*_messages(results.spans), *_faults(results)], key=lambda e: e.at_ns)


def _messages(spans: Ints) -> Iterator[FabricEvent]:
    for src, dst, num_bytes, due, done in spans.tolist():
        event = FabricEvent(at_ns=due // PS_PER_NS, what="begun", node=str(src), peer=str(dst), num_bytes=num_bytes)
        yield event
        if done >= 0:
            yield msgspec.structs.replace(event, at_ns=done // PS_PER_NS, what="complete")


def _faults(results: Results) -> Iterator[FabricEvent]:
    end_ns = results.end.time_ps // PS_PER_NS
    for fault in (part for said in results.setup.scenario.fault for part in each(said)):
        places = {"t0": fault.t0, "t1": fault.t1, "nic": fault.nic, "core": fault.core}
        path = "/".join(f"{name}-{number}" for name, number in places.items() if number >= 0)
        plane = fault.plane if fault.plane >= 0 else None
        at_ns, until_ns = round(fault.at_us * NS_PER_US), round(fault.until_us * NS_PER_US)
        event = FabricEvent(at_ns=at_ns, what="fault", plane=plane, path=path, op=fault.kind)
        if at_ns <= end_ns:
            yield event
        if 0 < until_ns <= end_ns:
            yield msgspec.structs.replace(event, at_ns=until_ns, what="repair")

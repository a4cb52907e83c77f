"""The ports' counters once more, when everything else is over: so the time they are watched costs none. Pure.

The first reading is the probe's, and the agent's where the probe read less. The last is asked for by a step like those
of the pair phase, but of a program of a few lines: agents go before ranks start, as a scheduler counts what runs.
"""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.preflight.pairs import counters
from fairlead.preflight.pairs.facts import PairFacts
from fairlead.preflight.pairs.limits import Limits
from fairlead.preflight.pairs.steps import Counted, Step

READER = ("fairlead-counters", "fairlead.preflight.pairs.onnode.counting")
"""The name and the parts of that program; `tell_counters()` is its last line."""


def last_look(facts: PairFacts, counted: Sequence[Counted], limits: Limits) -> Step:
    """Asks the nodes that the pair phase has not lost; a node waits until its ports were watched for long enough."""
    return Step(
        line={
            "do": "counters",
            "step": 1,
            "nodes": facts.nodes,
            "ports": [c.ports for c in counted],
            "since_ns": [c.since_ns for c in counted],
            "counters": counters.asked(),
            "watch_ms": limits.watch_ms,
        },
        expect=frozenset(n for n, c in enumerate(counted) if c.ports and n not in facts.lost),
        limit_s=limits.start_s,
    )

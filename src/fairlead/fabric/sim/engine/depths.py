"""How deep queues are over time: for each bin of the goodput record, the deepest data queue of each kind of port.

A switch that is played leaves the depth of its deepest queues at the end of the window; one that is not played has
nothing to do, or waits behind a pause or a slow link: its last depths still hold.

Knows: nodes and bins. Must not know: queues.
"""

from __future__ import annotations

from typing import Any, Final

from fairlead.fabric.sim.engine import layout as at
from fairlead.fabric.sim.engine.jit import engine, engine_inline, row_of

KINDS: Final = ("T0 to NIC", "T0 up", "T1", "core")
"""Kinds of ports, in the order of the table. Of T1 and core all ports are one kind."""


@engine_inline
def side(w: Any, node: Any, local: int) -> int:
    """Which of the depths of its node a port counts for: 1 for the uplinks of a T0, 0 for others."""
    return 1 if node[at.ND_KIND] == at.NODE_T0 and local >= w[at.W_HOSTS] else 0


@engine_inline
def leave(w: Any, number: int, here: int, up: int) -> None:
    """A switch was played: its deepest queues now."""
    row = row_of(w, at.T_HELD, at.HELD_COLUMNS, number)
    row[0], row[1] = here, up


@engine
def note(w: Any, thread: int, number: int, node: Any) -> None:
    """Enter a switch in the bin of this window. The table holds depths + 1: 0 is a bin that was never played."""
    held = row_of(w, at.T_HELD, at.HELD_COLUMNS, number)
    place = row_of(w, at.T_THREADS, at.THREAD_COLUMNS, thread)[at.TH_BIN]
    kind = node[at.ND_KIND]
    first = thread * at.DEPTH_KINDS + (kind + 1 if kind != at.NODE_T0 else 0)
    row = row_of(w, at.T_DEPTHS, w[at.W_BINS], first)
    row[place] = max(row[place], held[0] + 1)
    if kind == at.NODE_T0:
        row = row_of(w, at.T_DEPTHS, w[at.W_BINS], first + 1)
        row[place] = max(row[place], held[1] + 1)

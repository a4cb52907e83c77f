"""The loop over windows of time: the engine's theory of operation, and its one kernel.

Time is cut into windows no longer than the shortest link. What a node sends in a window reaches the next node in a
later one, so within a window nodes do not depend on each other: each may be swept alone, in any order, by any thread.
A sweep takes everything that arrives at the node in the window, brings it in order of (time, port it came by), and
plays it against the node's own events. The result is the one a global event list would give, whatever the number of
threads:

    for each window:
        for each node with arrivals or something due:        (half of the nodes for each of two threads)
            sort its arrivals; play ports or NICs; write what leaves to the streams of the next nodes
        meet

Memory is walked node by node: the few dozen KiB of a switch stay in cache while its window is played, and packets pass
between nodes through streams that are written and read in order. At 131,072 NICs the memory system decides, not
arithmetic: a global event list visits four million queues in random order, a sweep visits each once a window, in order.

Knows: windows and nodes. Must not know: what happens inside one.
"""

from __future__ import annotations

from typing import Any

from fairlead.fabric.sim.engine import layout as at
from fairlead.fabric.sim.engine.depths import note
from fairlead.fabric.sim.engine.jit import call, engine, halves, row_of, words
from fairlead.fabric.sim.engine.stores import balance
from fairlead.fabric.sim.engine.streams import arriving


@engine
def _has_arrivals(w: Any, thread: int, number: int) -> bool:
    for writer in range(w[at.W_THREADS]):
        if row_of(w, at.T_STREAMS, at.STREAM_COLUMNS, arriving(w, number, thread, writer))[at.STREAM_COUNT] > 0:
            return True
    return False


@engine
def sweep(w: Any, thread: int, start: int) -> None:
    """Play one window for the nodes of one thread."""
    end = start + w[at.W_WINDOW]
    order = halves(w[at.T_ORDER])
    mine = row_of(w, at.T_THREADS, at.THREAD_COLUMNS, thread)
    mine[at.TH_START] = start
    mine[at.TH_SLOT] = start // w[at.W_WINDOW] & (w[at.W_SLOTS] - 1)
    mine[at.TH_BIN] = min(start // w[at.W_BIN], w[at.W_BINS] - 1)
    wake = at.NEVER
    for k in range(mine[at.TH_FIRST_NODE], mine[at.TH_LAST_NODE]):
        number = order[k]
        node = row_of(w, at.T_NODES, at.NODE_COLUMNS, number)
        if node[at.ND_WAKE] < end or _has_arrivals(w, thread, number):
            unit = w[at.C_SWEEP_GROUP] if node[at.ND_KIND] == at.NODE_GROUP else w[at.C_SWEEP_SWITCH]
            mine[at.TH_ARRIVALS] += call(unit, w[at.W_SELF], thread, number, start, end)
        if node[at.ND_KIND] != at.NODE_GROUP:
            note(w, thread, number, node)
        wake = min(wake, node[at.ND_WAKE])
    mine[at.TH_WAKE] = wake


def play(address: int, thread: int, start: int, until: int, num_windows: int) -> int:
    """Play windows from `start`; returns when the next one begins, or NEVER if nothing is left to happen.
    With `thread` -1 the caller plays all shares, up to `num_windows` windows, and skips windows in which
    nothing happens; otherwise one window of one share.
    """
    w = words(address)
    if thread >= 0:
        sweep(w, thread, start)
        return start + w[at.W_WINDOW]
    for _ in range(num_windows):
        if start >= until:
            break
        for each in range(w[at.W_THREADS]):
            sweep(w, each, start)
        start = end_window(w, start)
        if start == at.NEVER or is_over(w):
            break
    return start


@engine
def is_over(w: Any) -> bool:
    """Every message is complete, or the run is void."""
    done = 0
    for thread in range(w[at.W_THREADS]):
        share = row_of(w, at.T_THREADS, at.THREAD_COLUMNS, thread)
        done += share[at.TH_DONE]
        if share[at.TH_OVERFLOW] > 0:
            return True
    return done >= w[at.W_MESSAGES]


def after(address: int, start: int) -> int:
    """Close the window that began at `start`, which several threads played, one share each."""
    return end_window(words(address), start)


@engine
def end_window(w: Any, start: int) -> int:
    """The window after the one that began at `start`, or the next in which anything is due; NEVER if there is none."""
    balance(w, at.TH_CHUNKS, at.T_CHUNK_FREE)
    balance(w, at.TH_PLACES, at.T_POOL_FREE)
    in_flight, wake = 0, at.NEVER
    for thread in range(w[at.W_THREADS]):
        share = row_of(w, at.T_THREADS, at.THREAD_COLUMNS, thread)
        in_flight += share[at.TH_IN_FLIGHT]
        wake = min(wake, share[at.TH_WAKE])
    start += w[at.W_WINDOW]
    if in_flight > 0:
        return start
    if wake == at.NEVER:
        return at.NEVER
    return max(start, wake // w[at.W_WINDOW] * w[at.W_WINDOW])

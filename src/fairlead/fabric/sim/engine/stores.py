"""Free memory of each thread: chunks for streams, places for packets in queues.

A thread takes what it freed last (still in cache), then what was never used, so that memory is touched only as far as
a run really needs it. What one thread writes another frees, so free memory wanders; between windows, when no thread
plays, it is brought back.

Knows: stacks of free numbers. Must not know: what the memory is used for.
"""

from __future__ import annotations

from typing import Any

from fairlead.fabric.sim.engine import layout as at
from fairlead.fabric.sim.engine.jit import engine, engine_inline, halves, row_of


@engine_inline
def take(w: Any, thread: int, store: int, table: int) -> int:
    """A free number of a store (TH_CHUNKS, TH_PLACES), or -1: the run is then void."""
    mine = row_of(w, at.T_THREADS, at.THREAD_COLUMNS, thread)
    if mine[store + at.ST_FREE] > 0:
        mine[store + at.ST_FREE] -= 1
        return halves(w[table])[mine[store + at.ST_STACK] + mine[store + at.ST_FREE]]
    if mine[store + at.ST_FRESH] < mine[store + at.ST_END]:
        mine[store + at.ST_FRESH] += 1
        return mine[store + at.ST_FRESH] - 1
    mine[at.TH_OVERFLOW] += 1
    return -1


@engine_inline
def give(w: Any, thread: int, store: int, table: int, number: int) -> None:
    """Give a number back."""
    mine = row_of(w, at.T_THREADS, at.THREAD_COLUMNS, thread)
    halves(w[table])[mine[store + at.ST_STACK] + mine[store + at.ST_FREE]] = number
    mine[store + at.ST_FREE] += 1


@engine
def balance(w: Any, store: int, table: int) -> None:
    """If one thread has twice as much left as another, share that evenly. Only while no thread plays."""
    poor = rich = row_of(w, at.T_THREADS, at.THREAD_COLUMNS, 0)
    least = most = _left(poor, store)
    for thread in range(1, w[at.W_THREADS]):
        each = row_of(w, at.T_THREADS, at.THREAD_COLUMNS, thread)
        left = _left(each, store)
        if left < least:
            poor, least = each, left
        if left > most:
            rich, most = each, left
    if least * 2 >= most:
        return
    numbers = halves(w[table])
    for _ in range((most - least) // 2):
        if rich[store + at.ST_FREE] > 0:
            rich[store + at.ST_FREE] -= 1
            number = numbers[rich[store + at.ST_STACK] + rich[store + at.ST_FREE]]
        else:
            rich[store + at.ST_END] -= 1
            number = rich[store + at.ST_END]
        numbers[poor[store + at.ST_STACK] + poor[store + at.ST_FREE]] = number
        poor[store + at.ST_FREE] += 1


@engine_inline
def _left(row: Any, store: int) -> int:
    return row[store + at.ST_FREE] + row[store + at.ST_END] - row[store + at.ST_FRESH]

"""Putting what arrived at a node in order: by port (a counting sort), then by time within the port.

Knows: keys, values and the scratch rows they stand in. Must not know: what they mean.
"""

from __future__ import annotations

from typing import Any, Final

from fairlead.fabric.sim.engine import layout as at
from fairlead.fabric.sim.engine.jit import engine, engine_inline, row_of

GAPS: Final = (1750, 701, 301, 132, 57, 23, 10, 4, 1)  # Ciura's sequence for Shell's sort


@engine_inline
def scratch(w: Any, thread: int, which: int) -> Any:
    """A row of scratch memory of one thread (SC_*)."""
    return row_of(w, at.T_SCRATCH, w[at.W_SCRATCH_ROOM], thread * at.SCRATCH_ROWS + which)


@engine
def sort_slice(keys: Any, values: Any, first: int, last: int) -> None:
    """Sort keys[first:last], and values along with them. Slices are mostly shorter than ten."""
    for gap in GAPS:
        if gap > 1 and gap * 2 > last - first:
            continue
        for i in range(first + gap, last):
            key, value = keys[i], values[i]
            j = i
            while j >= first + gap and keys[j - gap] > key:
                keys[j] = keys[j - gap]
                values[j] = values[j - gap]
                j -= gap
            keys[j] = key
            values[j] = value


@engine
def group(w: Any, thread: int, num_buckets: int, num: int) -> None:
    """Bring `num` pairs of keys and values into the order of their buckets, in the sorted rows.

    On entry `starts[b + 1]` holds how many belong to bucket b, and `starts[0]` is 0; on return bucket b stands from
    `starts[b]` to `starts[b + 1]`.
    """
    starts, buckets = scratch(w, thread, at.SC_STARTS), scratch(w, thread, at.SC_BUCKETS)
    keys, values = scratch(w, thread, at.SC_KEYS), scratch(w, thread, at.SC_VALUES)
    sorted_keys, sorted_values = scratch(w, thread, at.SC_SORTED_KEYS), scratch(w, thread, at.SC_SORTED_VALUES)
    for b in range(num_buckets):
        starts[b + 1] += starts[b]
    for i in range(num - 1, -1, -1):
        place = starts[buckets[i] + 1] - 1
        starts[buckets[i] + 1] = place
        sorted_keys[place] = keys[i]
        sorted_values[place] = values[i]
    # every start was moved down to where its bucket begins, one place to the right: shift back
    for b in range(num_buckets):
        starts[b] = starts[b + 1]
    starts[num_buckets] = num

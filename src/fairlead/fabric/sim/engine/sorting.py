"""Putting what arrived at a node in order: by port (a counting sort), then by time within the port.

Knows: keys and places. Must not know: what they mean.
"""

from __future__ import annotations

from typing import Any, Final

from fairlead.fabric.sim.engine.jit import engine

GAPS: Final = (1750, 701, 301, 132, 57, 23, 10, 4, 1)  # Ciura's sequence for Shell's sort


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
                keys[j], values[j] = keys[j - gap], values[j - gap]
                j -= gap
            keys[j], values[j] = key, value


@engine
def group(
    buckets: Any, starts: Any, num_buckets: int, keys: Any, values: Any, keys_out: Any, values_out: Any, num: int
) -> None:
    """Bring `num` pairs into the order of their buckets. `starts[b]` to `starts[b + 1]` is then bucket b.

    On entry `starts[b + 1]` holds how many belong to bucket b, and `starts[0]` is 0.
    """
    for b in range(num_buckets):
        starts[b + 1] += starts[b]
    for i in range(num - 1, -1, -1):
        b = buckets[i]
        starts[b + 1] -= 1
        keys_out[starts[b + 1]] = keys[i]
        values_out[starts[b + 1]] = values[i]
    # every start was moved down to where its bucket begins, one place to the right: shift back
    for b in range(num_buckets):
        starts[b] = starts[b + 1]
    starts[num_buckets] = num

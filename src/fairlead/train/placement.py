"""Which tier holds the state: as many layers as fit on the device, the others in host memory or on disk.

    device    layers from the first on, as each step begins with them and nothing can be fetched ahead of it
    host      where it fits and a step is quicker for it
    disk      else: where a step hides the disk behind computing, every step is committed for nothing

Pure. Must not know: how memory is counted, or how rates are measured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Keep = Literal["disk", "memory"]

WORTH = 0.05
"""Of a step's time: what memory must save, or the state is kept on disk, where a kill costs a step at most."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way to keep the state."""

    fits: bool
    seconds: float | None
    """Of a step, by what was measured; None where it is not known."""


def choose(disk: Way, memory: Way) -> tuple[Keep, str]:
    """Where what does not stay on the device lives, and why."""
    if not memory.fits:
        return "disk", "it does not fit in memory"
    if not disk.fits:
        return "memory", "it does not fit on the store's disk"
    if disk.seconds is None or memory.seconds is None:
        return "memory", "it fits there; how long a step takes is not known"
    beside = f"a step takes {memory.seconds:,.2f} s from memory, {disk.seconds:,.2f} s from disk"
    if memory.seconds < (1 - WORTH) * disk.seconds:
        return "memory", beside
    return "disk", f"{beside}, where every step is committed"


def most(num: int, fits: Callable[[int], bool]) -> int:
    """The largest number of layers up to `num` that fit on the device; 0 where none does. More never fit better."""
    few, many = 0, num
    while few < many:
        middle = (few + many + 1) // 2
        if fits(middle):
            few = middle
        else:
            many = middle - 1
    return few

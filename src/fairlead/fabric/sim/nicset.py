"""Sets of NICs as a scenario writes them: `0-63,128`, by number; the empty text means all.

Knows: ranges of numbers. Must not know: any fabric.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from fairlead.errors import UsageError

_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?:/([0-9]{1,9}))?)?\Z")
_MAX = 1 << 24


class NicSet:
    """An ordered set of NIC numbers. Raises UsageError (`sim/nics`) for a text that is none.

    >>> NicSet("0-6/2,9").numbers(16).tolist()
    [0, 2, 4, 6, 9]
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.ranges: list[range] = []
        num = 0
        for part in filter(None, (p.strip() for p in text.split(","))):
            match = _RANGE.match(part)
            if not match:
                raise UsageError(
                    "sim/nics", f"`{part[:40]}` is no NIC number or range", hint="write NICs as 0-63,128 or 0-254/2"
                )
            first, last, step = match.groups()
            low, high = int(first), int(last or first)
            if high < low or high >= _MAX or (step and int(step) == 0):
                raise UsageError("sim/nics", f"`{part}` runs backwards or too far", hint="write the lower number first")
            self.ranges.append(range(low, high + 1, int(step or 1)))
            num += len(self.ranges[-1])
            if num > _MAX:
                raise UsageError("sim/nics", f"more than {_MAX} NICs are named", hint="name each NIC once")

    def __repr__(self) -> str:
        return f"NicSet({self.text!r})"

    @property
    def is_all(self) -> bool:
        """No NIC was named: all of them."""
        return not self.ranges

    @property
    def highest(self) -> int:
        """The highest number named; -1 if none."""
        return max((r[-1] for r in self.ranges), default=-1)

    def numbers(self, num_nics: int) -> NDArray[np.int64]:
        """The numbers, in the order written, each once."""
        return np.arange(num_nics, dtype=np.int64) if self.is_all else self.every

    @property
    def every(self) -> NDArray[np.int64]:
        """The numbers that were written; at least one."""
        every = np.concatenate([np.arange(r.start, r.stop, r.step, dtype=np.int64) for r in self.ranges])
        first = np.unique(every, return_index=True)[1]
        picked: NDArray[np.int64] = every[np.sort(first)]
        return picked

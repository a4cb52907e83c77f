"""Memory for protocol state: numpy arrays that the law runs over, compiled or plain.

What is in a row is rows.py's business and what it means the law's; here rows are only counted, allocated and found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fairlead.fabric.mrc.profile import Profile
from fairlead.fabric.mrc.rows import LINE_WORDS, NUM_PARAMETERS

IntArray = NDArray[np.int64]
PROFILE_WORDS = -(-NUM_PARAMETERS // LINE_WORDS) * LINE_WORDS


@dataclass(frozen=True)
class State:
    """Rows of many queue pairs in one memory; all rows are as long as the longest profile needs."""

    m: IntArray
    profiles: tuple[int, ...]  # addresses, in the order given
    num_tx: int
    num_rx: int
    tx_base: int
    tx_stride: int
    rx_base: int
    rx_stride: int

    def tx(self, index: int) -> int:
        """Address of a requestor row."""
        return self.tx_base + index * self.tx_stride

    def rx(self, index: int) -> int:
        """Address of a responder row."""
        return self.rx_base + index * self.rx_stride

    def plain(self) -> memoryview:
        """The same memory for the law in plain Python: items read as int and are checked on writing."""
        return self.m.data


def zeros(num_words: int) -> IntArray:
    """Words of zero that begin at a cache line. Pages are taken from the system when first touched."""
    raw = np.zeros(num_words + LINE_WORDS, dtype=np.int64)
    start = -(raw.ctypes.data // 8) % LINE_WORDS
    return raw[start : start + num_words]


def num_words(profiles: Sequence[Profile], num_tx: int, num_rx: int) -> int:
    """Words that `allocate` would take: for refusing what would not fit, before allocating."""
    tx_stride = max(p.tx_words for p in profiles)
    rx_stride = max(p.rx_words for p in profiles)
    return len(profiles) * PROFILE_WORDS + num_tx * tx_stride + num_rx * rx_stride


def allocate(profiles: Sequence[Profile], num_tx: int, num_rx: int) -> State:
    """Memory for so many rows, all zero, and the profile blocks. law.init_tx and law.init_rx then set rows up."""
    tx_stride = max(p.tx_words for p in profiles)
    rx_stride = max(p.rx_words for p in profiles)
    m = zeros(num_words(profiles, num_tx, num_rx))
    places = tuple(i * PROFILE_WORDS for i in range(len(profiles)))
    for place, profile in zip(places, profiles, strict=True):
        m[place : place + NUM_PARAMETERS] = profile.words()
    tx_base = len(profiles) * PROFILE_WORDS
    return State(
        m=m,
        profiles=places,
        num_tx=num_tx,
        num_rx=num_rx,
        tx_base=tx_base,
        tx_stride=tx_stride,
        rx_base=tx_base + num_tx * tx_stride,
        rx_stride=rx_stride,
    )

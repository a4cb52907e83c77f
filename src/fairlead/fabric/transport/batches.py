"""Segmentation offload: which packets may go to the kernel as one, and what one that came is cut into. Pure.

A batch shares one entropy value and, where nothing cuts it before its end (the loopback, virtual links), one fate: it
is queued, marked and dropped as a whole. So it is a mode that is asked for, never assumed.
"""

from __future__ import annotations

from typing import Final

UDP_SEGMENT = 103  # linux/udp.h
UDP_GRO = 104
MAX_SEGMENTS: Final = 64  # UDP_MAX_SEGMENTS of kernels before 6.10; later ones take 128
MAX_BYTES: Final = 65_000  # what the length fields of IP and UDP hold, less every header


def run_of(num_bytes: int) -> int:
    """Packets of a batch, each of so many bytes of UDP payload.

    >>> run_of(4144), run_of(200)
    (15, 64)
    """
    return max(min(MAX_SEGMENTS, MAX_BYTES // num_bytes), 1)


def fits(first: int, last: int, num: int, size: int) -> bool:
    """Whether a packet of `size` bytes may follow `num` packets of `first` bytes but for the last, which has `last`.

    The kernel cuts at multiples of the first one's size: only the last packet of a batch may be shorter.
    """
    return size <= first and last == first and num < MAX_SEGMENTS and (num + 1) * first <= MAX_BYTES

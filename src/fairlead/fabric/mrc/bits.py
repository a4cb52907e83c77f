"""Bits of law: ring bitmaps, sequence-number arithmetic and the random stream, in pure integers.

Every function runs unchanged in plain Python and under numba, and gives the same result in both: values stay below
2^62, bitmap words hold 32 bits, and each left shift is masked. This file knows no field of any row.
"""

from __future__ import annotations

from fairlead.fabric.mrc.rows import Endpoint, Words

WORD_BITS = 32
LOW32 = 0xFFFFFFFF
PSN_MASK = 0xFFFFFF
PSN_HALF = 0x800000


def count_ones(x: int) -> int:
    """Set bits of a 32-bit word."""
    x -= (x >> 1) & 0x55555555
    x = (x & 0x33333333) + ((x >> 2) & 0x33333333)
    x = (x + (x >> 4)) & 0x0F0F0F0F
    return ((x * 0x01010101) & LOW32) >> 24


def lowest(x: int) -> int:
    """Position of the lowest set bit of a word that is not 0."""
    return count_ones((x & -x) - 1)


def test(area: Words, i: int) -> int:
    """Bit i of a bitmap."""
    return (area[i >> 5] >> (i & 31)) & 1


def put(area: Words, i: int) -> None:
    """Set bit i."""
    area[i >> 5] |= 1 << (i & 31)


def drop(area: Words, i: int) -> None:
    """Clear bit i."""
    area[i >> 5] &= ~(1 << (i & 31))


def find_set(area: Words, mask: int, start: int, end: int) -> int:
    """First n in [start, end) whose ring bit is set; `end` if there is none."""
    n = start
    while n < end:
        i = n & mask
        word = area[i >> 5] >> (i & 31)
        if word != 0:
            return min(n + lowest(word), end)
        n += 32 - (i & 31)
    return end


def find_clear(area: Words, mask: int, start: int, end: int) -> int:
    """First n in [start, end) whose ring bit is clear; `end` if there is none."""
    n = start
    while n < end:
        i = n & mask
        word = (area[i >> 5] ^ LOW32) >> (i & 31)
        if word != 0:
            return min(n + lowest(word), end)
        n += 32 - (i & 31)
    return end


def take_range(area: Words, mask: int, start: int, end: int) -> int:
    """Clear the ring bits of [start, end) and return how many were set."""
    taken = 0
    n = start
    while n < end:
        i = n & mask
        width = min(32 - (i & 31), end - n)
        pick = ((1 << width) - 1) << (i & 31)
        word = area[i >> 5]
        if word & pick != 0:
            taken += count_ones(word & pick)
            area[i >> 5] = word & ~pick
        n += width
    return taken


def window32(area: Words, mask: int, start: int) -> int:
    """The 32 ring bits from `start` on, the bit of `start` lowest."""
    i = start & mask
    shift = i & 31
    low = area[i >> 5] >> shift
    if shift == 0:
        return low
    high = area[(((i | 31) + 1) & mask) >> 5]
    return low | (high << (32 - shift)) & LOW32


def unwrap(psn: int, near: int) -> int:
    """The full sequence number whose low 24 bits are those of `psn` and which lies closest to `near`.

    PSNs are 24 bits on the wire and unbounded in rows. A full number within 2^23 of `near` is returned as it is, so a
    simulator, which has no need to cut PSNs, passes them whole.
    """
    ahead = (psn - near) & PSN_MASK
    if ahead >= PSN_HALF:
        ahead -= PSN_MASK + 1
    return near + ahead


def scramble(seed: int) -> int:
    """A well-mixed 32-bit value, never 0, from any seed: the first state of a random stream (murmur3 finaliser)."""
    x = (seed ^ (seed >> 32)) & LOW32
    x = ((x ^ (x >> 16)) * 0x45D9F3B + 0x9E3779B9) & LOW32
    x = ((x ^ (x >> 16)) * 0x45D9F3B) & LOW32
    x ^= x >> 16
    return x if x != 0 else 0x9E3779B9


def random32(row: Endpoint) -> int:
    """Next number of the row's own stream (Marsaglia's 13-17-5 xorshift)."""
    x = row.stream
    x ^= (x << 13) & LOW32
    x ^= x >> 17
    x ^= (x << 5) & LOW32
    row.stream = x
    return x

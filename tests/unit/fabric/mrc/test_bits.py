"""Ring bitmaps, sequence numbers, the random stream."""

from __future__ import annotations

import random

import pytest

from fairlead.fabric.mrc import bits
from fairlead.fabric.mrc.rows import Endpoint

WORDS = [0, 1, 2, 3, 0x80000000, 0xFFFFFFFF, 0x55555555, 0x00010000]


@pytest.mark.parametrize("word", WORDS)
def test_count_ones(word: int) -> None:
    assert bits.count_ones(word) == word.bit_count()


@pytest.mark.parametrize("word", WORDS[1:])
def test_lowest(word: int) -> None:
    assert bits.lowest(word) == (word & -word).bit_length() - 1


def test_ring_searches_agree_with_a_list_of_booleans_also_round_the_end() -> None:
    rng = random.Random(1)
    size = 128
    for _ in range(400):
        ring = [rng.random() < 0.1 for _ in range(size)]
        m = [sum(ring[32 * w + i] << i for i in range(32)) for w in range(4)]
        start = rng.randrange(10_000)
        end = start + rng.randrange(size + 1)
        inside = [n for n in range(start, end) if ring[n % size]]
        outside = [n for n in range(start, end) if not ring[n % size]]
        assert bits.find_set(m, size - 1, start, end) == (inside or [end])[0]
        assert bits.find_clear(m, size - 1, start, end) == (outside or [end])[0]
        assert bits.window32(m, size - 1, start) == sum(ring[(start + i) % size] << i for i in range(32))
        assert bits.take_range(m, size - 1, start, end) == len(inside)
        left = [n for n in range(size) if ring[n] and n not in {k % size for k in inside}]
        assert [n for n in range(size) if bits.test(m, n)] == left


def test_put_and_drop_touch_one_bit() -> None:
    m = [0, 0]
    bits.put(m, 37)
    assert m == [0, 32]
    bits.put(m, 31)
    bits.drop(m, 37)
    assert m == [1 << 31, 0]


@pytest.mark.parametrize(
    ("psn", "near", "full"),
    [
        (5, 3, 5),
        (0xFFFFFF, 0, -1),
        (0, 0xFFFFFF, 0x1000000),
        (0x7FFFFF, 0, 0x7FFFFF),
        (0x800000, 0, -0x800000),
        (0x3000005, 0x3000000, 0x3000005),  # a whole number near by stays
        (5, 0x3000000, 0x3000005),
    ],
)
def test_unwrap_finds_the_nearest(psn: int, near: int, full: int) -> None:
    assert bits.unwrap(psn, near) == full


def test_random_streams_of_neighbouring_seeds_differ_and_never_stand_still() -> None:
    streams = []
    for seed in (0, 1, 2, 1 << 40):
        row = Endpoint(stream=bits.scramble(seed))
        streams.append(tuple(bits.random32(row) for _ in range(64)))
    assert len(set(streams)) == 4
    assert all(0 < x < 1 << 32 for stream in streams for x in stream)
    assert all(len(set(stream)) == 64 for stream in streams)


def test_scramble_never_gives_the_state_that_xorshift_cannot_leave() -> None:
    assert bits.scramble(_preimage_of_zero()) == 0x9E3779B9


def _preimage_of_zero() -> int:
    """The 32-bit seed whose mix would be 0, by running the mixer backwards."""
    x = 0
    inverse = pow(0x45D9F3B, -1, 1 << 32)
    x ^= x >> 16
    x = x * inverse % (1 << 32)
    x ^= x >> 16
    x = (x - 0x9E3779B9) * inverse % (1 << 32)
    return x ^ x >> 16

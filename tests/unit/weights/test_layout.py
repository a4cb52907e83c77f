"""How files are cut into chunks: properties that hold for any set of files."""

from __future__ import annotations

import doctest
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from fairlead.weights import shape
from fairlead.weights.onnode import layout
from fairlead.weights.onnode.layout import (
    MAX_CHUNKS,
    MAX_PACKED,
    bytes_of,
    chunk_bytes_for,
    cut,
    runs,
    to_bits,
    to_flags,
)


@given(st.lists(st.integers(0, 5000), max_size=60), st.sampled_from([1, 7, 64, 1024]))
def test_every_byte_is_in_one_chunk_and_no_chunk_is_too_large(sizes, chunk_bytes):
    chunks = cut(sizes, chunk_bytes)
    seen = {n: [] for n in range(len(sizes))}
    for chunk in chunks:
        assert 0 < bytes_of(chunk) <= chunk_bytes
        assert len(chunk) <= MAX_PACKED
        for number, at, length in chunk:
            seen[number].append((at, at + length))
    for number, parts in seen.items():
        parts.sort()
        assert sum(end - at for at, end in parts) == sizes[number]
        assert all(a[1] == b[0] for a, b in pairwise(parts))


@given(st.lists(st.integers(0, 5000), max_size=40), st.data())
def test_runs_hold_the_chunks_asked_for_in_their_order(sizes, data):
    chunks = cut(sizes, 64)
    numbers = data.draw(st.lists(st.sampled_from(range(len(chunks))), unique=True)) if chunks else []
    found = runs(chunks, numbers, 200)
    assert [first + i for first, count in found for i in range(count)] == numbers
    for first, count in found:
        assert count == 1 or len({chunks[first + i][0][0] for i in range(count)}) == 1
        assert count == 1 or sum(bytes_of(chunks[first + i]) for i in range(count)) <= 200


@given(st.lists(st.integers(0, 1), max_size=300))
def test_flags_survive_the_way(flags):
    assert list(to_flags(to_bits(bytes(flags)), len(flags))) == flags


def test_a_model_of_any_size_has_a_bounded_number_of_chunks():
    for exponent in range(47):
        total = 1 << exponent
        assert total / chunk_bytes_for(total) <= MAX_CHUNKS


def test_examples_in_the_text():
    for module in (layout, shape):
        assert doctest.testmod(module).failed == 0

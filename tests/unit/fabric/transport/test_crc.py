"""The CRC by carry-less multiplication says what zlib says: any length, place and beginning, each width of vectors."""

from __future__ import annotations

import random
import zlib

import numba
import numpy as np
import pytest

from fairlead.fabric.transport.fast import crc

DATA = np.frombuffer(random.Random(1).randbytes(70_000), np.uint8)
WORD = numba.int64
LENGTHS = (*range(600), 4096, 4097, 4136, 65_536)


@pytest.mark.parametrize("lanes", [1, 2, 4])
def test_every_width_says_what_zlib_says(lanes: int) -> None:
    if lanes > crc.LANES:
        pytest.skip(f"this processor multiplies {crc.LANES} times 64 bits at once, without carry")
    function = crc.crc32_of(lanes)

    @numba.njit(WORD(WORD, WORD, WORD))
    def crc32(before: int, address: int, num_bytes: int) -> int:
        return function(before, address, num_bytes)

    begin, data = DATA.ctypes.data, DATA.tobytes()
    for num in LENGTHS:
        for at in (0, 1, 63):
            for before in (0, 0xFFFFFFFF, 0x89ABCDEF):
                said = zlib.crc32(data[at : at + num], before)
                assert crc32(before, begin + at, num) == said, (num, at, before)


def test_the_factors_are_the_published_ones() -> None:
    """Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction", for gzip, reflected."""
    assert [crc.power(n) for n in (4 * 128 + 32, 4 * 128 - 32)] == [0x154442BD4, 0x1C6E41596]
    assert [crc.power(n) for n in (128 + 32, 128 - 32, 64)] == [0x1751997D0, 0x0CCAA009E, 0x163CD6124]
    assert (crc.MU, crc.MODULUS) == (0x1F7011641, 0x1DB710641)

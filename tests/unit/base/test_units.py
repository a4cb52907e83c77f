from __future__ import annotations

import math

import pytest

from fairlead.base.units import counted, duration, rate, size


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ns"),
        (1e-9, "1 ns"),
        (0.0000042, "4.2 µs"),
        (0.0042, "4.2 ms"),
        (0.99949, "999 ms"),
        (0.9996, "1 s"),
        (1.5, "1.5 s"),
        (59.94, "59.9 s"),
        (59.96, "1 m 00 s"),
        (61, "1 m 01 s"),
        (3599.6, "1 h 00 m"),
        (7265, "2 h 01 m"),
        (90061, "25 h 01 m"),
        (-0.5, "-500 ms"),
        (math.inf, "-"),
        (math.nan, "-"),
    ],
)
def test_durations(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (1024**2 - 1, "1 MiB"),
        (94 * 2**30, "94 GiB"),
        (2**50, "1024 TiB"),
        (2**60, "1048576 TiB"),
        (-2048, "-2 KiB"),
        (math.inf, "-"),
    ],
)
def test_sizes(num_bytes, text):
    assert size(num_bytes) == text


@pytest.mark.parametrize(
    ("bits", "text"),
    [
        (0, "0 b/s"),
        (250e6, "250 Mb/s"),
        (999.96e6, "1 Gb/s"),
        (400e9, "400 Gb/s"),
        (51.2e12, "51.2 Tb/s"),
        (1.5, "1.5 b/s"),
    ],
)
def test_rates(bits, text):
    assert rate(bits) == text


@pytest.mark.parametrize(
    ("num", "what", "said"),
    [
        (0, "node", "0 nodes"),
        (1, "node", "1 node"),
        (2, "node", "2 nodes"),
        (1, "switch", "1 switch"),
        (9, "switch", "9 switches"),
    ],
)
def test_what_is_counted_is_one_or_many(num, what, said):
    assert counted(num, what) == said

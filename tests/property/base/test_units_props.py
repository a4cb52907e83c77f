from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from fairlead.base.units import duration, rate, size

SCALES = {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "b/s": 1, "kb/s": 1e3, "Mb/s": 1e6, "Gb/s": 1e9, "Tb/s": 1e12}
SCALES |= {f"{p}B": 1024.0**i for i, p in enumerate(("", "Ki", "Mi", "Gi", "Ti"))}


def read(text):
    """The value a text stands for."""
    if match := re.fullmatch(r"(\d+) h (\d\d) m", text):
        return int(match[1]) * 3600 + int(match[2]) * 60
    if match := re.fullmatch(r"(\d+) m (\d\d) s", text):
        return int(match[1]) * 60 + int(match[2])
    number, _, unit = text.partition(" ")
    return float(number) * SCALES[unit]


@given(st.floats(1e-9, 1e7))
def test_a_duration_reads_back_to_three_figures_and_never_uses_exponents(seconds):
    text = duration(seconds)
    assert "e" not in text
    slack = 60 if " h " in text else 0.5 if " m " in text and not text.endswith("ms") else 0
    assert abs(read(text) - seconds) <= 0.006 * seconds + slack


@given(st.floats(1, 1e18))
def test_sizes_and_rates_read_back_to_four_figures_and_never_use_exponents(value):
    for text in (size(value), rate(value)):
        assert "e" not in text
        assert abs(read(text) - value) <= 0.0006 * value

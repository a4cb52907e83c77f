"""Sets of NICs as scenarios write them."""

from __future__ import annotations

import pytest

from fairlead.errors import UsageError
from fairlead.fabric.sim.nicset import NicSet


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("", [0, 1, 2, 3]),
        ("2", [2]),
        ("0-2", [0, 1, 2]),
        ("0-6/3", [0, 3, 6]),
        ("3, 1-2, 1", [3, 1, 2]),
    ],
)
def test_numbers_in_the_order_written_each_once(text, numbers):
    assert NicSet(text).numbers(4).tolist() == numbers


@pytest.mark.parametrize("text", ["x", "3-1", "1-", "0-4/0", "-3", "1..4", "99999999", "²", "٣", "0-4/00"])
def test_what_is_no_set_is_refused(text):
    with pytest.raises(UsageError) as refused:
        NicSet(text)
    assert refused.value.code == "sim/nics"


def test_the_highest_number_is_known_without_listing():
    assert NicSet("0-10,4000000").highest == 4_000_000
    assert NicSet("").highest == -1


@pytest.mark.parametrize("text", ["9" * 5000, "0-" + "9" * 5000, "0-16777215," * 2, "0-16777215," * 1000])
def test_what_stands_for_more_nics_than_there_can_be_is_refused_at_once(text):
    with pytest.raises(UsageError) as refused:
        NicSet(text)
    assert len(refused.value.message) < 200

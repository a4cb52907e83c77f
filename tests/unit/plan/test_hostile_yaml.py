"""YAML of strangers: a megabyte costs what it is long, and depth ends in a sentence, not in the end of the process."""

from __future__ import annotations

import time

import pytest

from fairlead.plan.lint.read import Refused, documents


@pytest.mark.parametrize("text", ["[" * 100_000, "{a: " * 100_000, "- " * 100_000, "a: &a [*a, *a]"])
def test_depth_is_refused(text):
    """libyaml's composer recurses for each level: 100,000 of them are a segmentation fault."""
    with pytest.raises(Refused, match="nested too deeply"):
        list(documents(text, file="f"))


@pytest.mark.parametrize("text", ["1" + ":1" * 500_000, "1" + ":1" * 500_000 + ".5", "9" * 500_000])
def test_numbers_cost_what_they_are_long(text):
    """YAML 1.1 has numbers in base sixty; made digit by digit they cost the square of their length."""
    began = time.process_time()
    (document,) = documents(f"a: {text}", file="f")
    assert document.value == {"a": text}
    assert time.process_time() - began < 5


def test_aliases_are_counted():
    laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    laughs += "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12))
    with pytest.raises(Refused, match="aliases counted"):
        list(documents(laughs, file="f"))

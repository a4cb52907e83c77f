from __future__ import annotations

from fairlead.base.suggest import did_you_mean


def test_the_nearest_word_is_offered():
    assert did_you_mean("planse", ["link", "planes", "rdma"]) == "did you mean `planes`?"


def test_far_from_everything_the_known_words_are_listed_up_to_twelve():
    assert did_you_mean("zzz", ["b", "a"]) == "known: a, b"
    many = did_you_mean("zzz", [f"k{i:02}" for i in range(20)])
    assert many.endswith("k11, ...")


def test_of_nothing_nothing_is_offered():
    assert did_you_mean("x", []) == ""

"""The check list: every id is there once, what it says of our codes is so, and `fairlead explain` finds it."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from fairlead.checks.audits import AUDITS
from fairlead.cli.explain import explain
from fairlead.records.codes import explanations, listed, peers

SIZES = {"S": 14, "U": 14, "H": 8, "A": 15, "I": 19, "F": 5, "R": 5, "C": 8, "K": 7}


def test_every_id_is_there() -> None:
    assert Counter(name[0] for name in listed()) == SIZES
    assert len(listed()) == 95
    assert all(re.fullmatch(r"[A-Z]\d+", name) for name in listed())


@pytest.mark.parametrize("name", listed())
def test_an_id_names_codes_that_are_there_or_says_why_not(name: str) -> None:
    entry = listed()[name]
    assert bool(entry.codes) != bool(entry.gap)
    assert set(entry.codes) <= set(explanations())
    assert set(entry.peers) <= set(peers())


def test_what_a_code_says_of_itself_the_list_says_too() -> None:
    wrong = [f"{e.code}: {e.id}" for e in explanations().values() if e.id and e.code not in listed()[e.id].codes]
    assert wrong == []


def test_every_check_of_an_audit_has_its_id() -> None:
    told = {code for entry in listed().values() for code in entry.codes}
    assert {c.code for c in AUDITS} - told <= {"net/bond"}


@pytest.mark.parametrize("word", ["A3", "a3"])
def test_explain_finds_an_id(word: str) -> None:
    answer = explain(word)
    assert "net/vf-pairing" in str(answer.text)
    assert answer.body["listed"].peers == ("LISA",)

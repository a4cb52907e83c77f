"""What another machine says is shown whole and drives nothing."""

from __future__ import annotations

import json
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.base.shown import coloured, shown, shown_json

ATTACKS = {
    "clears the screen": "\x1b[2J",
    "sets the title": "\x1b]0;x\x07",
    "answers for the user": "\x1b[21t\x1b[5n",
    "colours": "\x1b[32mPASS\x1b[0m",
    "eight bits": "\x9b2J\x9d0;x\x9c",
    "goes back": "fail\rpass\x08\x08ok",
    "hides": "\x1b[8mhidden\x7f",
    "turns the direction": "\u202eti si siht\u2066\u200f",
    "hides in tags": "\U000e0041\u200b\ufeff",
    "breaks lines elsewhere": "a\u2028b\x0bc\x0cd\x85e\x1cf",
    "half a pair": "\ud800",
    "unicode that is nothing": "\ufffe\U0010ffff\ue000",
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_is_seen_and_does_nothing(attack):
    text = shown(f"n1: {ATTACKS[attack]} end\n\tn2")
    assert text.startswith("n1: ")
    assert text.endswith(" end\n\tn2")
    assert all(line.isprintable() for line in text.replace("\t", "").split("\n"))
    assert "\\" in text


@given(st.text(st.characters(codec=None), max_size=200))
def test_no_text_at_all_drives_anything(text):
    out = shown(text)
    assert not [
        c for c in out if c not in "\n\t" and unicodedata.category(c) in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    ]
    assert shown(out) == out
    if text.isprintable():
        assert out == text


@given(
    st.recursive(
        st.text(st.characters(exclude_categories=["Cs"])), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_a_json_document_says_the_same(value):
    for indent in (None, 2):
        out = shown_json(json.dumps(value, ensure_ascii=False, indent=indent))
        assert json.loads(out) == value or any("\ud800" <= c <= "\udfff" for c in out)
        assert all(line.isprintable() for line in out.replace("\t", "").split("\n"))


def test_colours_of_our_own_are_turned_on_and_nobody_elses():
    said = coloured("31", "FAIL \x1b[32mPASS\x1b[0m")
    assert shown(said) == "\x1b[31mFAIL \\x1b[32mPASS\\x1b[0m\x1b[0m"
    mark = said.partition("[")[0]
    assert len(mark) > 12, "it cannot be guessed"
    assert shown(f"{mark}[2J{mark}") == "[2J"
    assert mark not in shown(said)


def test_it_is_one_pass():
    assert len(shown("\x1b" * 200_000)) == 800_000
    assert sys.getsizeof(shown("a" * 10)) < 200

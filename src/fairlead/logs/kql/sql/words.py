"""An index of the words in a text: what it holds, and how a test of a text is said so that the engine asks it first.

What stands in the index is the text in small letters, with every digit as 0, and without numbers in hexadecimal: lines
are full of numbers that nobody searches, and each would be a word of its own (27 bytes a line, measured; without them
1). So it answers for whatever has a letter behind f: no number in hexadecimal has one. A word of nothing but letters it
answers alone; else it says which rows are looked at. Without it the same test has the same answer, only slower.

Must not know: tables, engines.
"""

from __future__ import annotations

import re

from fairlead.logs.kql.sql.text import named, quoted

NAME, COLUMN = "words", "RawData"
_DIGITS, _NUMBERS = ("_123456789", " 000000000"), r"\b(?:0x)?[0a-f]{6,}\b|[^\x00-\x7f\pL\pN]"
HELD = (
    f"replaceRegexpAll(translate(lower({named(COLUMN)}), {quoted(_DIGITS[0])}, {quoted(_DIGITS[1])}), "
    f"{quoted(_NUMBERS)}, ' ')"
)
"""An underscore parts words for KQL, and so does every sign outside of ASCII that is no letter and no digit."""
INDEX = f"INDEX {NAME} {HELD} TYPE text(tokenizer = splitByNonAlpha)"
KNOWN = "SELECT count() FROM system.settings WHERE name = 'use_text_index_like_evaluation_by_dictionary_scan'"
"""1 where the engine has an index of this kind that finds parts of words, too (ClickHouse 26.4)."""
_OURS = "database = currentDatabase() AND table IN ('Logs', '_here_Logs')"
MADE = f"SELECT count() > 0 FROM system.data_skipping_indices WHERE {_OURS} AND name = {quoted(NAME)}"  # noqa: S608
THERE = (
    f"SELECT ({MADE}) AND "  # noqa: S608 - our own
    f"(SELECT count() FROM system.mutations WHERE {_OURS} AND NOT is_done AND command ILIKE '%INDEX {NAME}%') = 0"
)
"""1 where the store has it, of all its rows."""
_RUN, _SURE = re.compile(r"[a-z0-9]+"), re.compile(r"[g-wyz]")
_LEAST = 4
"""A part of a word of fewer letters is in too many words (the engine's text_index_like_min_pattern_length)."""


class Searched(str):
    """The SQL of a column whose words are in the index."""

    __slots__ = ()


def contains(needle: str) -> str:
    """A test that each text passes with the needle in it, in letters of any size; empty where there is none."""
    return _tests(needle, before=False, after=False)[0]


def term(needle: str, *, before: bool, after: bool) -> tuple[str, bool]:
    """The same for a needle that begins, or ends, with a word; whether the test is enough alone."""
    return _tests(needle, before=before, after=after)


def _tests(needle: str, *, before: bool, after: bool) -> tuple[str, bool]:
    if not needle.isascii():
        return "", False  # letters of other scripts have small forms that are ASCII, such as the Kelvin sign
    said, words = needle.lower(), []
    made: list[str] = []
    for run in _RUN.finditer(said):
        if not _SURE.search(run[0]):
            continue
        is_word = (run.start() > 0 or before) and (run.end() < len(said) or after)
        held = re.sub("[1-9]", "0", run[0])
        if is_word:
            words.append(held)
        elif len(held) >= _LEAST:
            made.append(f"{HELD} LIKE {quoted(f'%{held}%')}")
    if words:
        made.insert(0, f"hasAllTokens({HELD}, [{', '.join(quoted(word) for word in words)}])")
    return " AND ".join(made), words == [said] and said.isalpha()

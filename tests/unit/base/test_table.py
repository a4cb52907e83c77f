from __future__ import annotations

import pytest

from fairlead.base.table import printable, table


def test_numbers_stand_to_the_right_and_names_to_the_left():
    assert table(["NODE", "GPUS"], [["n1", 8], ["n200", 16]]).splitlines() == [
        "NODE  GPUS",
        "n1       8",
        "n200    16",
    ]


def test_a_column_with_a_word_in_it_is_a_column_of_words():
    assert table(["A", "B"], [["x", "1"], ["y", "none"]]).splitlines()[1] == "x  1"


def test_no_line_ends_in_blanks_and_nothing_is_a_hole():
    text = table(["A", "B"], [["x", None], ["y", ""]], indent="  ")
    assert text.splitlines() == ["  A  B", "  x", "  y"]


def test_without_rows_the_header_stands_alone_and_without_a_header_there_is_none():
    assert table(["A", "BB"], []) == "A  BB"
    assert table(["", ""], [["x", "y"]]) == "x  y"


def test_what_nodes_say_cannot_break_a_line_or_drive_the_terminal():
    text = table(["NODE", "SAID"], [["n1", "\x1b[2J\x1b]0;title\x07evil\nFAIL n9"], ["n2", "\u202eabc"]])
    assert len(text.splitlines()) == 3
    assert not set(text) & {"\x1b", "\x07", "\u202e"}


def test_a_row_of_the_wrong_length_is_a_programmer_error():
    with pytest.raises((ValueError, IndexError)):
        table(["A", "B"], [["only one"]])


def test_printable_leaves_good_text_alone():
    assert printable("Gb/s µs … 節点") == "Gb/s µs … 節点"
    assert printable("a\tb\x00c") == "a b\\x00c"

from __future__ import annotations

import pytest

from fairlead.report.svg import TEXT_SIZE, Drawing, escape, fit, text_width, wrap
from support.pictures import parse

HOSTILE = "</text><script>alert(1)</script>\"'&\x00\x1b[31m\u202e\ud800\ufffe"


def test_whatever_a_node_is_called_the_picture_is_well_formed_and_holds_no_element_of_its_making():
    drawing = Drawing(100, 50)
    drawing.text(1, 10, HOSTILE, title=HOSTILE)
    drawing.rect(0, 0, 5, 5, fill="fail", title=HOSTILE)
    with drawing.group(HOSTILE):
        drawing.line(0, 0, 1, 1, "grid")
    tree = parse(drawing.file(HOSTILE, HOSTILE))
    assert {e.tag.rpartition("}")[2] for e in tree.iter()} == {
        "svg",
        "title",
        "desc",
        "style",
        "rect",
        "text",
        "g",
        "line",
    }


def test_what_cannot_be_seen_is_written_out():
    assert escape("a\x1bb\u202ec") == "a\\x1bb\\u202ec"
    assert escape("a\tb\nc\u00a0d") == "a\tb\nc d"
    assert escape("<&>\"'") == "&lt;&amp;&gt;&quot;&#x27;"


def test_a_file_carries_its_own_style_and_says_what_it_is():
    drawing = Drawing(100, 50)
    text = drawing.file("Goodput", "Plane 2 is silent.")
    assert "prefers-color-scheme:dark" in text
    assert 'role="img"' in text
    assert "<title>Goodput</title><desc>Plane 2 is silent.</desc>" in text
    assert "style" not in drawing.inline("Goodput", "Plane 2 is silent.")


def test_coordinates_are_short():
    drawing = Drawing(10, 10)
    drawing.line(1 / 3, -0.04, 2.0, 1e-9, "grid")
    assert '<line class="grid" x1="0.3" y1="0" x2="2" y2="0"/>' in drawing.inline("t", "d")


def test_fit_keeps_what_fits_and_marks_what_was_cut():
    assert fit("node", text_width("node")) == "node"
    cut = fit("a-very-long-node-name", 80)
    assert cut.endswith("…")
    assert text_width(cut[:-1]) + TEXT_SIZE <= 80
    assert fit("abc", 5) == ""


@pytest.mark.parametrize("width", [90, 200, 1000])
def test_wrap_loses_no_word_and_keeps_to_the_width(width):
    text = "n2 port, plane 1: one twentieth of the rate of its siblings"
    lines = wrap(text, width)
    assert " ".join(lines) == text
    assert all(text_width(line) <= width for line in lines)


def test_wrap_breaks_a_word_that_is_longer_than_a_line_and_loses_nothing():
    lines = wrap("x" * 500 + " end", 100)
    assert all(text_width(line) <= 100 for line in lines)
    assert "".join(lines).replace(" ", "") == "x" * 500 + "end"


def test_wide_characters_count_as_wide():
    assert text_width("節点") > text_width("no")
    assert text_width("e\u0301") == text_width("e")

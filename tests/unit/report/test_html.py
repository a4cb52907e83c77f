from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from fairlead.records.finding import Finding, Subject
from fairlead.records.verdict import Verdict
from fairlead.report.html import MAX_SHOWN, Page, page_html
from support.pages import page

HOSTILE = "\"'><script>alert(1)</script><img src=http://evil.example/x onerror=alert(2)></svg></pre><!--\x1b]0;x\x07"
TEXT = page_html(page())
VOID = {"meta", "link", "br", "img"}


class Tree(HTMLParser):
    """Every tag with its attributes, and whether tags close in the order they opened."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.text, self.open, self.crossed = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.crossed.append(tag)

    def handle_data(self, data):
        if not self.open or self.open[-1] not in ("style", "title", "desc"):
            self.text.append(data)


@pytest.fixture(scope="module")
def tree():
    return Tree(TEXT)


def test_tags_nest(tree):
    assert tree.crossed == []
    assert tree.open == []


def test_a_hostile_node_changes_no_element_of_the_page(tree):
    attacked = Tree(page_html(page(HOSTILE)))
    assert attacked.crossed == attacked.open == []
    # lines may wrap otherwise, so pictures are compared by kind of element, the page around them exactly
    kinds = {tag for tag, _ in tree.tags}
    assert {tag for tag, _ in attacked.tags} == kinds
    assert not kinds & {"script", "img", "iframe", "object", "a"}
    names = [name for _, attributes in attacked.tags for name in attributes]
    assert [n for n in names if n.startswith("on") or n in {"href", "src"}] == ["href"], "the icon"
    assert HOSTILE.split("\x1b", maxsplit=1)[0] in "".join(attacked.text)


def test_nothing_is_asked_of_the_network():
    text = TEXT
    addresses = set(re.findall(r"https?://[^\s\"'<>]+", text))
    assert addresses <= {"http://www.w3.org/2000/svg"}
    assert not re.search(r"url\(|@import|@font-face", text)
    assert "default-src 'none'" in text


def test_the_verdict_and_the_worst_come_first():
    text = "".join(Tree(TEXT).text)
    order = ["preflight of lab", "FAIL", "n2 is slow", "next", "Findings", "carries 12", "memlock", "Fabric", "made by"]
    places = [text.index(word) for word in order]
    assert places == sorted(places)


def test_equal_findings_are_one_with_a_node_set_and_passes_are_folded_away():
    text = TEXT
    assert text.count("the memlock limit is 8 GiB") == 1
    assert "n[0-1,3] (3)" in text
    fold = text[text.index("<summary>12 passed or skipped") :]
    assert "host/check-11" in fold[: fold.index("</details>")]
    assert "52 findings: 48 pass, 3 warn, 1 fail (1 waived)" in text


def test_very_many_findings_are_bounded():
    many = [
        Finding(code="x/y", verdict=Verdict.FAIL, subject=Subject(kind="node", nodes=(f"n{i}",)), message=f"is {i}")
        for i in range(500)
    ]
    text = page_html(Page(title="t", verdict=Verdict.FAIL, headline="h", findings=many))
    assert text.count("<article") == MAX_SHOWN
    assert f"{500 - MAX_SHOWN} more" in text
    assert "is 499" in text


def test_every_figure_has_its_data_and_its_command(tree):
    figures = [tag for tag, _ in tree.tags].count("figure")
    text = TEXT
    assert figures == 6
    assert len(re.findall(r"<summary>data</summary>", text)) == figures
    assert "made by <code>fairlead fabric sim run flap.toml</code>" in text
    assert [tag for tag, _ in tree.tags].count("svg") == 2 * figures


def test_numbers_stand_to_the_right(tree):
    text = TEXT
    assert "<td class=num>12.1 ms</td>" in text
    assert "<td class=num>h200-044" not in text


def test_an_empty_page_is_still_a_page():
    tree = Tree(page_html(Page(title="t", verdict=Verdict.PASS, headline="all is well")))
    assert tree.crossed == tree.open == []
    assert "PASS all is well" in " ".join("".join(tree.text).split())

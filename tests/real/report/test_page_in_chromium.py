"""The report as people see it: loaded, measured and printed by a real headless Chromium."""

from __future__ import annotations

from itertools import combinations

import pytest

from fairlead.report.html import page_html
from support.browser import Browser
from support.pages import figures, page

pytestmark = [pytest.mark.real, pytest.mark.requires("chromium")]

HOSTILE = "\"'><script>document.title='owned'</script><img src=http://192.0.2.1/x onerror=\"document.title='owned'\">"
LONG = " " + "x" * 3000
SCREENS = [(1280, False), (1280, True), (390, False), (390, True)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("chromium")


@pytest.fixture(scope="module")
def browser(folder):
    with Browser.start(folder / "profile") as started:
        yield started


@pytest.fixture(scope="module")
def report(folder):
    path = folder / "report.html"
    path.write_text(page_html(page()))
    return path


@pytest.mark.parametrize(("width", "dark"), SCREENS)
def test_nothing_is_fetched_and_nothing_is_complained_about(browser, report, width, dark):
    shown = browser.open(report, width=width, dark=dark)
    assert shown.requests == [report.as_uri()]
    assert shown.console == []


@pytest.mark.parametrize("width", [1280, 900, 390])
def test_nothing_is_clipped_and_no_label_covers_another(browser, report, width):
    shown = browser.open(report, width=width)
    shown.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert shown.evaluate("document.documentElement.scrollWidth") <= width
    boxes = shown.boxes()
    assert len(boxes) > 300
    wide = [b for b in boxes if not b["scrolls"]]
    assert [b["text"] for b in wide if b["left"] < 0 or b["right"] > width] == []
    assert crossings(wide) == []


@pytest.mark.parametrize("width", [1280, 390])
def test_every_label_is_large_enough_to_read(browser, report, width):
    sizes = {b["text"]: b["size"] for b in browser.open(report, width=width).boxes()}
    assert min(sizes.values()) >= 11


@pytest.mark.parametrize("dark", [False, True])
def test_the_theme_follows_the_reader(browser, report, dark):
    shown = browser.open(report, dark=dark)
    paper = shown.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(18, 21, 26)" if dark else "rgb(255, 255, 255)")
    line = shown.evaluate("getComputedStyle(document.querySelector('.wide .curve')).stroke")
    assert line == ("rgb(157, 162, 245)" if dark else "rgb(45, 33, 220)"), "plane 0"
    assert len(shown.screenshot()) > 20_000


def test_on_paper_it_is_light_wide_and_without_folds(browser, report):
    shown = browser.open(report, width=660, dark=True)
    shown.media(kind="print", dark=True)
    assert shown.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert shown.evaluate("getComputedStyle(document.querySelector('.narrow')).display") == "none"
    assert shown.evaluate("getComputedStyle(document.querySelector('.wide')).display") == "block"
    assert shown.evaluate("getComputedStyle(document.querySelector('details')).display") == "none"
    boxes = shown.boxes()
    assert crossings(boxes) == []
    assert [b["text"] for b in boxes if b["right"] > 660] == [], "paper does not scroll"
    assert shown.evaluate("document.documentElement.scrollWidth") <= 660


def test_it_prints(browser, report):
    pdf = browser.open(report).pdf()
    assert pdf.startswith(b"%PDF-")
    assert 2 <= pdf.count(b"/Type /Page\n") <= 10


@pytest.mark.parametrize("width", [1280, 390])
def test_what_nodes_say_can_do_no_harm(browser, folder, width):
    path = folder / "hostile.html"
    path.write_text(page_html(page(HOSTILE + LONG)))
    shown = browser.open(path, width=width)
    assert shown.requests == [path.as_uri()]
    assert shown.console == []
    assert not shown.evaluate("document.title").startswith("owned")
    assert shown.evaluate("document.scripts.length + document.images.length") == 0
    assert shown.evaluate("document.documentElement.scrollWidth") <= width


def test_the_policy_holds_where_an_escape_would_be_missing(browser, folder):
    path = folder / "unescaped.html"
    path.write_text(page_html(page()).replace("</main>", f"{HOSTILE}</main>"))
    shown = browser.open(path)
    assert shown.evaluate("document.scripts.length") == 1, "it got in"
    assert shown.evaluate("document.title") != "owned", "it did not run"
    assert "Content Security Policy" in " ".join(shown.console)


@pytest.mark.parametrize("dark", [False, True])
def test_figures_stand_alone_as_svg_files(browser, folder, dark):
    for number, figure in enumerate(figures()):
        path = folder / f"figure{number}.svg"
        path.write_text(figure.svg())
        shown = browser.open(path, dark=dark)
        assert shown.requests == [path.as_uri()]
        assert shown.console == []
        back = shown.evaluate("getComputedStyle(document.querySelector('.back')).fill")
        assert back == ("rgb(18, 21, 26)" if dark else "rgb(255, 255, 255)")


def crossings(boxes):
    """Pairs of texts that cover each other by more than a pixel."""
    lines = sorted((b for b in boxes), key=lambda b: b["top"])
    return [
        (a["text"], b["text"])
        for a, b in combinations(lines, 2)
        if a["bottom"] - 2 > b["top"]
        and b["bottom"] - 2 > a["top"]
        and a["left"] < b["right"] - 1
        and b["left"] < a["right"] - 1
    ]

from __future__ import annotations

import math

import pytest

from fairlead.records.verdict import Verdict
from fairlead.report import charts
from fairlead.report.charts import Axis, Bar, Level, Mark, Series
from support.pages import figures
from support.pictures import labels, outside, overlaps, parse

SVG = "{http://www.w3.org/2000/svg}"
WIDTHS = (344, 560, 880, 1400)


def curve(*points, **more):
    return charts.lines("t", "d", [Series("s", points, **more)], x=Axis("x"), y=Axis("y", lo=0))


def paths(figure, width=880):
    return [p.get("d") for p in parse(figure.svg(width)).iter(f"{SVG}path") if p.get("class") == "curve"]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("index", range(6))
def test_no_label_covers_another_or_leaves_the_picture(index, width):
    svg = figures()[index].svg(width)
    assert not overlaps(svg)
    assert not outside(svg)


def test_many_events_close_together_keep_their_labels_apart():
    marks = [Mark(0.5 + i * 0.001, f"event number {i}") for i in range(8)] + [Mark(1.0, "at the right edge")]
    figure = charts.lines("t", "d", [Series("s", [(0, 1), (1, 2)])], x=Axis("x"), y=Axis("y"), marks=marks)
    for width in WIDTHS:
        svg = figure.svg(width)
        assert {m.label for m in marks} <= {label.text for label in labels(svg)}
        assert not overlaps(svg)
        assert not outside(svg)


def test_many_curves_are_all_named_and_apart():
    series = [Series(f"plane {i}", [(0, 5), (1, 5 + i / 100)], i) for i in range(8)]
    figure = charts.lines("t", "d", series, x=Axis("x"), y=Axis("y", lo=0), levels=[Level(5, "limit")])
    for width in WIDTHS:
        svg = figure.svg(width)
        assert {"limit", *(s.name for s in series)} <= {label.text for label in labels(svg)}
        assert not overlaps(svg)


def test_a_plane_has_its_colour():
    assert 'stroke="var(--plane-6)"' in curve((0, 1), (1, 2), colour=6).svg()


def test_a_curve_breaks_where_it_has_no_value():
    broken = curve((0, 1), (1, 2), (2, math.nan), (3, 2), (4, 1))
    assert len(paths(broken)) == 2
    assert len(paths(curve((0, 1), (1, 2), (3, 2), (4, 1)))) == 1


def test_a_step_holds_its_value_until_the_next_point():
    figure = curve((0, 0), (1, 1), kind="step")
    (d,) = paths(figure)
    first, corner, last = (tuple(map(float, p.split())) for p in d.removeprefix("M").split("L"))
    assert corner == (last[0], first[1])


def test_a_single_point_is_drawn_as_a_point():
    figure = curve((1, 1))
    assert not paths(figure)
    assert len(list(parse(figure.svg()).iter(f"{SVG}circle"))) == 1


@pytest.mark.parametrize("series", [[], [Series("empty", [])], [Series("nan", [(math.nan, math.nan)])]])
def test_no_data_is_an_empty_plot_not_an_error(series):
    figure = charts.lines("t", "d", series, x=Axis("time", "s"), y=Axis("rate", "b/s"))
    assert not paths(figure)
    assert "rate" in figure.svg()


def test_a_long_curve_is_thinned_and_its_table_too():
    figure = curve(*((i / 1e5, i % 7) for i in range(30_000)))
    assert len(figure.svg()) < 100_000
    assert len(figure.table.rows) <= 200


def test_the_table_has_a_row_a_place_where_curves_share_them():
    series = [Series("a", [(0, 1e9), (1, 2e9)]), Series("b", [(0, 3e9), (1, math.nan)])]
    table = charts.lines("t", "d", series, x=Axis("time", "s"), y=Axis("rate", "b/s")).table
    assert list(table.header) == ["time (s)", "a, rate (Gb/s)", "b, rate (Gb/s)"]
    assert [list(r) for r in table.rows] == [["0", "1", "3"], ["1", "2", "-"]]


def test_the_table_has_a_row_a_point_where_they_do_not():
    series = [Series("a", [(0, 1)]), Series("b", [(5, 2)])]
    table = charts.lines("t", "d", series, x=Axis("x"), y=Axis("y")).table
    assert [list(r) for r in table.rows] == [["a", "0", "1"], ["b", "5", "2"]]


def test_quantiles_are_samples_and_infinite_ones_count():
    figure = charts.cdf("t", "d", {"a": [float(i) for i in range(1, 1001)]}, x=Axis("FCT", "s"))
    row = dict(zip(figure.table.header, figure.table.rows[0], strict=True))
    assert (row["samples"], row["p1"], row["p50"], row["p99.9"], row["max"]) == (
        1000,
        "10 s",
        "500 s",
        "999 s",
        "1e+03 s",
    )
    never = charts.cdf("t", "d", {"a": [1.0, 2.0, math.inf, math.inf]}, x=Axis("FCT", "s"))
    row = dict(zip(never.table.header, never.table.rows[0], strict=True))
    assert (row["p50"], row["p90"]) == ("2 s", "-")
    (d,) = paths(never)
    box = [float(v) for v in d.removeprefix("M").replace("L", " ").split()]
    heights = box[1::2]
    full = paths(charts.cdf("t", "d", {"a": [1.0, 2.0]}, x=Axis("FCT", "s")))[0]
    assert min(heights) > min(float(v) for v in full.removeprefix("M").replace("L", " ").split()[1::2])


def test_bars_start_at_zero_and_are_as_long_as_their_values():
    figure = charts.bars("t", "d", [Bar("a", 50.0), Bar("b", 100.0)], x=Axis("x", "%"))
    wide = [float(r.get("width")) for r in parse(figure.svg()).iter(f"{SVG}rect") if r.get("fill") == "var(--accent)"]
    assert wide[1] == pytest.approx(2 * wide[0], rel=0.01)


def test_a_bad_bar_says_so_in_words_and_colour():
    figure = charts.bars("t", "d", [Bar("n2", 1.0, note="slow", verdict=Verdict.FAIL)], x=Axis("x", "s"))
    assert 'fill="var(--fail)"' in figure.svg()
    assert "1 s, fail: slow" in figure.svg()
    assert list(figure.table.rows[0]) == ["n2", "1 s", "fail: slow"]

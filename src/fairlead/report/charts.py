"""Charts of numbers: lines and steps over time, distributions, bars. Figures in, nothing out but text.

Labels stand beside what they name: at the end of a curve where there is room, else in a legend above; they are spread
so that none covers another. Vertical events and limits are labelled in rows above the plot.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Literal

from fairlead.records.verdict import Verdict
from fairlead.report.scale import Axis, Scale, scale, spread, thin, written
from fairlead.report.svg import TEXT_SIZE, Drawing, Figure, Table, fit, text_width

__all__ = ["Axis", "Bar", "Level", "Mark", "Series", "bars", "cdf", "lines"]

_ROW = TEXT_SIZE + 6
_BAR = 24.0
_MAX_TABLE_ROWS = 200
_QUANTILES = (0.01, 0.1, 0.5, 0.9, 0.99, 0.999, 1.0)


@dataclass(frozen=True)
class Series:
    """One curve. `colour` is a plane's number, so that a plane looks the same everywhere, or a role of the palette."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: int | str = 0
    kind: Literal["line", "step", "points"] = "line"
    """A step holds its value until the next point."""


@dataclass(frozen=True)
class Mark:
    """Something that happened at one place of the x axis."""

    at: float
    label: str
    role: str = "muted"


@dataclass(frozen=True)
class Level:
    """A limit or an expectation on the axis of values."""

    at: float
    label: str
    role: str = "muted"


@dataclass(frozen=True)
class Bar:
    """One named value."""

    name: str
    value: float
    colour: int | str = "accent"
    note: str = ""
    verdict: Verdict | None = None
    """Colours the bar and is written beside it."""


def lines(
    title: str,
    desc: str,
    series: Sequence[Series],
    *,
    x: Axis,
    y: Axis,
    marks: Sequence[Mark] = (),
    levels: Sequence[Level] = (),
    command: str = "",
    table: Table | None = None,
    names: Literal["beside", "above"] = "beside",
) -> Figure:
    """Curves over a common x axis. The data table is made from the points unless one is given.

    Names stand beside the ends of the curves where there is room, unless all curves end in one place.
    """
    xs = [p[0] for s in series for p in s.points] + [m.at for m in marks]
    ys = [p[1] for s in series for p in s.points] + [v.at for v in levels]

    def draw(width: float) -> Drawing:
        across, up = scale(x, xs, num_ticks=8 if width > 600 else 4), scale(y, ys, num_ticks=5)
        keys = [_Key(s.name, s.colour, _last(s.points) if names == "beside" else None) for s in series]
        keys += [_Key(v.label, v.role, v.at, cls=" dash") for v in levels]
        plot = _plot(width, across, up, keys, marks)
        for level in levels:
            plot.level(level)
        for one in series:
            plot.curve(one)
        return plot.drawing

    return Figure(
        title=title,
        desc=desc,
        draw=draw,
        table=table or _points_table(series, scale(x, xs), scale(y, ys)),
        command=command,
    )


def cdf(
    title: str,
    desc: str,
    samples: Mapping[str, Sequence[float]],
    *,
    x: Axis,
    marks: Sequence[Mark] = (),
    colours: Mapping[str, int | str] | None = None,
    command: str = "",
) -> Figure:
    """Cumulative distributions: which share of the samples is at or below x. Infinite samples lower the curve's end."""
    series, rows = [], []
    for index, (name, values) in enumerate(samples.items()):
        ordered = sorted(v for v in values if not math.isnan(v))
        num = len(ordered)
        finite = [v for v in ordered if math.isfinite(v)]
        points = [(v, 100.0 * (i + 1) / num) for i, v in enumerate(finite)]
        if points and not x.log:
            points.insert(0, (points[0][0], 0.0))
        series.append(Series(name, points, (colours or {}).get(name, index), "step"))
        rows.append([name, num, *(written(_quantile(ordered, q), x.unit) for q in _QUANTILES)])
    header = ["", "samples", *(f"p{q * 100:g}" if q < 1 else "max" for q in _QUANTILES)]
    share = Axis("share at or below", "%", lo=0, hi=100)
    data = Table(header=header, rows=rows)
    return lines(title, desc, series, x=x, y=share, marks=marks, command=command, table=data, names="above")


def bars(
    title: str,
    desc: str,
    rows: Sequence[Bar],
    *,
    x: Axis,
    levels: Sequence[Level] = (),
    command: str = "",
) -> Figure:
    """Named values as horizontal bars from zero, each with its number."""
    axis = x if x.lo is not None or x.log else Axis(x.label, x.unit, lo=0, hi=x.hi)
    values = [r.value for r in rows] + [v.at for v in levels]

    def draw(width: float) -> Drawing:
        across = scale(axis, values, num_ticks=6 if width > 600 else 3)
        said = [_said(r, x.unit) for r in rows]
        names = min(max((text_width(r.name) for r in rows), default=0.0), width * 0.34)
        room = min(max((text_width(t) for t in said), default=0.0), width * 0.38)
        left, right = names + 10, width - room - 12
        spots = [(left + across.place(v.at) * (right - left), v.label) for v in levels]
        places = _rows_above(spots, width)
        top = 6 + _ROW * (max((p.row for p in places), default=-1) + 1)
        bottom = top + _BAR * len(rows)
        plot = _Plot(Drawing(width, bottom + 2 * _ROW + 8), left, top, right, bottom, across, across)
        drawing = plot.drawing
        plot.x_axis()
        ends = [(top + _BAR * i, plot.x(bar.value)) for i, bar in enumerate(rows)]
        for bar, (at, end) in zip(rows, ends, strict=True):
            drawing.text(names, at + 16, fit(bar.name, names), anchor="end", title=bar.name)
            fill = str(bar.verdict) if bar.verdict in (Verdict.FAIL, Verdict.WARN, Verdict.UNKNOWN) else bar.colour
            drawing.rect(left, at + 4, max(1.0, end - left), _BAR - 8, fill=fill, radius=1.5)
        for level, place in zip(levels, places, strict=True):
            plot.event(level, place)
        for text, (at, end) in zip(said, ends, strict=True):
            drawing.text(end + 6, at + 16, fit(text, width - end - 6), "halo")
        drawing.line(left, top, left, bottom, "axis")
        return drawing

    data = Table(header=["", x.label, "note"], rows=[[r.name, written(r.value, x.unit), _note(r)] for r in rows])
    return Figure(title=title, desc=desc, draw=draw, table=data, command=command)


# ---- parts of a plot -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Key:
    """A name for something drawn in a colour; `at` is the value its curve ends at, None to be named in a legend."""

    name: str
    colour: int | str
    at: float | None
    cls: str = ""


@dataclass(frozen=True)
class _Place:
    """Where the label of an event stands: its left end, and the row counted from the top of the drawing."""

    x: float
    row: int


@dataclass(frozen=True)
class _Plot:
    """A drawing with a box for data in it: x to the right, y downwards."""

    drawing: Drawing
    left: float
    top: float
    right: float
    bottom: float
    across: Scale
    up: Scale

    def x(self, value: float) -> float:
        return self.left + self.across.place(value) * (self.right - self.left)

    def y(self, value: float) -> float:
        return self.bottom - self.up.place(value) * (self.bottom - self.top)

    def x_axis(self) -> None:
        last = float("-inf")
        for tick in self.across.ticks:
            x, half = self.x(tick.value), text_width(tick.label) / 2
            self.drawing.line(x, self.top, x, self.bottom, "grid")
            if x - half > last + 4:
                self.drawing.text(x, self.bottom + TEXT_SIZE + 7, tick.label, "pale", anchor="middle")
                last = x + half
        self.drawing.text(self.right, self.bottom + 2 * _ROW + 3, self.across.title, "pale", anchor="end")

    def y_axis(self) -> None:
        for tick in self.up.ticks:
            y = self.y(tick.value)
            self.drawing.line(self.left, y, self.right, y, "grid")
            self.drawing.text(self.left - 6, y + 4, tick.label, "pale", anchor="end")

    def level(self, level: Level) -> None:
        y = self.y(level.at)
        self.drawing.line(self.left, y, self.right, y, "thin dash", stroke=level.role)

    def event(self, event: Mark | Level, place: _Place) -> None:
        x = self.x(event.at)
        self.drawing.line(x, _ROW * place.row + 3, x, self.bottom, "thin dash", stroke=event.role)
        self.drawing.text(place.x, _ROW * place.row + TEXT_SIZE, fit(event.label, self.drawing.width), "halo")

    def curve(self, series: Series) -> None:
        for piece in _pieces(series.points, self.across, self.up):
            spots = thin([(self.x(x), self.y(y)) for x, y in piece], int(self.right - self.left))
            if series.kind == "points" or len(spots) == 1:
                for x, y in spots:
                    self.drawing.circle(x, y, 2.2, fill=series.colour)
                continue
            if series.kind == "step":
                corners = [((b[0], a[1]), b) for a, b in pairwise(spots)]
                spots = [spots[0], *chain.from_iterable(corners)]
            self.drawing.path(spots, "curve", stroke=series.colour)

    def names_beside(self, keys: Sequence[_Key]) -> None:
        known = [(k, self.y(k.at)) for k in keys if k.at is not None]
        places = spread([end for _, end in known], TEXT_SIZE + 2, self.top, self.bottom)
        for (key, end), y in zip(known, places, strict=True):
            spots = [(self.right + 3, end), (self.right + 12, y), (self.right + 18, y)]
            self.drawing.path(spots, f"thin{key.cls}", stroke=key.colour)
            self.drawing.text(self.right + 22, y + 4, key.name)


def _plot(width: float, across: Scale, up: Scale, keys: Sequence[_Key], marks: Sequence[Mark]) -> _Plot:
    """Axes, grid, names and events, drawn; what is left is the box for the curves."""
    height = min(300.0, max(180.0, width * 0.36))
    left = max(text_width(t.label) for t in up.ticks) + 8
    widest = max((text_width(k.name) for k in keys), default=0.0)
    is_beside = (
        width >= 560
        and 0 < widest <= width * 0.26
        and len(keys) * (TEXT_SIZE + 2) <= height
        and all(k.at is not None for k in keys)
    )
    right = width - (widest + 30 if is_beside else text_width(across.ticks[-1].label) / 2 + 4)
    legend = [] if is_beside else _legend_rows(keys, width)
    spots = [(left + across.place(m.at) * (right - left), m.label) for m in marks]
    places = [_Place(p.x, p.row + len(legend) + 1) for p in _rows_above(spots, width)]
    top = _ROW * (1 + max((p.row for p in places), default=len(legend))) + 6
    plot = _Plot(Drawing(width, top + height + 2 * _ROW + 8), left, top, right, top + height, across, up)
    for row, entries in enumerate(legend):
        y = _ROW * row + TEXT_SIZE
        for at, key in entries:
            plot.drawing.line(at, y - 4, at + 16, y - 4, f"curve{key.cls}", stroke=key.colour)
            plot.drawing.text(at + 21, y, fit(key.name, width - at - 21))
    plot.drawing.text(0, _ROW * len(legend) + TEXT_SIZE, up.title, "pale")
    plot.y_axis()
    plot.x_axis()
    plot.drawing.line(left, plot.bottom, right, plot.bottom, "axis")
    for mark, place in zip(marks, places, strict=True):
        plot.event(mark, place)
    if is_beside:
        plot.names_beside(keys)
    return plot


def _legend_rows(keys: Sequence[_Key], width: float) -> list[list[tuple[float, _Key]]]:
    """Keys side by side, as many a row as fit."""
    rows: list[list[tuple[float, _Key]]] = []
    at = width
    for key in keys:
        need = 21 + min(text_width(key.name), width - 21)
        if at + need > width:
            rows.append([])
            at = 0.0
        rows[-1].append((at, key))
        at += need + 16
    return rows


def _rows_above(labels: Sequence[tuple[float, str]], right: float) -> list[_Place]:
    """Places for labels of vertical lines at given x, rows counted from the top; each starts just right of its line.

    Worked from right to left and from the plot upwards: a label stands above every line it would cross.
    """
    heights: dict[int, int] = {}
    starts = [min(x + 5, max(0.0, right - text_width(label))) for x, label in labels]
    for i in sorted(range(len(labels)), key=lambda i: -labels[i][0]):
        end = starts[i] + text_width(labels[i][1]) + 8
        below = [heights[j] for j in heights if labels[j][0] < end or starts[j] < end]
        heights[i] = max(below, default=-1) + 1
    highest = max(heights.values(), default=0)
    return [_Place(starts[i], highest - heights[i]) for i in range(len(labels))]


def _pieces(points: Sequence[tuple[float, float]], across: Scale, up: Scale) -> list[list[tuple[float, float]]]:
    """The curve cut where it has no value."""
    pieces: list[list[tuple[float, float]]] = [[]]
    for x, y in points:
        if across.has(x) and up.has(y):
            pieces[-1].append((x, y))
        elif pieces[-1]:
            pieces.append([])
    return [p for p in pieces if p]


def _last(points: Sequence[tuple[float, float]]) -> float | None:
    return next((y for _, y in reversed(points) if math.isfinite(y)), None)


def _quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest sample that at least this share of all samples does not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered) - 1e-9) - 1)] if ordered else math.nan


def _points_table(series: Sequence[Series], across: Scale, up: Scale) -> Table:
    """One row a place where all curves share their x, else one row a point; thinned to what a person may scroll."""
    shared = [x for x, _ in series[0].points] if series else []
    if all([x for x, _ in s.points] == shared for s in series):
        rows: list[list[object]] = [
            [across.show(x), *(up.show(s.points[i][1]) for s in series)] for i, x in enumerate(shared)
        ]
        header = [across.title, *(f"{s.name}, {up.title}" if len(series) > 1 else up.title for s in series)]
    else:
        rows = [[s.name, across.show(x), up.show(y)] for s in series for x, y in s.points]
        header = ["", across.title, up.title]
    every = math.ceil(len(rows) / _MAX_TABLE_ROWS) or 1
    return Table(header=header, rows=rows[::every])


def _said(bar: Bar, unit: str) -> str:
    return ", ".join(p for p in (written(bar.value, unit), _note(bar)) if p)


def _note(bar: Bar) -> str:
    return ": ".join(p for p in (str(bar.verdict or ""), bar.note) if p)

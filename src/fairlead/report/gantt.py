"""Spans on rows over a common axis: what was done when, by whom. Figures in, nothing out but text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fairlead.report.scale import Axis, scale, written
from fairlead.report.svg import TEXT_SIZE, Drawing, Figure, Table, fit, text_width

_ROW, _BAR, _MAX_TABLE_ROWS = 26.0, 16.0, 400


@dataclass(frozen=True)
class Span:
    """Something that took from one place of the axis to another."""

    row: str
    name: str
    begin: float
    end: float
    colour: int | str = "accent"
    label: str = ""
    """Written into the bar where there is room."""


def gantt(title: str, desc: str, spans: Sequence[Span], *, x: Axis, command: str = "") -> Figure:
    """A row for each name of a row, in the order in which they first appear; a pointer at a bar shows its name."""
    rows = list(dict.fromkeys(span.row for span in spans))
    ends = [at for span in spans for at in (span.begin, span.end)]

    def draw(width: float) -> Drawing:
        across = scale(x, ends, num_ticks=8 if width > 600 else 4)
        left = min(width * 0.3, max(map(text_width, rows), default=0.0)) + 8
        right = width - text_width(across.ticks[-1].label) / 2 - 4
        bottom = _ROW * len(rows) + 4
        drawing = Drawing(width, bottom + 2 * TEXT_SIZE + 18)

        def place(value: float) -> float:
            return left + across.place(value) * (right - left)

        for tick in across.ticks:
            at = place(tick.value)
            drawing.line(at, 0, at, bottom, "grid")
            drawing.text(at, bottom + TEXT_SIZE + 4, tick.label, "pale", anchor="middle")
        drawing.text(right, bottom + 2 * TEXT_SIZE + 12, across.title, "pale", anchor="end")
        for number, row in enumerate(rows):
            drawing.text(left - 8, _ROW * number + TEXT_SIZE + 5, fit(row, left - 8), anchor="end")
        for span in spans:
            begin, top = place(span.begin), _ROW * rows.index(span.row) + 4
            room = max(1.0, place(span.end) - begin)
            drawing.rect(begin, top, room, _BAR, fill=span.colour, title=span.name, radius=1.5)
            if span.label and text_width(span.label) + 4 < room:
                drawing.text(begin + room / 2, top + TEXT_SIZE, span.label, "onfill", anchor="middle")
        drawing.line(left, 0, left, bottom, "axis")
        return drawing

    data = [[s.row, s.name, written(s.begin, x.unit), written(s.end - s.begin, x.unit)] for s in spans]
    table = Table(header=["row", "what", "begins", "takes"], rows=data[:_MAX_TABLE_ROWS])
    return Figure(title=title, desc=desc, draw=draw, table=table, command=command)

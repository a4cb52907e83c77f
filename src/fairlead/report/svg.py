"""A drawing as text: a few shapes, escaped, one style, no dependency. Knows nothing about charts or fabrics.

A Drawing is either a file of its own (`file`, with palette and style inside) or part of a page that has both
(`inline`). Widths of text are estimated from above, so that what is placed by them does not overlap in any common font.
"""

from __future__ import annotations

import contextlib
import html
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from fairlead.base.shown import shown
from fairlead.report.palette import VARIABLES, colour

Anchor: TypeAlias = Literal["start", "middle", "end"]

TEXT_SIZE = 12.0
"""Of every label, in user units; a class may only make text bolder or paler, never larger."""

FONT = 'system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans","DejaVu Sans",sans-serif'

STYLE = (
    f"svg.fig{{font:12px {FONT};font-variant-numeric:tabular-nums}}"
    "svg.fig text{fill:var(--ink)}svg.fig .pale{fill:var(--muted)}svg.fig .strong{font-weight:600}"
    "svg.fig .halo{paint-order:stroke;stroke:var(--paper);stroke-width:4px;stroke-linejoin:round}"
    "svg.fig .onfill{fill:var(--paper);font-weight:600}"
    "svg.fig .grid{stroke:var(--rule);stroke-width:1;shape-rendering:crispEdges}"
    "svg.fig .axis{stroke:var(--muted);stroke-width:1;shape-rendering:crispEdges}"
    "svg.fig .curve{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}"
    "svg.fig .thin{fill:none;stroke-width:1.5}svg.fig .hair{fill:none;stroke-width:1}"
    "svg.fig .dash{stroke-dasharray:5 4}svg.fig .dots{stroke-dasharray:1.5 4;stroke-linecap:round}"
    "svg.fig .none{fill:none}svg.fig .tint{fill-opacity:.1}"
    "svg.fig .mesh{stroke-opacity:.55}svg.fig .back{fill:var(--paper)}svg.fig .panel{fill:var(--panel)}"
)


class Drawing:
    """Shapes in the order they were drawn. Coordinates are in user units, y grows downwards."""

    def __init__(self, width: float, height: float) -> None:
        self.width, self.height = width, height
        self._parts: list[str] = []

    def line(self, x1: float, y1: float, x2: float, y2: float, cls: str, *, stroke: int | str | None = None) -> None:
        """A straight line."""
        self._add("line", cls, stroke=stroke, x1=x1, y1=y1, x2=x2, y2=y2)

    def path(self, points: Sequence[tuple[float, float]], cls: str, *, stroke: int | str) -> None:
        """A line through points."""
        d = "M" + "L".join(f"{_number(x)} {_number(y)}" for x, y in points)
        self._add("path", cls, stroke=stroke, d=d)

    def rect(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        cls: str = "",
        *,
        fill: int | str | None = None,
        stroke: int | str | None = None,
        radius: float = 0.0,
        title: str = "",
    ) -> None:
        """A rectangle; `title` is what a pointer resting on it shows."""
        self._add(
            "rect", cls, fill=fill, stroke=stroke, title=title, x=x, y=y, width=width, height=height, rx=radius or None
        )

    def circle(
        self, x: float, y: float, radius: float, cls: str = "", *, fill: int | str | None = None, title: str = ""
    ) -> None:
        """A filled circle."""
        self._add("circle", cls, fill=fill, title=title, cx=x, cy=y, r=radius)

    def text(self, x: float, y: float, text: str, cls: str = "", *, anchor: Anchor = "start", title: str = "") -> None:
        """One line of text with its baseline at y."""
        self._add(
            "text", cls, title=title, body=escape(text), x=x, y=y, text_anchor=anchor if anchor != "start" else None
        )

    @contextlib.contextmanager
    def group(self, label: str) -> Iterator[None]:
        """What is drawn inside belongs together under a name."""
        self._parts.append(f"<g><title>{escape(label)}</title>")
        yield
        self._parts.append("</g>")

    def inline(self, title: str, desc: str) -> str:
        """The `<svg>` element for a page that carries palette and style."""
        return self._svg(title, desc, "", "", 1)

    def file(self, title: str, desc: str) -> str:
        """A file of its own, light and dark inside."""
        head = f'<style>{VARIABLES}{STYLE}</style><rect class="back" x="-12" y="-12" width="100%" height="100%"/>'
        return self._svg(title, desc, ' xmlns="http://www.w3.org/2000/svg"', head, 12) + "\n"

    def _svg(self, title: str, desc: str, attributes: str, head: str, margin: int) -> str:
        w, h = (_number(v + 2 * margin) for v in (self.width, self.height))
        return (
            f'<svg{attributes} class="fig" viewBox="{-margin} {-margin} {w} {h}" width="{w}" height="{h}" role="img" '
            f'aria-label="{escape(title)}"><title>{escape(title)}</title><desc>{escape(desc)}</desc>{head}'
            + "\n".join(self._parts)
            + "</svg>"
        )

    def _add(
        self,
        tag: str,
        cls: str,
        *,
        fill: int | str | None = None,
        stroke: int | str | None = None,
        title: str = "",
        body: str = "",
        **attributes: float | str | None,
    ) -> None:
        out = [tag]
        if cls:
            out.append(f'class="{cls}"')
        if fill is not None:
            out.append(f'fill="{colour(fill)}"')
        if stroke is not None:
            out.append(f'stroke="{colour(stroke)}"')
        for name, value in attributes.items():
            if value is not None:
                shown = value if isinstance(value, str) else _number(value)
                out.append(f'{name.replace("_", "-")}="{shown}"')
        inside = (f"<title>{escape(title)}</title>" if title else "") + body
        self._parts.append(f"<{' '.join(out)}>{inside}</{tag}>" if inside else f"<{' '.join(out)}/>")


@dataclass(frozen=True, kw_only=True)
class Table:
    """The data behind a figure, or a table of its own. Cells are shown as text; numbers to the right."""

    header: Sequence[str]
    rows: Sequence[Sequence[object]]


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A picture that can be drawn at any width, with its data and the command that made it."""

    title: str
    desc: str
    """One sentence: what is to be seen."""
    draw: Callable[[float], Drawing]
    """Width in user units -> drawing. At 360 it must still be readable."""
    table: Table
    command: str = ""
    caption: str | None = None
    """Shown below the title on a page; None: the description."""

    def svg(self, width: float = 880) -> str:
        """A standalone SVG file."""
        return self.draw(width).file(self.title, self.desc)


def escape(text: str) -> str:
    """Text for an element or a quoted attribute. What cannot be seen (controls, bidi overrides) is written out."""
    return html.escape(shown(text.replace("\r\n", "\n").replace("\u00a0", " ")))


_NARROW, _WIDE = frozenset("iljtfrI.,:;!|'`()[] "), frozenset("mwMWQOG@%&#")


def text_width(text: str) -> float:
    """How wide a label may get, from above: DejaVu Sans, the widest of the common fonts, rounded up."""
    total = 0.0
    for char in text:
        if unicodedata.combining(char):
            continue
        if char in _NARROW:
            total += 0.42
        elif char in _WIDE:
            total += 1.0
        elif char.isupper():
            total += 0.73
        else:
            total += 1.05 if unicodedata.east_asian_width(char) in "WF" else 0.64
    return total * TEXT_SIZE


def fit(text: str, width: float) -> str:
    """Text cut at the end until it fits, with an ellipsis; empty where not even two characters fit."""
    if text_width(text) <= width:
        return text
    for end in range(len(text) - 1, 1, -1):
        if text_width(text[:end]) + TEXT_SIZE <= width:
            return text[:end] + "…"
    return ""


def wrap(text: str, width: float) -> list[str]:
    """Lines of whole words no wider than asked; a word longer than a line is broken."""
    lines: list[str] = []
    for word in text.split():
        if lines and text_width(f"{lines[-1]} {word}") <= width:
            lines[-1] += f" {word}"
            continue
        lines.append("")
        for char in word:
            if lines[-1] and text_width(lines[-1] + char) > width:
                lines.append("")
            lines[-1] += char
    return lines


def _number(value: float) -> str:
    """A coordinate with at most one decimal."""
    text = f"{value:.1f}"
    return text.removesuffix(".0") if text != "-0.0" else "0"

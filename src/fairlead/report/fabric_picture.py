"""The fabric as a picture: a lane a plane with its T1 and T0 switches, a column a host, a port where they cross.

A port is a small gauge, filled as far as its measured rate reaches towards the nominal one. A dead host is then a
column, a dead plane a lane, a bad link one gauge. What is wrong carries a number; the list below says it in words.
Beyond 16 hosts the columns are T0s, and a gauge shows the share of ports that are up; what is called out stays.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fairlead.records.fabricview import FabricView, Pair, Port, Switch
from fairlead.records.verdict import Verdict
from fairlead.report.fabric_words import (
    Callout,
    Column,
    callouts,
    columns_of,
    place_of,
    shape_text,
    short_names,
    view_table,
)
from fairlead.report.scale import written
from fairlead.report.svg import TEXT_SIZE, Drawing, Figure, fit, text_width, wrap

_LINE = TEXT_SIZE + 6
_GUTTER = 62.0
_MARK = 8.0
_T1, _T0, _PORT = 16.0, 52.0, 79.0
"""Middle lines of a lane's three rows, from its top."""
_LANE = 100.0
_SWITCH = 16.0
_MOST_COLUMNS, _MOST_SWITCHES, _MOST_PAIRS = 16, 16, 4


def fabric_figure(view: FabricView, *, title: str = "", command: str = "") -> Figure:
    """The fabric with everything that is known to be wrong in it."""
    said = callouts(view)
    desc = f"{shape_text(view)}. " + (" ".join(f"{c.text}." for c in said) or "Everything is up.")
    return Figure(
        title=title or f"Fabric of {view.title}",
        desc=desc,
        draw=lambda width: _Picture(view, said, width).draw(),
        table=view_table(view),
        command=command,
        caption="",
    )


class _Picture:
    """One drawing in the making: the places of everything first, then the shapes from the back to the front."""

    def __init__(self, view: FabricView, said: list[Callout], width: float) -> None:
        self.view, self.said, self.width = view, said, width
        self.parts = {place_of(p): p for p in (*view.hosts, *view.switches, *view.ports, *view.trunks)}
        self.t0_of = {h.name: h.t0 for h in view.hosts}
        self.numbers = {place_of(p): c for c in reversed(said) for p in c.parts}
        self.pairs = [c for c in said if isinstance(c.parts[0], Pair)][:_MOST_PAIRS]
        self.taken: list[tuple[float, float]] = []  # middles of the number marks placed so far
        self.head = wrap(shape_text(view), width)
        self.below = [(c, wrap(c.text, width - 26)) for c in said]
        self.columns = columns_of(view, _MOST_COLUMNS)
        self.step = (width - _GUTTER) / max(1, len(self.columns))
        self.common, self.labels, self.label_rows = self._labels()
        self.top = len(self.head) * _LINE + 16
        self.bottom = self.top + _LANE * view.num_planes
        self.hosts_bottom = self.bottom + 14 + self.label_rows * _LINE
        self.pairs_bottom = self.hosts_bottom + 22 * len(self.pairs)
        lines_below = sum(len(lines) for _, lines in self.below)
        self.out = Drawing(width, self.pairs_bottom + 26 + lines_below * _LINE + (10 if lines_below else 0))

    def draw(self) -> Drawing:
        for i, line in enumerate(self.head):
            self.out.text(0, i * _LINE + TEXT_SIZE, line, "pale")
        self._host_columns()
        for plane in range(self.view.num_planes):
            with self.out.group(f"plane {plane}"):
                self._lane(plane)
        self._pair_brackets()
        self._legend(self.pairs_bottom + 6)
        self._list(self.pairs_bottom + 36)
        return self.out

    # ---- hosts ---------------------------------------------------------------------------------------------------

    def _middle(self, column: int) -> float:
        return _GUTTER + (column + 0.5) * self.step

    def _labels(self) -> tuple[str, list[str], int]:
        """(what all names begin with, label of each column, staggered rows they take)."""
        common, names = "hosts", [c.name for c in self.columns]
        if max(map(text_width, names), default=0) > self.step - 4:
            common, names = short_names(self.columns)
        widest = max(map(text_width, names), default=0)
        rows = next((r for r in (1, 2) if widest <= self._label_room(r)), 3)
        return common, [fit(n, self._label_room(rows)) for n in names], rows

    def _label_room(self, rows: int) -> float:
        """How wide staggered labels may be, so that the last one can move left into the picture and cover none."""
        return min(rows * self.step - 4, (2 * rows + 1) / 3 * self.step - 2)

    def _host_columns(self) -> None:
        inset = min(4.0, self.step * 0.08)
        height = self.bottom + 10 - self.top + self.label_rows * _LINE
        for i, column in enumerate(self.columns):
            role = _role_of(self.parts.get(("host", column.hosts[0]))) if len(column.hosts) == 1 else ""
            x, wide = _GUTTER + i * self.step + inset, self.step - 2 * inset
            self.out.rect(x, self.top, wide, height, "panel", radius=4, title=column.name)
            if role:
                self.out.rect(x, self.top, wide, height, "tint", fill=role, stroke=role, radius=4)
            for callout, name in self._marked([(("host", h), h) for h in column.hosts]):
                self._mark(self._middle(i), self.top, callout, name)
        for i, label in enumerate(self.labels):
            middle = min(self._middle(i), self.width - text_width(label) / 2)
            y = self.bottom + TEXT_SIZE + (i % self.label_rows) * _LINE
            self.out.text(middle, y, label, anchor="middle", title=self.columns[i].name)
        first = self._middle(0) - text_width(self.labels[0]) / 2 if self.labels else _GUTTER
        self.out.text(0, self.bottom + TEXT_SIZE, fit(self.common, min(first, _GUTTER) - 4), "pale")

    # ---- planes --------------------------------------------------------------------------------------------------

    def _lane(self, plane: int) -> None:
        top = self.top + plane * _LANE
        self.out.rect(0, top + 6, 4, _LANE - 14, fill=plane, radius=2)
        self.out.text(10, top + _T1 + 4, f"plane {plane}", "strong")
        t1s, t0s = self._t1_spans(), self._t0_spans()
        self._trunks(plane, top, t1s, t0s)
        for span in t1s:
            self._switch(plane, 1, span, top + _T1)
        for span in t0s:
            self._switch(plane, 0, span, top + _T0)
        for i, column in enumerate(self.columns):
            self._port(plane, i, column, top)

    def _t0_spans(self) -> list[_Span]:
        """Each T0 as wide as its columns."""
        at: dict[tuple[int, ...], list[int]] = {}
        for i, column in enumerate(self.columns):
            at.setdefault(column.t0s, []).append(i)
        side = min(6.0, self.step * 0.08)
        left = _GUTTER + side
        return [_Span(t0s, left + i[0] * self.step, left + (i[-1] + 1) * self.step - 2 * side) for t0s, i in at.items()]

    def _t1_spans(self) -> list[_Span]:
        """T1s spread evenly; one bar for all where there are very many."""
        num, left, room = self.view.num_t1, _GUTTER + 12, self.width - _GUTTER - 24
        if num > _MOST_SWITCHES:
            return [_Span(tuple(range(num)), left, left + room)]
        wide, each = min(64.0, room / num * 0.6), room / num
        return [_Span((i,), left + (i + 0.5) * each - wide / 2, left + (i + 0.5) * each + wide / 2) for i in range(num)]

    def _switch(self, plane: int, tier: int, span: _Span, y: float) -> None:
        indices, left, right = span.indices, span.left, span.right
        found = [self.parts.get(("switch", plane, tier, i)) for i in indices]
        bad = [p for p in found if isinstance(p, Switch) and p.is_called_out]
        is_down = len(indices) == 1 and bool(bad) and bad[0].state == "down"
        role = _role_of(bad[0]) if len(indices) == 1 and bad else ""
        edge = role or ("muted" if is_down else plane)
        name = f"T{tier} {indices[0]}" + (f"-{indices[-1]}" if len(indices) > 1 else "")
        cls, title = "hair back dash" if is_down else "hair back", f"{name}, plane {plane}"
        self.out.rect(left, y - _SWITCH / 2, right - left, _SWITCH, cls, stroke=edge, radius=3, title=title)
        marked = self._marked([(("switch", plane, tier, i), f"T{tier} {i}, plane {plane}") for i in indices])
        is_narrow = right - left < 4 * _MARK
        for callout, what in marked:
            self._mark(span.middle if is_narrow else right + 4, y, callout, what)
        if not (marked and is_narrow):
            short = name if text_width(name) <= right - left - 4 else name.partition(" ")[2]
            self.out.text(span.middle, y + 4, fit(short, right - left), "pale", anchor="middle")

    def _trunks(self, plane: int, top: float, t1s: list[_Span], t0s: list[_Span]) -> None:
        marks = []
        for t0 in t0s:
            for t1 in t1s:
                low = t0.middle
                high = low if len(t1.indices) > 1 else t1.middle
                keys = [("trunk", plane, a, b) for a in t0.indices for b in t1.indices]
                cls, stroke = self._wire(keys[0]) if len(keys) == 1 else ("hair", plane)
                start, end = (low, top + _T0 - _SWITCH / 2), (high, top + _T1 + _SWITCH / 2)
                self.out.line(*start, *end, f"{cls} mesh" if stroke == plane else cls, stroke=stroke)
                named = [(k, f"T0 {k[2]} to T1 {k[3]}, plane {plane}") for k in keys]
                marks += [(start, end, *marked) for marked in self._marked(named)]
        for start, end, callout, what in marks:
            self._mark(*self._free(start, end), callout, what)

    def _wire(self, key: tuple[object, ...]) -> tuple[str, int | str]:
        """How a link is drawn: dashed when it or an end of it is down, dotted when it is not what it claims."""
        ends: tuple[tuple[object, ...], ...]
        if key[0] == "trunk":
            plane, ends = key[1], (("switch", key[1], 0, key[2]), ("switch", key[1], 1, key[3]))
        else:
            plane, ends = key[2], (("host", key[1]), ("switch", key[2], 0, self.t0_of[str(key[1])]))
        part = self.parts.get(key)
        role = _role_of(part)
        if any(getattr(self.parts.get(e), "state", "up") == "down" for e in ends):
            return "hair dash", role or "muted"
        cls = {"up": "hair", "down": "thin dash"}.get(getattr(part, "state", "up"), "thin dots")
        assert isinstance(plane, int)
        return cls, role or plane

    def _free(self, start: tuple[float, float], end: tuple[float, float]) -> tuple[float, float]:
        """A place along a wire where no mark is yet."""
        for share in (0.5, 0.4, 0.6, 0.3, 0.7):
            at = (start[0] + share * (end[0] - start[0]), start[1] + share * (end[1] - start[1]))
            if not self._is_taken(*at):
                return at
        return ((start[0] + end[0]) / 2, (start[1] + end[1]) / 2)

    def _port(self, plane: int, index: int, column: Column, top: float) -> None:
        keys = [("port", h, plane) for h in column.hosts]
        x, y = self._middle(index), top + _PORT
        marked = self._marked([(k, f"{k[1]}, plane {plane}") for k in keys])
        half, label = 7.0, ""
        if len(keys) == 1:
            label = self._one_port(keys[0], x, y, plane)
        else:
            half = min(self.step * 0.36, 26.0)
            self._many_ports(column, x, y, plane)
        # a number covers the gauge only where columns are too narrow for both
        first = x + half + _MARK + 1 if self.step > 2 * (half + _MARK * 2) else x
        for offset, (callout, what) in enumerate(marked[:3]):
            self._mark(first + offset * (2 * _MARK + 1), y, callout, what)
        beside = x + half + 6 + (2 * _MARK + 1) * len(marked[:3])
        if beside + text_width(label) < _GUTTER + (index + 1) * self.step - 4:
            self.out.text(beside, y + 4, label, "pale")

    def _one_port(self, key: tuple[object, ...], x: float, y: float, plane: int) -> str:
        found = self.parts.get(key)
        port = found if isinstance(found, Port) else Port(host=str(key[1]), plane=plane)
        cls, stroke = self._wire(key)
        is_down = "dash" in cls
        self.out.line(x, y - _PORT + _T0 + _SWITCH / 2, x, y - 7, cls, stroke=stroke)
        share = 0.0 if is_down else _filled(port, self.view.rate_bps)
        measured = written(port.rate_bps, "b/s") if port.rate_bps is not None else ""
        said = ", ".join(p for p in ("down" if is_down else port.state, port.note, measured) if p)
        gauge = _Gauge(7, share, stroke, is_dashed=is_down, title=f"{port.host}, plane {plane}: {said}")
        gauge.draw(self.out, x, y)
        return measured

    def _many_ports(self, column: Column, x: float, y: float, plane: int) -> None:
        num = len(column.hosts)
        up = sum(
            "dash" not in self._wire(("port", h, plane))[0] and self._state(h, plane) == "up" for h in column.hosts
        )
        half = min(self.step * 0.36, 26.0)
        self.out.line(x, y - _PORT + _T0 + _SWITCH / 2, x, y - 7, "hair", stroke=plane)
        title = f"{column.name}, plane {plane}: {up} of {num} ports up"
        _Gauge(half, up / num, plane, title=title).draw(self.out, x, y)
        label = f"{up}/{num}"
        if up < num and text_width(label) < self.step - 2:
            self.out.text(x, y + 7 + TEXT_SIZE, label, "pale", anchor="middle")

    def _state(self, host: str, plane: int) -> str:
        return getattr(self.parts.get(("port", host, plane)), "state", "up")

    # ---- marks ---------------------------------------------------------------------------------------------------

    def _marked(self, places: Iterable[tuple[tuple[object, ...], str]]) -> list[tuple[Callout, str]]:
        """The call-outs at some places, each once, with the name of the first place it is at."""
        hits: dict[int, tuple[Callout, str]] = {}
        for key, name in places:
            if key in self.numbers:
                hits.setdefault(self.numbers[key].number, (self.numbers[key], name))
        return [hits[k] for k in sorted(hits)]

    def _is_taken(self, x: float, y: float) -> bool:
        return any(abs(x - a) < 2 * _MARK and abs(y - b) < 2 * _MARK for a, b in self.taken)

    def _mark(self, x: float, y: float, callout: Callout, what: str) -> None:
        """A numbered dot; where one is already, it moves right, and the list below says it in any case."""
        x = min(x, self.width - _MARK)
        if self._is_taken(x, y):
            return
        self.taken.append((x, y))
        _dot(self.out, x, y, callout, f"{what}: {callout.what}")

    def _pair_brackets(self) -> None:
        at = {h: self._middle(i) for i, c in enumerate(self.columns) for h in c.hosts}
        for row, callout in enumerate(self.pairs):
            y = self.hosts_bottom + 22 * row + 8
            for pair in callout.parts:
                if isinstance(pair, Pair) and pair.a in at and pair.b in at:
                    left, right = sorted((at[pair.a], at[pair.b]))
                    self.out.path([(left, y - 6), (left, y), (right, y), (right, y - 6)], "thin", stroke=callout.role)
                    self._mark((left + right) / 2, y, callout, f"{pair.a} and {pair.b}")

    def _legend(self, y: float) -> None:
        is_folded = len(self.columns) < len(self.view.hosts)
        one = [("up, full rate", 1.0, False), ("part of the rate", 0.4, False), ("down", 0.0, True)]
        x = 0.0
        for label, share, is_dashed in [("share of ports up", 0.6, False)] if is_folded else one:
            _Gauge(7, share, "muted", is_dashed=is_dashed).draw(self.out, x + 7, y + 8)
            self.out.text(x + 20, y + TEXT_SIZE, label, "pale")
            x += 20 + text_width(label) + 14

    def _list(self, y: float) -> None:
        for callout, lines in self.below:
            _dot(self.out, _MARK, y + 8, callout, "")
            for line in lines:
                self.out.text(26, y + TEXT_SIZE, line)
                y += _LINE


@dataclass(frozen=True)
class _Span:
    """One switch, or several of one tier drawn as one, and where it is drawn."""

    indices: tuple[int, ...]
    left: float
    right: float

    @property
    def middle(self) -> float:
        return (self.left + self.right) / 2


@dataclass(frozen=True)
class _Gauge:
    """A box filled from below."""

    half: float
    share: float
    role: int | str
    is_dashed: bool = False
    title: str = ""

    def draw(self, out: Drawing, x: float, y: float) -> None:
        if self.share > 0:
            height = 14 * self.share
            out.rect(x - self.half, y + 7 - height, 2 * self.half, height, fill=self.role, radius=1.5, title=self.title)
        frame = "hair none dash" if self.is_dashed else "hair none"
        out.rect(x - self.half, y - 7, 2 * self.half, 14, frame, stroke=self.role, radius=2, title=self.title)


def _role_of(part: object) -> str:
    """The colour of a part that has something to say: its verdict, that of a warning where nobody judged, or none."""
    verdict = getattr(part, "verdict", None)
    if verdict in (Verdict.FAIL, Verdict.WARN, Verdict.UNKNOWN):
        return str(verdict)
    return "warn" if getattr(part, "is_called_out", False) else ""


def _filled(port: Port, nominal: float | None) -> float:
    """How full the gauge of a port that is not down is."""
    if port.rate_bps is None or not nominal:
        return 0.0 if port.state == "unknown" else 1.0
    return min(1.0, max(0.0, port.rate_bps / nominal))


def _dot(out: Drawing, x: float, y: float, callout: Callout, title: str) -> None:
    out.circle(x, y, _MARK + 1.5, fill="paper")
    out.circle(x, y, _MARK, fill=callout.role, title=title)
    out.text(x, y + 4, str(callout.number), "onfill", anchor="middle", title=title)

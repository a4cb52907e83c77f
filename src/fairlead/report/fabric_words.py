"""What a fabric view says in words: one sentence of shape, numbered call-outs, and the view for a terminal.

A call-out is one thing to know; equal things at several places share a number. What is only down because the part it
hangs on is down is drawn, not called out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from fairlead.base.nodeset import NodeSet, fold
from fairlead.base.table import table
from fairlead.records.fabricview import FabricView, Host, Pair, Part, Port, Switch, Trunk
from fairlead.records.verdict import Verdict
from fairlead.report.scale import written
from fairlead.report.svg import Table

AnyPart: TypeAlias = Host | Switch | Port | Trunk | Pair

_WORST_FIRST = {Verdict.FAIL: 0, Verdict.UNKNOWN: 1, Verdict.WARN: 2, None: 3, Verdict.PASS: 4, Verdict.SKIP: 5}
_MOST_CHARACTERS = 90
"""Of column names side by side, before they are shortened."""
_KINDS = (Host, Switch, Port, Trunk, Pair)


@dataclass(frozen=True)
class Callout:
    """One numbered remark and every part it is about."""

    number: int
    parts: tuple[AnyPart, ...]
    role: str
    """A colour of the palette: the verdict, or that of a warning where nobody judged."""
    where: str
    what: str

    @property
    def text(self) -> str:
        """`FAIL n2 port, plane 1: drops silently`."""
        word = f"{self.parts[0].verdict.upper()} " if self.parts[0].verdict else ""
        return f"{word}{self.where}: {self.what}"


def shape_text(view: FabricView) -> str:
    """`4 hosts n[0-3], 4 planes of 2 T0 and 2 T1 switches; ports 250 Mb/s, trunks 250 Mb/s`."""
    planes = f"{view.num_planes} {'planes' if view.num_planes != 1 else 'plane'}"
    text = f"{count(len(view.hosts), 'host')} {_names(h.name for h in view.hosts)}, {planes}"
    text += f" of {view.num_t0} T0 and {view.num_t1} T1 switches"
    rates = [("ports", view.rate_bps), ("trunks", view.trunk_rate_bps)]
    known = ", ".join(f"{what} {written(bps, 'b/s')}" for what, bps in rates if bps)
    return f"{text}; {known}" if known else text


def callouts(view: FabricView) -> list[Callout]:
    """Everything a reader must be told, the worst first."""
    explained = _Explained(view)
    groups: dict[tuple[object, ...], list[AnyPart]] = {}
    parts: list[AnyPart] = [*view.hosts, *view.switches, *view.ports, *view.trunks, *view.pairs]
    for part in parts:
        if part.is_called_out and not (not part.note and part.verdict is None and explained(part)):
            key = (_KINDS.index(type(part)), part.verdict, part.state, part.note, _measured(part))
            groups.setdefault(key, []).append(part)
    ordered = sorted(groups.values(), key=lambda g: (_WORST_FIRST[g[0].verdict], _KINDS.index(type(g[0]))))
    return [
        Callout(i, tuple(group), _role(group[0]), _where(group), _what(group[0], view))
        for i, group in enumerate(ordered, 1)
    ]


def fabric_text(view: FabricView) -> str:
    """The fabric for a terminal: a row a plane, a column a host (or a T0, beyond 16 hosts), then the call-outs."""
    said = callouts(view)
    marks: dict[tuple[object, ...], str] = {}
    for callout in said:
        for part in callout.parts:
            marks[place_of(part)] = marks.get(place_of(part), "") + f"({callout.number})"
    columns = columns_of(view, 16)
    states = {place_of(p): p for p in view.ports}
    rows = []
    for plane in range(view.num_planes):
        switches = [_switch_cell(view, plane, tier, marks) for tier in (1, 0)]
        cells = [_cell([(h, plane) for h in c.hosts], states, marks) for c in columns]
        rows.append([f"plane {plane}", *switches, *cells])
    hosts = ["host", "", "", *("".join(marks.get(("host", h), "") for h in c.hosts) for c in columns)]
    body = [*rows, hosts] if any(hosts[3:]) else rows
    names = [c.name for c in columns]
    if sum(map(len, names)) > _MOST_CHARACTERS:
        common, names = short_names(columns)
        body = [["", "", "", *names], *body]
        names = [common] + [""] * (len(names) - 1)
    lines = [f"{view.title}: {shape_text(view)}", "", table(["", "T1", "T0", *names], body)]
    if said:
        lines += ["", *(f"({c.number})  {c.text}" for c in said)]
    return "\n".join(lines)


def view_table(view: FabricView) -> Table:
    """The data behind the picture: every part that has something to say, else every port with a measured rate."""
    rows = [[c.number, c.where, c.parts[0].verdict or "", c.what] for c in callouts(view)]
    measured = [
        [f"{p.host}, plane {p.plane}", written(p.rate_bps, "b/s")] for p in view.ports if p.rate_bps is not None
    ]
    if rows or not measured:
        return Table(header=["", "part", "verdict", "state"], rows=rows or [["", "all", "", "up"]])
    return Table(header=["port", "rate"], rows=measured)


# ---- columns ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    """One host, or all hosts under some T0s of the same indices in every plane."""

    name: str
    hosts: tuple[str, ...]
    t0s: tuple[int, ...]


def columns_of(view: FabricView, most: int) -> list[Column]:
    """Hosts in the order of their T0; folded by T0, and then by runs of T0s, until at most `most` columns are left."""
    order = {name: i for i, name in enumerate(NodeSet(h.name for h in view.hosts))}
    hosts = sorted(view.hosts, key=lambda h: (h.t0, order[h.name]))
    if len(hosts) <= most:
        return [Column(h.name, (h.name,), (h.t0,)) for h in hosts]
    each = -(-view.num_t0 // most)
    columns = []
    for first in range(0, view.num_t0, each):
        t0s = tuple(range(first, min(first + each, view.num_t0)))
        names = tuple(h.name for h in hosts if h.t0 in t0s)
        columns.append(Column(_names(names), names, t0s))
    return [c for c in columns if c.hosts]


def short_names(columns: Sequence[Column]) -> tuple[str, list[str]]:
    """(what all host names begin with, each column's name without it). A number is never cut in two."""
    hosts = [h for c in columns for h in c.hosts]
    same = len(os.path.commonprefix(hosts))  # noqa: RUF071 - by character is what names need
    while same and hosts[0][same - 1].isdigit():
        same -= 1
    rest = [_names(h[same:] or h for h in c.hosts) for c in columns]
    return (f"{hosts[0][:same]}…" if same else "hosts"), [re.sub(r"\[([^\[\]]*)\]\Z", r"\1", r) for r in rest]


def place_of(part: Part) -> tuple[object, ...]:
    """A key that says which place of the fabric a part is."""
    match part:
        case Host():
            return ("host", part.name)
        case Switch():
            return ("switch", part.plane, part.tier, part.index)
        case Port():
            return ("port", part.host, part.plane)
        case Trunk():
            return ("trunk", part.plane, part.t0, part.t1)
        case Pair():
            return ("pair", part.a, part.b, part.plane)
    raise TypeError(type(part))


def count(number: int, noun: str) -> str:
    """`1 host`, `4 hosts`."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


# ---- inside ----------------------------------------------------------------------------------------------------------


class _Explained:
    """Whether a part hangs on one that is itself called out."""

    def __init__(self, view: FabricView) -> None:
        self._called = {place_of(p) for p in (*view.hosts, *view.switches) if p.is_called_out}
        self._t0 = {h.name: h.t0 for h in view.hosts}

    def __call__(self, part: Part) -> bool:
        if isinstance(part, Port):
            above = ("switch", part.plane, 0, self._t0.get(part.host, -1))
            return ("host", part.host) in self._called or above in self._called
        if isinstance(part, Trunk):
            ends = (("switch", part.plane, 0, part.t0), ("switch", part.plane, 1, part.t1))
            return any(e in self._called for e in ends)
        return False


def _measured(part: Part) -> float | None:
    return part.rate_bps if isinstance(part, Port | Trunk) else None


def _role(part: Part) -> str:
    return str(part.verdict) if part.verdict not in (None, Verdict.PASS, Verdict.SKIP) else "warn"


def _what(part: Part, view: FabricView) -> str:
    said = part.note or part.state
    bps = _measured(part)
    if bps is not None:
        nominal = view.trunk_rate_bps if isinstance(part, Trunk) else view.rate_bps
        said += f", {written(bps, 'b/s')}" + (f" of {written(nominal, 'b/s')}" if nominal else "")
    return said


def _where(group: Sequence[AnyPart]) -> str:
    first = group[0]
    if isinstance(first, Host):
        hosts = [p.name for p in group if isinstance(p, Host)]
        return ("host " if len(hosts) == 1 else "hosts ") + _names(hosts)
    if isinstance(first, Port):
        by_plane: dict[int, list[str]] = {}
        for p in group:
            if isinstance(p, Port):
                by_plane.setdefault(p.plane, []).append(p.host)
        return _by_planes({plane: _names(hosts) for plane, hosts in by_plane.items()}, "port")
    if isinstance(first, Switch):
        by_place = {(p.plane, p.tier): "" for p in group if isinstance(p, Switch)}
        for p in group:
            if isinstance(p, Switch):
                by_place[p.plane, p.tier] += f",{p.index}"
        return "; ".join(f"T{tier} {said[1:]}, plane {plane}" for (plane, tier), said in by_place.items())
    if isinstance(first, Trunk):
        return "; ".join(f"T0 {p.t0} to T1 {p.t1}, plane {p.plane}" for p in group if isinstance(p, Trunk))
    return "; ".join(
        f"{p.a} and {p.b}" + (f", plane {p.plane}" if p.plane is not None else "") for p in group if isinstance(p, Pair)
    )


def _by_planes(names: dict[int, str], what: str) -> str:
    """Planes with the same names are said together: `n2 port, planes 0-3`."""
    planes: dict[str, list[int]] = {}
    for plane, said in names.items():
        planes.setdefault(said, []).append(plane)
    out = []
    for said, where in planes.items():
        numbers = fold(str(p) for p in where).strip("[]")
        out.append(f"{said} {what}, {'plane' if len(where) == 1 else 'planes'} {numbers}")
    return "; ".join(out)


def _names(names: Iterable[str]) -> str:
    return str(NodeSet(names))


def _switch_cell(view: FabricView, plane: int, tier: int, marks: dict[tuple[object, ...], str]) -> str:
    num = view.num_t1 if tier else view.num_t0
    down = sum(s.plane == plane and s.tier == tier and s.state != "up" for s in view.switches)
    numbers = {marks.get(("switch", plane, tier, i), "") for i in range(num)}
    numbers |= {m for key, m in marks.items() if tier and key[:2] == ("trunk", plane)}
    return (f"{num - down} of {num} up" if down else f"{num} up") + "".join(sorted(numbers))


def _cell(
    places: Sequence[tuple[str, int]], ports: dict[tuple[object, ...], Port], marks: dict[tuple[object, ...], str]
) -> str:
    found = [ports.get(("port", *place)) for place in places]
    numbers = "".join(sorted({marks.get(("port", *place), "") for place in places}))
    if len(places) > 1:
        good = sum(p is None or p.state == "up" for p in found)
        return (f"{good} of {len(places)} up" if good < len(places) else "up") + numbers
    port = found[0]
    if port is None:
        return "up" + numbers
    return (written(port.rate_bps, "b/s") if port.rate_bps is not None and port.state == "up" else port.state) + numbers

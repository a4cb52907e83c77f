"""A diagnosis for people: text, and a timeline as a figure of the report room. Pure."""

from __future__ import annotations

import datetime as dt

from fairlead.base.table import printable
from fairlead.logs.diagnose.model import Cited, Diagnosis
from fairlead.report.scale import Axis, scale
from fairlead.report.svg import Drawing, Figure, Table, fit, text_width

_MOST_ROOTS, _MOST_OTHERS = 5, 6
_ROW = 26.0
_WIDTH_OF_TIME = 24


def text(found: Diagnosis) -> str:
    """What a person reads: the cause first, then the lines it comes from, what followed, who suffered, what to do."""
    rows: list[tuple[str, str]] = [("job", f"{found.job} {found.state}".rstrip())]
    rows.append(("cause", f"{found.says}" + (f"  [{found.what}, confidence {found.confidence}]" if found.what else "")))
    rows += [("root", _quoted(line)) for line in found.roots[:_MOST_ROOTS]]
    if len(found.chain) > 1:
        for place, link in enumerate(found.chain):
            who = f" ({link.nodes})" if link.nodes else ""
            times = f", {link.num} lines" if link.num > 1 else ""
            rows.append(("then" if place else "first", f"{link.says}{who}{times}"))
    if found.victims:
        rows.append(("victims", f"{found.victims}: only suffered"))
    rows += [("seen", f"{finding.subject}: {finding.message}  ({finding.code})") for finding in found.cited]
    rows += [
        ("not", f"{o.what}{' on ' + o.nodes if o.nodes else ''}: {o.why}")
        for o in found.others[:_MOST_OTHERS]
        if o.why != "it followed"
    ]
    rows += [("unusual", line) for line in found.unusual]
    rows += [
        ("clock", f"{node} is {least:+.3f} to {most:+.3f} s off the controller")
        for node, (least, most) in found.offsets_s.items()
        if abs(least + most) > 1
    ]
    if found.remedy:
        rows.append(("do", found.remedy))
    if found.command:
        rows.append(("type", found.command))
    if found.exclude:
        rows.append(("or", f"sbatch {found.exclude}"))
    told = ""
    lines = []
    for name, said in rows:
        lines.append(f"{'' if name == told else name:8} {printable(said)}".rstrip())
        told = name
    return "\n".join(lines)


def _quoted(line: Cited) -> str:
    return f"{line.time}  {line.node or '-'}  {line.source}  {line.text}"


def timeline(found: Diagnosis, command: str) -> Figure:
    """The chain over time, a row a node. A line without a time of its own is pale."""
    points = [
        (_seconds(link.line.time), link.line.node or "-", link.says, place, link.line.time[:1] == "~")
        for place, link in enumerate(found.chain)
        if link.line
    ]
    nodes = list(dict.fromkeys(node for _, node, _, _, _ in sorted(points, key=lambda p: (p[3], p[0]))))
    start = min((at for at, *_ in points), default=0.0)
    table = Table(
        header=["time", "node", "what", "line"],
        rows=[[link.line.time, link.line.node, link.says, link.line.text[:200]] for link in found.chain if link.line],
    )

    def draw(width: float) -> Drawing:
        left = min(max((text_width(node) for node in nodes), default=0.0) + 12, width / 3)
        places = scale(
            Axis("seconds after the first", "s"),
            [at - start for at, *_ in points] or [0.0],
            num_ticks=8 if width > 600 else 4,
        )
        height = 30 + _ROW * max(1, len(nodes)) + _ROW * max(1, len(points))
        drawing = Drawing(width, height)
        right = width - 12
        base = 10 + _ROW * len(nodes)
        for tick in places.ticks:
            x = left + places.place(tick.value) * (right - left)
            drawing.line(x, 4, x, base, "grid")
            drawing.text(x, base + 16, tick.label, "pale", anchor="middle")
        drawing.text(left, base + 30, places.title, "pale")
        for row, node in enumerate(nodes):
            y = 10 + _ROW * row + _ROW / 2
            drawing.line(left, y, right, y, "axis")
            drawing.text(0, y + 4, fit(node, left - 8), "strong" if node in (found.nodes or (found.at,)) else "")
        for number, (at, node, says, place, is_near) in enumerate(points, 1):
            x = left + places.place(at - start) * (right - left)
            y = 10 + _ROW * nodes.index(node) + _ROW / 2
            role = "fail" if place == 0 and found.roots else "muted" if is_near else "accent"
            drawing.circle(x, y, 6 if place == 0 else 4, "", fill=role, title=says)
            drawing.text(
                left,
                base + 30 + number * 18,
                fit(f"{number}. +{at - start:.1f} s {node}: {says}", right - left),
                "strong" if place == 0 else "",
            )
        return drawing

    return Figure(
        title=f"Job {found.job}: {found.what or 'nothing to explain'}",
        desc=found.says,
        draw=draw,
        table=table,
        command=command,
    )


def _seconds(stamp: str) -> float:
    return dt.datetime.fromisoformat(stamp.lstrip("~")).timestamp()

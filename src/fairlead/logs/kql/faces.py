"""An answer as people and programs read it: table, JSON, CSV, Parquet, a chart of a terminal, SVG.

Must not know: how the answer came about.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairlead.base.files import write_atomic
from fairlead.base.table import table
from fairlead.logs.kql.charts import axes
from fairlead.logs.kql.evaluate import Answer
from fairlead.logs.kql.kinds import NUMERIC, Column, Kind
from fairlead.logs.kql.texts import cell, text_of
from fairlead.logs.kql.times import EPOCH, datetime_text
from fairlead.report.charts import Axis, Bar, Series, bars, lines

_BLOCKS = " ▁▂▃▄▅▆▇█"
_SHOWN_SERIES = 12
_CHART_WIDTH = 60
_SVG_WIDTH = 800.0


def document(answer: Answer) -> dict[str, Any]:
    """`{"columns": [{"name", "type"}], "rows": [[...]]}`, with Kusto's text forms."""
    kinds = [column.kind for column in answer.columns]
    body: dict[str, Any] = {
        "columns": [{"name": column.name, "type": str(column.kind)} for column in answer.columns],
        "rows": [[cell(value, kind) for value, kind in zip(row, kinds, strict=True)] for row in answer.rows],
    }
    if answer.render:
        body["render"] = {"kind": answer.render.kind, "options": dict(answer.render.options)}
    if answer.cut:
        body["truncated"] = True
    return body


def text(answer: Answer) -> str:
    """Columns for a terminal, with the chart that the query asked for above them."""
    kinds = [column.kind for column in answer.columns]
    rows = [[text_of(value, kind) for value, kind in zip(row, kinds, strict=True)] for row in answer.rows]
    page = table([column.name for column in answer.columns], rows)
    drawn = chart(answer) if answer.render else ""
    return f"{drawn}\n\n{page}" if drawn else page


def csv_text(answer: Answer) -> str:
    """Comma-separated values: RFC 4180, with a head."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([column.name for column in answer.columns])
    for row in answer.rows:
        writer.writerow([text_of(value, column.kind) for value, column in zip(row, answer.columns, strict=True)])
    return out.getvalue()


def write_parquet(answer: Answer, path: Path) -> None:
    """A Parquet file: a datetime is a timestamp of microseconds in UTC, a timespan a duration, dynamic is JSON text."""
    import pyarrow as pa
    from pyarrow import parquet

    kinds = {
        Kind.BOOL: pa.bool_(), Kind.INT: pa.int32(), Kind.LONG: pa.int64(), Kind.REAL: pa.float64(),
        Kind.DATETIME: pa.timestamp("us", tz="UTC"), Kind.TIMESPAN: pa.duration("us"),
    }  # fmt: skip
    arrays = []
    for place, column in enumerate(answer.columns):
        values = [_parquet(row[place], column.kind) for row in answer.rows]
        arrays.append(pa.array(values, type=kinds.get(column.kind, pa.string())))
    made = pa.BufferOutputStream()
    parquet.write_table(pa.table(arrays, names=[column.name for column in answer.columns]), made)
    write_atomic(path, made.getvalue().to_pybytes())


def _parquet(value: Any, kind: Kind) -> Any:
    if value is None:
        return None
    if kind is Kind.DATETIME:
        return (value - EPOCH) // 10
    if kind is Kind.TIMESPAN:
        return value // 10
    return value if kind in {Kind.BOOL, Kind.INT, Kind.LONG, Kind.REAL, Kind.STRING} else text_of(value, kind)


# ---- charts --------------------------------------------------------------------------------------------------------


def curves(answer: Answer) -> dict[str, list[tuple[float, float]]]:
    """Points by series: one for each value of the text columns and each column of numbers."""
    assert answer.render is not None
    x, ys, by = axes(answer.columns, answer.render.options)
    found: dict[str, list[tuple[float, float]]] = {}
    for at, row in enumerate(answer.rows):
        for y in ys:
            name = " ".join(
                [
                    *(text_of(row[b], answer.columns[b].kind) for b in by),
                    *([answer.columns[y].name] if len(ys) > 1 or not by else []),
                ]
            )
            place, value = _number(row[x], answer.columns[x].kind, at), row[y]
            if value is not None and place is not None and math.isfinite(float(value)):
                found.setdefault(name, []).append((place, float(value)))
    for place, column in enumerate(answer.columns):
        if column.kind is Kind.DYNAMIC and place != x:
            _from_arrays(answer, place, column, by, found)
    for points in found.values():
        points.sort()
    return found


def _from_arrays(
    answer: Answer, place: int, column: Column, by: Sequence[int], found: dict[str, list[tuple[float, float]]]
) -> None:
    """The arrays of `make-series`: the axis is the one that holds times, or else the places."""
    axis = next(
        (i for i, c in enumerate(answer.columns) if c.kind is Kind.DYNAMIC and i != place and _is_axis(answer, i)), None
    )
    if _is_axis(answer, place):
        return
    for row in answer.rows:
        values = row[place]
        if not isinstance(values, list):
            continue
        name = " ".join([*(text_of(row[b], answer.columns[b].kind) for b in by), column.name])
        points = row[axis] if axis is not None else range(len(values))
        found.setdefault(name, []).extend(
            (_seconds(p) if axis is not None else float(p), float(v))
            for p, v in zip(points, values, strict=False)
            if isinstance(v, int | float)
        )


def _is_axis(answer: Answer, place: int) -> bool:
    from fairlead.logs.kql.kinds import Datetime

    return any(
        isinstance(row[place], list) and row[place] and isinstance(row[place][0], Datetime) for row in answer.rows
    )


def _seconds(value: Any) -> float:
    return (int(value) - EPOCH) / 1e7


def _number(value: Any, kind: Kind, at: int) -> float | None:
    if value is None:
        return None
    if kind is Kind.DATETIME:
        return _seconds(value)
    if kind in NUMERIC:
        return float(value)
    return value / 1e7 if kind is Kind.TIMESPAN else float(at)


def _is_bars(answer: Answer) -> bool:
    assert answer.render is not None
    return answer.render.kind in {"columnchart", "barchart", "piechart"}


def chart(answer: Answer) -> str:
    """A chart of a few lines: bars for groups, a line of blocks for each series over time. Empty for tables."""
    assert answer.render is not None
    if answer.render.kind in {"table", "list", "card"} or not answer.rows:
        return ""
    if _is_bars(answer):
        named = _named(answer)
        most = max((abs(value) for _, value in named), default=0) or 1
        return table(
            ["", "", ""],
            [[name, f"{value:g}", "█" * max(0, round(_CHART_WIDTH * value / most))] for name, value in named[:40]],
        )
    found = curves(answer)
    if not found:
        return ""
    xs = [x for points in found.values() for x, _ in points]
    low, high = min(xs), max(xs)
    rows = []
    for name, points in list(found.items())[:_SHOWN_SERIES]:
        cells: list[list[float]] = [[] for _ in range(_CHART_WIDTH)]
        for x, y in points:
            at = int((x - low) / (high - low) * (_CHART_WIDTH - 1)) if high > low else 0
            cells[at].append(y)
        top = max(y for _, y in points)
        bottom = min(0.0, *(y for _, y in points))
        drawn = "".join(_block(max(cell), bottom, top) if cell else " " for cell in cells)
        rows.append([name, drawn, f"max {top:g}"])
    page = table(["", "", ""], rows)
    if len(found) > _SHOWN_SERIES:
        page += f"\n{len(found) - _SHOWN_SERIES} more series"
    times = any(c.kind is Kind.DATETIME for c in answer.columns) or any(
        _is_axis(answer, i) for i in range(len(answer.columns))
    )
    ends = [datetime_text(round(end * 1e7) + EPOCH)[:19] if times else f"{end:g}" for end in (low, high)]
    return f"{page}\n{ends[0]} to {ends[1]}"


def _block(value: float, bottom: float, top: float) -> str:
    if top <= bottom:
        return _BLOCKS[1]
    return _BLOCKS[min(8, math.ceil((value - bottom) / (top - bottom) * 8)) or 1]


def _named(answer: Answer) -> list[tuple[str, float]]:
    assert answer.render is not None
    x, ys, by = axes(answer.columns, answer.render.options)
    found = []
    for row in answer.rows:
        for y in ys:
            parts = [text_of(row[i], answer.columns[i].kind) for i in (x, *by)]
            if row[y] is not None:
                found.append((" ".join([*parts, *([answer.columns[y].name] if len(ys) > 1 else [])]), float(row[y])))
    return found


def svg(answer: Answer, command: str = "") -> str:
    """The chart as a file of SVG; empty where the answer holds nothing to draw."""
    assert answer.render is not None
    title = str(answer.render.options.get("title") or "") or "answer of a query"
    if _is_bars(answer):
        named = _named(answer)
        if not named:
            return ""
        unit = str(answer.render.options.get("ytitle") or "value")
        figure = bars(title, title, [Bar(name, value) for name, value in named[:60]], x=Axis(unit), command=command)
        return figure.draw(_SVG_WIDTH).file(title, title)
    found = curves(answer)
    if not found:
        return ""
    kind = "points" if answer.render.kind == "scatterchart" else "line"
    series = [Series(name, points, at, kind) for at, (name, points) in enumerate(list(found.items())[:_SHOWN_SERIES])]  # type: ignore[arg-type]
    x = Axis(str(answer.render.options.get("xtitle") or "time"))
    y = Axis(str(answer.render.options.get("ytitle") or "value"))
    return lines(title, title, series, x=x, y=y, command=command).draw(_SVG_WIDTH).file(title, title)

"""`render`: an answer as a chart of a terminal and as SVG.

Must not know: how the answer came about.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fairlead.base.suggest import did_you_mean
from fairlead.logs.kql.kinds import NUMERIC, Column, Kind
from fairlead.logs.kql.problems import Span, unknown, unsupported

KINDS = (
    "table", "list", "card", "timechart", "linechart", "areachart", "stackedareachart", "scatterchart", "columnchart",
    "barchart", "piechart", "anomalychart",
)  # fmt: skip
REFUSED = ("ladderchart", "pivotchart", "timepivot", "treemap", "plotly", "graph", "3Dchart", "sankey")


def check_kind(kind: str, at: Span) -> None:
    """Raises Refused for a chart that is not drawn."""
    if kind in REFUSED:
        raise unsupported(f"the chart `{kind}` is not supported", at, "columnchart")
    if kind not in KINDS:
        raise unknown(f"no chart `{kind}`", at, did_you_mean(kind, KINDS))


def axes(columns: Sequence[Column], options: Mapping[str, Any]) -> tuple[int, list[int], list[int]]:
    """Which columns are x, y and the series: as the options say, else the first that fit."""
    place = {column.name: i for i, column in enumerate(columns)}
    x = place.get(str(options.get("xcolumn", "")), -1)
    if x < 0:
        times = [i for i, c in enumerate(columns) if c.kind is Kind.DATETIME]
        x = times[0] if times else 0
    wanted = options.get("ycolumns", [])
    names = wanted if isinstance(wanted, list) else [wanted]
    ys = [place[n] for n in names if n in place] or [i for i, c in enumerate(columns) if i != x and c.kind in NUMERIC]
    series = [
        i for i, c in enumerate(columns) if i != x and i not in ys and c.kind in {Kind.STRING, Kind.BOOL, Kind.GUID}
    ]
    return x, ys, series

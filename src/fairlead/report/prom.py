"""Findings as metrics for Prometheus's node exporter (textfile collector): gauges, one series a finding that matters.

Write the text with `write_atomic`, as the collector may read at any moment. Exposition format 0.0.4, in base units; no
sample carries a time of its own, which the collector refuses: `..._timestamp_seconds` says how old the file is.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

from fairlead.base.table import printable
from fairlead.records.finding import Finding, worst_first
from fairlead.records.verdict import Verdict

MAX_SERIES = 1000
"""Of findings. A bad day on a large cluster must not swamp the metrics store; what is left out is counted."""
_SHOWN = (Verdict.FAIL, Verdict.UNKNOWN, Verdict.WARN)

Series = tuple[Mapping[str, str], float]


def prom_text(
    findings: Iterable[Finding],
    *,
    verb: str,
    cluster: str,
    verdict: Verdict,
    finished_s: float,
    took_s: Mapping[str, float],
    nodes: Mapping[str, int] | None = None,
) -> str:
    """All metrics of one run; `finished_s` is Unix time, `nodes` how many are `good` and `bad`."""
    found = list(findings)
    base = {"verb": verb, "cluster": cluster}
    shown, num_left_out = _series(found)
    metrics: list[tuple[str, str, Iterable[Series]]] = [
        (
            "fairlead_verdict",
            "1 for the verdict of the last run, 0 for the others",
            [({"verdict": v}, v is verdict) for v in Verdict],
        ),
        (
            "fairlead_findings",
            "Findings of the last run by verdict",
            [({"verdict": v}, sum(f.verdict is v for f in found)) for v in Verdict],
        ),
        ("fairlead_finding", "What is not well: findings by code, node and part", shown),
        ("fairlead_finding_series_left_out", "Series of fairlead_finding beyond the limit", [({}, num_left_out)]),
        ("fairlead_nodes", "Nodes of the last run by state", [({"state": s}, n) for s, n in (nodes or {}).items()]),
        ("fairlead_run_finished_timestamp_seconds", "When the last run finished", [({}, round(finished_s, 3))]),
        (
            "fairlead_stage_duration_seconds",
            "How long each stage of the last run took",
            [({"stage": s}, t) for s, t in took_s.items()],
        ),
    ]
    return "".join(metric(name, help_, base, series) for name, help_, series in metrics)


def _series(findings: list[Finding]) -> tuple[list[Series], int]:
    """One series for each code, verdict, node and part, the worst first; and how many more there would be."""
    named = Counter(
        (f.code, f.verdict, node, f.subject.kind, f.subject.name)
        for f in worst_first(findings)
        if f.verdict in _SHOWN
        for node in (f.subject.nodes or ("",))
    )
    series: list[Series] = [
        ({"code": code, "verdict": verdict, "node": node, "kind": kind, "part": part}, num)
        for (code, verdict, node, kind, part), num in named.items()
    ]
    return series[:MAX_SERIES], max(0, len(series) - MAX_SERIES)


def metric(name: str, help_: str, base: Mapping[str, str], series: Iterable[Series], kind: str = "gauge") -> str:
    """One metric with all its series; nothing where there are none. `kind` is gauge or counter."""
    lines = [f"{name}{{{_labels({**base, **labels})}}} {_number(value)}\n" for labels, value in series]
    return "".join([f"# HELP {name} {help_}\n", f"# TYPE {name} {kind}\n", *lines]) if lines else ""


def _labels(labels: Mapping[str, str]) -> str:
    return ",".join(f'{key}="{escape(text)}"' for key, text in labels.items())


def _number(value: float) -> str:
    """A number as Go reads it: whole ones without an exponent, so that a time keeps its seconds."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) else repr(float(value))


def escape(text: str) -> str:
    r"""A label's value: what other machines said, on one line, with the format's escapes.

    >>> escape('a "b" \\ c')
    'a \\"b\\" \\\\ c'
    """
    return printable(text).replace("\\", "\\\\").replace('"', '\\"')

"""What each operator does to a table: `STEPS[name](evaluator, table, step, names)` gives the next one.

A table that is still SQL of the store stays it where the operator can be said in SQL exactly; else its rows come here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fairlead.logs.kql.steps import combine, expand, parse, plugins, rows, scan, series, summarize

STEPS: dict[str, Callable[..., Any]] = {
    "as": rows.as_,
    "consume": rows.consume,
    "count": summarize.count,
    "distinct": summarize.distinct,
    "evaluate": plugins.evaluate,
    "extend": rows.extend,
    "getschema": rows.getschema,
    "invoke": rows.invoke,
    "join": combine.join,
    "lookup": combine.lookup,
    "make-series": series.make_series,
    "mv-apply": expand.mv_apply,
    "mv-expand": expand.mv_expand,
    "parse": parse.parse,
    "parse-kv": parse.parse_kv,
    "parse-where": parse.parse_where,
    "partition": combine.partition,
    "project": rows.project,
    "project-away": rows.project_away,
    "project-keep": rows.project_keep,
    "project-rename": rows.project_rename,
    "project-reorder": rows.project_reorder,
    "reduce": plugins.reduce,
    "render": rows.render,
    "sample": rows.sample,
    "sample-distinct": summarize.sample_distinct,
    "scan": scan.scan,
    "search": combine.search,
    "serialize": rows.serialize,
    "sort": rows.sort,
    "summarize": summarize.summarize,
    "take": rows.take,
    "top": rows.top,
    "top-hitters": summarize.top_hitters,
    "top-nested": summarize.top_nested,
    "union": combine.union,
    "where": rows.where,
}

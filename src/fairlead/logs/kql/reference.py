"""The reference page of KQL, made from the catalogue: every operator and function with its state.

`make docs` writes what `pages` returns into docs/reference; a test holds it fresh.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fairlead.logs.kql import registry
from fairlead.logs.kql.binding import SPECIAL, WINDOWS
from fairlead.logs.kql.catalogue import REFUSED_FUNCTIONS
from fairlead.logs.kql.charts import KINDS
from fairlead.logs.kql.charts import REFUSED as REFUSED_CHARTS
from fairlead.logs.kql.expressions import MEMBERSHIP, STRING_OPS
from fairlead.logs.kql.operators import ALIASES, OPERATORS
from fairlead.logs.kql.operators import REFUSED as REFUSED_OPERATORS
from fairlead.logs.kql.registry import AGGREGATES, MANY, SCALARS, Scalar
from fairlead.logs.kql.sql.functions import EXACT
from fairlead.logs.kql.sql.relation import PUSHED
from fairlead.logs.kql.steps.plugins import PLUGINS, REFUSED_PLUGINS

_ABOUT = """\
What `fairlead logs query` knows of the Kusto Query Language, and what it refuses. A query that holds something refused
is not answered at all: the message names the place and what to write instead.

Where a state is *both*, the operator or function runs in the store's engine when the table is in the store, and here on
rows that a query makes itself (`print`, `range`, `datatable`); where it is *here*, the rows come from the store first.
The answers are the same."""
_NOTES = """\
- Strings are compared by code points; `has` looks for whole terms, which end at what is neither letter nor digit.
- Regular expressions are RE2's. Those that look around or refer back are refused.
- `dcount`, `percentile` and `top-hitters` are exact, where Kusto estimates.
- `autocluster`, `diffpatterns` and `reduce` have Kusto's columns. The algorithms are our own: Kusto's are unpublished.
- `hash` and `hash_xxhash64` take strings alone.
- A `datatable` of this size and more is better imported: a query has at most two million characters."""
_STATEMENTS = (
    ("let", "scalars, tables, functions, views", "yes"),
    ("declare query_parameters", "values come from `--param`, never as text of the query", "yes"),
    ("set", "", "refused"),
    ("alias", "", "refused"),
    ("restrict", "", "refused"),
    ("declare pattern", "", "refused"),
    ("cluster(), database()", "there is one store", "refused"),
)


def pages() -> dict[str, str]:
    """File name -> Markdown."""
    registry.load()
    out = ["<!-- made by `make docs`; do not edit -->", "# KQL", _ABOUT, _NOTES]
    out += ["## Statements", _table(("statement", "what", "state"), ((f"`{n}`", w, s) for n, w, s in _STATEMENTS))]
    out += ["## Sources", _table(("source", "state"), ((f"`{n}`", "here") for n in ("print", "range", "datatable")))]
    operators = [
        (f"`{name}`", "both" if ALIASES.get(name, name) in PUSHED else "here", "") for name in sorted(OPERATORS)
    ]
    operators += [(f"`{name}`", "refused", instead) for name, instead in sorted(REFUSED_OPERATORS.items())]
    out += ["## Operators", _table(("operator", "state", "instead"), operators)]
    signs = sorted((STRING_OPS - {":", "like", "notlike"}) | MEMBERSHIP | {"between", "!between", "matches regex"})
    out += [
        "## Word operators",
        "Of strings, of lists and of ranges: " + ", ".join(f"`{sign}`" for sign in signs) + ".",
    ]
    out += ["## Aggregates", _table(("aggregate", "takes", "gives"), _aggregates())]
    for family in sorted({fn.family for fn in SCALARS.values()} - {"operators", "inner"}):
        found = [fn for fn in SCALARS.values() if fn.family == family]
        out += [
            f"## Functions: {family}",
            _table(("function", "takes", "gives", "state"), map(_scalar, sorted(found, key=lambda f: f.name))),
        ]
    special = sorted(
        {*SPECIAL, *WINDOWS, "iif", "series_fit_line", "series_stats"}
        - set(AGGREGATES)
        - set(SCALARS)
        - set(REFUSED_FUNCTIONS)
        - {"datatable"}
    )
    out += ["## Functions with rules of their own", ", ".join(f"`{name}`" for name in special) + "."]
    out += [
        "## Functions that are refused",
        _table(("function", "instead"), ((f"`{n}`", i) for n, i in sorted(REFUSED_FUNCTIONS.items()))),
    ]
    plugins = [(f"`{name}`", "here", "") for name in sorted(PLUGINS)]
    plugins += [(f"`{name}`", "refused", instead) for name, instead in sorted(REFUSED_PLUGINS.items())]
    out += ["## Plugins of evaluate", _table(("plugin", "state", "instead"), plugins)]
    charts = [(f"`{name}`", "drawn") for name in KINDS] + [(f"`{name}`", "refused") for name in REFUSED_CHARTS]
    out += ["## Charts of render", _table(("chart", "state"), charts)]
    return {"kql.md": "\n\n".join(out) + "\n"}


def _takes(params: Sequence[registry.Param]) -> str:
    marks = {(1, 1): "", (0, 1): " (optional)", (0, MANY): " ...", (1, MANY): " ..."}
    return ", ".join(param.sort + marks[param.few, param.many] for param in params)


def _aggregates() -> Iterable[tuple[str, ...]]:
    for name, found in sorted(AGGREGATES.items()):
        yield f"`{name}`", _takes(found.params), found.gives
    for name in (
        "arg_max",
        "arg_min",
        "take_any",
        "any",
        "percentile",
        "percentiles",
        "percentilesw",
        "percentiles_array",
    ):
        yield f"`{name}`", "expressions", "columns"


def _scalar(fn: Scalar) -> tuple[str, ...]:
    return f"`{fn.name}`", _takes(fn.params), fn.gives, "both" if fn.name in EXACT else "here"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(cell.replace('|', '&#124;') for cell in row)} |" for row in rows]
    return "\n".join([f"| {' | '.join(head)} |", "|" + " --- |" * len(head), *lines])

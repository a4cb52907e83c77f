"""What may stand next in a query that is being typed. Pure: text in, words out.

Must not know: terminals.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from fairlead.logs.kql import registry
from fairlead.logs.kql.binding import WINDOWS
from fairlead.logs.kql.charts import KINDS
from fairlead.logs.kql.kinds import Column
from fairlead.logs.kql.operators import OPERATORS
from fairlead.logs.kql.registry import AGGREGATES, SCALARS
from fairlead.logs.kql.steps.combine import JOINS
from fairlead.logs.kql.steps.plugins import PLUGINS

_WORD = re.compile(r"[A-Za-z_$][\w-]*$")
_STARTS = ("datatable", "let", "print", "range", "search", "union")
_AFTER = {"render": KINDS, "evaluate": tuple(PLUGINS), "kind=": JOINS}


def word_at(text: str) -> str:
    """The part of a word before the cursor."""
    found = _WORD.search(text)
    return found[0] if found else ""


def candidates(text: str, tables: Iterable[str] = (), columns: Sequence[Column] = ()) -> list[str]:
    """Words that fit behind a text, which ends at the cursor; best first by kind, then by name."""
    registry.load()
    word = word_at(text)
    before = text[: len(text) - len(word)].rstrip()
    said = next((words for end, words in _AFTER.items() if before.endswith(end)), None)
    if said is None:
        if before.endswith("|"):
            said = tuple(sorted(OPERATORS))
        elif not before or (before.endswith((";", "(")) and not columns):
            said = (*sorted(tables), *_STARTS, *_functions())
        else:
            said = (*sorted(column.name for column in columns), *_functions())
    return [name for name in said if name.startswith(word) and name != word]


def _functions() -> list[str]:
    plain = [name for name, fn in SCALARS.items() if fn.family not in {"operators", "inner"}]
    return sorted({*plain, *AGGREGATES, *WINDOWS})

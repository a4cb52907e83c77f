"""`fairlead explain CODE` and `fairlead schema NAME`: what fairlead's own words and documents mean."""

from __future__ import annotations

import textwrap

from fairlead.base.suggest import did_you_mean
from fairlead.base.table import table
from fairlead.cli.common import Common
from fairlead.cli.output import Answer
from fairlead.cli.schemas import schema_of, schemas
from fairlead.errors import UsageError
from fairlead.records.codes import Explanation, Listed, explanations, listed, peers


def explain(code: str | None = None, *, common: Common | None = None) -> Answer:
    """What a code means: cause, evidence, remedy.

    Parameters
    ----------
    code
        A code such as `ib/port-rate`, as findings and errors print it, or an id of the check list such as `A3`. Without
        one, all codes are listed.
    """
    known = explanations()
    if code is None:
        rows = [(e.code, e.id, e.title) for e in known.values()]
        return Answer(
            schema="fairlead.codes/1",
            text=lambda: table(["CODE", "ID", "TITLE"], rows),
            body={"codes": list(known.values())},
        )
    entry = listed().get(code.upper())
    if entry is not None:
        codes = [known[c] for c in entry.codes]
        return Answer(
            schema="fairlead.listed/1",
            text=_listed_page(entry, codes),
            body={"listed": entry, "explanations": codes},
        )
    if code not in known:
        raise UsageError(
            "explain/unknown-code", f"no code `{code}`; {did_you_mean(code, known)}", hint="fairlead explain"
        )
    return Answer(schema="fairlead.explain/1", text=_page(known[code]), body={"explanation": known[code]})


def schema(name: str | None = None, *, common: Common | None = None) -> Answer:
    """Print the JSON Schema of a document fairlead writes or reads.

    Parameters
    ----------
    name
        For example `cluster` or `finding`. Without one, the names are listed.
    """
    known = schemas()
    if name is None:
        rows = [(name_, each.what) for name_, each in known.items()]
        return Answer(
            schema="fairlead.schemas/1", text=lambda: table(["NAME", "WHAT"], rows), body={"names": list(known)}
        )
    if name not in known:
        raise UsageError(
            "schema/unknown-name", f"no schema `{name}`; {did_you_mean(name, known)}", hint="fairlead schema"
        )
    found = schema_of(name)
    from fairlead.records.codec import to_json

    return Answer(schema="fairlead.schema/1", text=lambda: to_json(found), body={"name": name, "json_schema": found})


def _listed_page(entry: Listed, codes: list[Explanation]) -> str:
    """An id of the check list: what it asks for, which codes tell it, which tools have it."""
    tools = peers()
    lines = [f"{entry.id}  {entry.what}", f"  passes: {entry.good}", ""]
    lines.append(table(["CODE", "TITLE"], [(c.code, c.title) for c in codes]) if codes else f"no code yet: {entry.gap}")
    lines += ["", "peers: " + (", ".join(tools[name] for name in entry.peers) or "none that was found")]
    return "\n".join([*lines, *(f"\n{_page(c)}" for c in codes[:1])])


def _page(entry: Explanation) -> str:
    head = f"{entry.code}" + (f"  ({entry.id})" if entry.id else "")
    parts = [head, _filled(entry.title)]
    for label, text in (("cause", entry.cause), ("evidence", entry.evidence), ("remedy", entry.remedy)):
        parts.append(f"\n{label}\n" + _filled(text))
    return "\n".join(parts)


def _filled(text: str) -> str:
    """In lines of a page; words with hyphens, which may be typed, stay whole."""
    return textwrap.fill(text, 96, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)

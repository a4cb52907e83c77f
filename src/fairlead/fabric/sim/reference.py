"""The reference page of scenario files, as Markdown made from the model and the rules.

`make docs` writes what `pages` returns into docs/reference; a test holds it fresh.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct, inspect

from fairlead.fabric.sim import rules
from fairlead.fabric.sim.model import Scenario
from fairlead.fabric.sim.nicset import NicSet
from fairlead.spec.decode import type_of
from fairlead.spec.docs import sentences

_MADE = "<!-- made by `make docs`; do not edit -->"

_ABOUT = """\
A TOML file for `fairlead fabric sim`; [how to write one](../howto/fabric-sim.md). Unknown keys are refused, and keys
that the chosen kind does not take; every problem is told at once with its line. Numbers of planes, switches and NICs
count from 0. A set is written `"0-63,128"` or `"0-254/2"`."""

_TAKEN: Mapping[str, Mapping[str, Sequence[str]]] = {
    "topology": rules.TOPOLOGY_KEYS,
    "transport": rules.TRANSPORT_KEYS,
    "traffic": rules.TRAFFIC_KEYS,
    "fault": rules.FAULT_KEYS,
}


def pages() -> dict[str, str]:
    """File name -> Markdown."""
    return {"fabric-scenario.md": scenario()}


def scenario() -> str:
    """Every table and key of a scenario."""
    kind = type_of(Scenario)
    assert isinstance(kind, inspect.StructType)
    out = [_MADE, "# Scenarios of the fabric simulator", _ABOUT]
    for field in kind.fields:
        inner = field.type.item_type if isinstance(field.type, inspect.VarTupleType) else field.type
        if not isinstance(inner, inspect.StructType):
            continue
        is_list = isinstance(field.type, inspect.VarTupleType)
        said, name = sentences(inner.cls), field.encode_name
        out += [f"## `[[{name}]]`" if is_list else f"## `[{name}]`", said.whole]
        rows = _rows(inner.cls, inner.fields, said.fields, _TAKEN.get(name, {}))
        out.append("\n".join(["| key | type | default | meaning |", "| --- | --- | --- | --- |", *rows]))
    return "\n\n".join(out) + "\n"


def _rows(
    cls: type[Struct], fields: Sequence[inspect.Field], said: Mapping[str, str], taken: Mapping[str, Sequence[str]]
) -> Iterator[str]:
    for field in fields:
        name = field.encode_name
        takers = [kind for kind, keys in taken.items() if name in keys]
        others = [kind for kind in taken if kind not in takers]
        only = ""
        if takers and others:
            shorter = f"Not for {', '.join(others)}" if len(others) < len(takers) else f"For {', '.join(takers)}"
            only = f" {shorter}."
        default = "" if field.default is None else f"`{_written(field.default)}`" if not field.required else "required"
        yield f"| `{name}` | {_type(field.type)} | {default} | {said[field.name]}{only} |"


def _written(value: object) -> str:
    if isinstance(value, NicSet | str):
        return f'"{value.text if isinstance(value, NicSet) else value}"'
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def _type(kind: inspect.Type) -> str:
    """A type in words, with its bounds."""
    if isinstance(kind, inspect.Metadata):
        return _type(kind.type)
    if isinstance(kind, inspect.UnionType):
        return _type(kind.types[0])
    if isinstance(kind, inspect.LiteralType):
        return " or ".join(f'"{v}"' for v in kind.values)
    if isinstance(kind, inspect.IntType | inspect.FloatType):
        word = "whole number" if isinstance(kind, inspect.IntType) else "number"
        low = f"from {kind.ge:,}" if kind.ge is not None else f"above {kind.gt:,}" if kind.gt is not None else ""
        high = f"to {kind.le:,.0f}" if kind.le is not None else ""
        return " ".join(filter(None, [word, low, high]))
    names: dict[type, str] = {inspect.StrType: "text", inspect.BoolType: "true or false", inspect.CustomType: "set"}
    return names[type(kind)]

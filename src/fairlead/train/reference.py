"""The reference page of training configurations, as Markdown made from the model.

`make docs` writes what `pages` returns into docs/reference; a test holds it fresh.
"""

from __future__ import annotations

from typing import Any

from msgspec import NODEFAULT, inspect

from fairlead.spec.decode import type_of
from fairlead.spec.docs import sentences
from fairlead.train.config import Config

_ABOUT = """\
A TOML file for `fairlead train`; [how to train](../howto/train.md). Paths are seen from the file's folder. Unknown keys
are refused, and every problem is told at once with its line."""


def pages() -> dict[str, str]:
    """File name -> Markdown."""
    kind = type_of(Config)
    assert isinstance(kind, inspect.StructType)
    out = ["<!-- made by `make docs`; do not edit -->", "# Training configurations", _ABOUT]
    for table in kind.fields:
        assert isinstance(table.type, inspect.StructType)
        said = sentences(table.type.cls)
        cells = [
            (f"`{field.encode_name}`", _kind(field.type), _default(field.default), said.fields.get(field.name, ""))
            for field in table.type.fields
        ]
        rows = [f"| {' | '.join(row)} |" for row in cells]
        out += [f"## `[{table.encode_name}]`", said.whole]
        out.append("\n".join(["| key | type | default | meaning |", "| --- | --- | --- | --- |", *rows]))
    return {"train-config.md": "\n\n".join(out) + "\n"}


def _kind(kind: inspect.Type) -> str:
    if isinstance(kind, inspect.LiteralType):
        return ", ".join(f"`{value}`" for value in kind.values)
    if isinstance(kind, inspect.VarTupleType):
        return "list of texts"
    names = {
        inspect.StrType: "text",
        inspect.IntType: "whole number",
        inspect.FloatType: "number",
        inspect.BoolType: "true, false",
    }
    name = names[type(kind)]
    bounds = ((">=", "ge"), (">", "gt"), ("<=", "le"), ("<", "lt"))
    said = [f"{sign} {getattr(kind, key):g}" for sign, key in bounds if getattr(kind, key, None) is not None]
    return " ".join([name, *said])


def _default(value: Any) -> str:
    if value is NODEFAULT or value == "":
        return ""
    if isinstance(value, tuple):
        return f"`[{', '.join(repr(item) for item in value)}]`".replace("'", '"')
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"

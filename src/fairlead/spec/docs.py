"""The sentences of the model, where they are needed: comments of a new file, JSON Schema, reference pages.

They stand below the fields in the source and are read from it with `ast`, only when one of these is written.
"""

from __future__ import annotations

import ast
import functools
import inspect as python_inspect
import textwrap
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import inspect

from fairlead.spec.decode import type_of


class Sentences(msgspec.Struct, frozen=True):
    """What a Struct's source says about it."""

    whole: str
    fields: Mapping[str, str]


def sentences(kind: type) -> Sentences:
    """The docstrings of a Struct and of its fields, its bases included."""
    fields: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if base is not msgspec.Struct and issubclass(base, msgspec.Struct):
            fields |= _of_module(base.__module__).get(base.__name__, {})
    return Sentences(_one_line(kind.__doc__ or ""), fields)


def json_schema(kind: type | None = None) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of the cluster file, or of another tree of Structs, with its sentences."""
    if kind is None:
        from fairlead.spec.tables import spec_type

        kind = spec_type()
    schema = msgspec.json.schema(kind)
    for struct in structs(kind):
        said, definition = sentences(struct), schema["$defs"][struct.__name__]
        definition["description"] = said.whole
        names = {f.name: f.encode_name for f in msgspec.structs.fields(struct)}
        for name, sentence in said.fields.items():
            definition["properties"][names[name]]["description"] = sentence
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def structs(kind: Any) -> list[type]:
    """A Struct and every Struct inside it, in the order of the fields."""
    found: list[type] = []

    def walk(node: inspect.Type) -> None:
        for attribute in ("type", "item_type", "value_type"):
            if inner := getattr(node, attribute, None):
                walk(inner)
        for inner in getattr(node, "types", ()):
            walk(inner)
        if isinstance(node, inspect.StructType) and node.cls not in found:
            found.append(node.cls)
            for field in node.fields:
                walk(field.type)

    walk(type_of(kind))
    return found


@functools.cache
def _of_module(name: str) -> dict[str, dict[str, str]]:
    """Class -> field -> the string below the field."""
    import importlib

    tree = ast.parse(python_inspect.getsource(importlib.import_module(name)))
    found: dict[str, dict[str, str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            pairs = zip(node.body, node.body[1:], strict=False)
            found[node.name] = {
                field.target.id: _one_line(below.value.value)
                for field, below in pairs
                if isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(below, ast.Expr)
                and isinstance(below.value, ast.Constant)
                and isinstance(below.value.value, str)
            }
    return found


def _one_line(text: str) -> str:
    return " ".join(textwrap.dedent(text).split())

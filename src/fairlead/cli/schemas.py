"""The documents whose JSON Schema `fairlead schema` prints, as the rooms bring them."""

from __future__ import annotations

from typing import Any

from fairlead.base.rooms import Schema, brought, load


def schemas() -> dict[str, Schema]:
    """Every document, by name."""
    found: tuple[Schema, ...] = brought("schemas")
    return {each.name: each for each in sorted(found)}


def schema_of(name: str) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of one document; what stands below a field in its source describes it."""
    from fairlead.spec import json_schema

    kind = load(schemas()[name].target)
    return json_schema(kind if isinstance(kind, type) else kind())

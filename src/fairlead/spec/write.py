"""A new cluster file: the values given, every other setting as a comment with its default, each with its sentence.

Doc comments begin with `# `, settings that are not set with `#`: remove that sign to set one.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import inspect

from fairlead.base.nodeset import NodeSet
from fairlead.spec.decode import type_of
from fairlead.spec.docs import sentences
from fairlead.spec.tables import spec_type, table

_WIDTH = 100

_HEAD = """\
{title}

fairlead check            validates this file, every problem at once
fairlead check --origin   says where each value comes from
Lines that begin with # and a blank explain; other # lines are settings at their default: remove the # to set one."""


def write(tree: Mapping[str, Any], *, title: str) -> str:
    """A commented cluster file that holds `tree` (plain values, TOML names)."""
    kind = type_of(spec_type())
    assert isinstance(kind, inspect.StructType)
    via = tree.get("access", {}).get("via", "")
    blocks = ["\n".join(_comment(_HEAD.format(title=title)))]
    for field in kind.fields:
        name = field.encode_name
        if not is_read(name, via):
            continue
        inner = field.type.item_type if isinstance(field.type, inspect.VarTupleType) else field.type
        if not isinstance(inner, inspect.StructType):
            blocks.append("\n".join(_setting(field, tree, sentences(spec_type()).fields)))
        elif isinstance(field.type, inspect.VarTupleType):
            rows = tree.get(name, [])
            blocks += ["\n".join(_table(f"[[{name}]]", inner, row, explain=i == 0)) for i, row in enumerate(rows)]
            if not rows:
                blocks.append("\n".join(_table(f"[[{name}]]", inner, None, explain=True)))
        else:
            blocks.append("\n".join(_table(f"[{name}]", inner, tree.get(name), explain=True)))
    return "\n\n".join(blocks) + "\n"


def is_read(name: str, via: str) -> bool:
    """Whether a table is read at all with this way of access."""
    found = table(name)
    return found is None or not found.via or via in found.via


def toml_value(value: Any) -> str:
    """A plain value as TOML writes it, on one line.

    >>> toml_value(["a", 1, True])
    '["a", 1, true]'
    >>> toml_value({"loss": 0.01, "of a rail": {}})
    '{loss = 0.01, "of a rail" = {}}'
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, NodeSet | str):
        return json.dumps(str(value), ensure_ascii=False)
    if isinstance(value, tuple | list):
        return "[" + ", ".join(toml_value(v) for v in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(key)} = {toml_value(v)}" for key, v in value.items()) + "}"
    if isinstance(value, dt.date):
        return value.isoformat()
    return repr(value)


def _key(name: str) -> str:
    """A key, quoted where TOML wants it."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name, ensure_ascii=False)


def _table(header: str, kind: inspect.StructType, row: Mapping[str, Any] | None, *, explain: bool) -> Iterator[str]:
    said = sentences(kind.cls)
    if explain:
        yield from _comment(said.whole)
    needed = any(f.required for f in kind.fields)
    yield header if row is not None or not needed else f"#{header}"
    for field in kind.fields:
        yield from _setting(field, row or {}, said.fields if explain else {})


def _setting(field: inspect.Field, row: Mapping[str, Any], said: Mapping[str, str]) -> Iterator[str]:
    name = field.encode_name
    if name not in row and not said:
        return
    yield from _comment(said.get(field.name, ""))
    if name in row:
        yield f"{name} = {toml_value(row[name])}"
    else:
        yield f"#{name} = {_default(field)}"


def _default(field: inspect.Field) -> str:
    """A setting's default as TOML, or an example where it has none."""
    if field.default not in (None, msgspec.NODEFAULT):
        return toml_value(field.default)
    if field.default_factory is not msgspec.NODEFAULT:
        return toml_value(field.default_factory())
    example = _example(field.type)
    return str(example) if field.name == "expires" else toml_value(example)


def _example(kind: inspect.Type) -> Any:
    if isinstance(kind, inspect.Metadata):
        return next(iter((kind.extra_json_schema or {}).get("examples", [])), _example(kind.type))
    if isinstance(kind, inspect.UnionType):
        return _example(kind.types[0])
    return ""


def _comment(text: str) -> Iterator[str]:
    for paragraph in text.splitlines():
        lines = textwrap.wrap(paragraph, _WIDTH - 2, replace_whitespace=False) or [""]
        yield from (f"# {line}".rstrip() for line in lines)

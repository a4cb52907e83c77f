"""Records to JSON and back: the one place that knows how.

Adding a field to a record is compatible; renaming one raises the number in its schema name.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


def to_json(value: Any, *, indent: int = 2) -> str:
    """JSON text with a stable key order as declared; `indent=0` gives one line."""
    raw = msgspec.json.encode(value)
    return (msgspec.json.format(raw, indent=indent) if indent else raw).decode()


def from_json(text: str | bytes, kind: type[T]) -> T:
    """Decode strictly. Raises msgspec.ValidationError (a ValueError) where the text is not such a record."""
    return msgspec.json.decode(text, type=kind)


def builtins(value: Any) -> Any:
    """A record as plain dicts, lists, strings and numbers."""
    return msgspec.to_builtins(value)

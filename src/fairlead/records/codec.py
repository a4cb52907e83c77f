"""Records to JSON and back: the one place that knows how.

Adding a field to a record is compatible; renaming one raises the number in its schema name.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


def to_json(value: Any, *, indent: int = 2) -> str:
    """JSON text with a stable key order as declared; `indent=0` gives one line."""
    try:
        raw = msgspec.json.encode(value)
    except UnicodeEncodeError:
        # a name that is not UTF-8 comes from the system as half surrogate pairs, which JSON cannot hold
        raw = msgspec.json.encode(_without_surrogates(msgspec.to_builtins(value)))
    return (msgspec.json.format(raw, indent=indent) if indent else raw).decode()


def from_json(text: str | bytes, kind: type[T]) -> T:
    """Decode strictly. Raises msgspec.ValidationError (a ValueError) where the text is not such a record."""
    try:
        return msgspec.json.decode(text, type=kind)
    except RecursionError:
        raise msgspec.ValidationError("too deep") from None


def builtins(value: Any) -> Any:
    """A record as plain dicts, lists, strings and numbers."""
    return msgspec.to_builtins(value)


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_without_surrogates(k): _without_surrogates(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_without_surrogates(v) for v in value]
    return value

"""YAML of others: plain values that know file, line and column. Nothing is made but text, numbers, lists and maps.

PyYAML reads YAML 1.1, as Kubernetes does. A file has limits in bytes, values and depth, aliases counted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import yaml
from msgspec import Struct

MAX_BYTES = 8 << 20
MAX_DUMP_BYTES = 64 << 20
"""Of JSON, which a program wrote: what a cluster of 500 nodes says of itself."""
DUMP_BYTES = 128 << 10
"""JSON from here on is read as JSON, in a tenth of the time; what stands in it has no line then, only a name."""
MAX_VALUES = 200_000
MAX_DEPTH = 100
MAX_NUMBER = 100
"""Characters of a number; 1:1:1... in base sixty would cost the square of its length."""
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_PLAIN = {f"tag:yaml.org,2002:{name}" for name in ("int", "float", "bool", "null")}
_MERGE = "tag:yaml.org,2002:merge"
_TEMPLATE = "It is a Helm template: lint what `helm template` makes of it."

Path = tuple[str | int, ...]


class Place(Struct, frozen=True):
    """Where something stands; lines and columns count from 1."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


class Refused(Exception):
    """A file that is no YAML that can be judged."""

    def __init__(self, place: Place, why: str, *, hint: str = "") -> None:
        super().__init__(why)
        self.place, self.why, self.hint = place, why, hint


class Document(Struct, frozen=True, kw_only=True):
    """One document of a file."""

    file: str
    value: Any
    places: Mapping[Path, tuple[int, int]]
    twice: tuple[tuple[str, Place], ...] = ()
    """Keys that stand twice in one map: the last counts for most readers, and a strict one refuses the file."""

    def at(self, path: Path) -> Place:
        """The place of a path, or of the nearest thing around it."""
        for end in range(len(path), -1, -1):
            if path[:end] in self.places:
                return Place(self.file, *self.places[path[:end]])
        return Place(self.file)


def documents(text: str, *, file: str) -> Iterator[Document]:
    """Every document with a value. Raises Refused at the first thing that is no YAML."""
    if file.endswith(".json") and len(text) > DUMP_BYTES:
        yield Document(file=file, value=_dump(text, file), places={})
        return
    try:
        _bounded(text, file)
        loader = _Loader(text)
    except yaml.YAMLError as error:
        raise _refused(error, file, text) from None
    try:
        while loader.check_node():
            node = loader.get_node()
            walk = _Walk(loader, file)
            value = walk.value(node, (), ())
            if value is not None:
                yield Document(file=file, value=value, places=walk.places, twice=tuple(walk.twice))
    except yaml.YAMLError as error:
        raise _refused(error, file, text) from None
    except RecursionError:
        raise Refused(Place(file), "it is nested too deeply") from None
    finally:
        loader.dispose()


def _dump(text: str, file: str) -> Any:
    """The value of a large JSON text."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise Refused(Place(file, error.lineno, error.colno), f"no JSON: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise Refused(Place(file), f"no JSON that can be read: {error}") from None
    inner = [value]
    for _ in range(MAX_DEPTH):
        inner = [v for x in inner for v in (x.values() if isinstance(x, dict) else x if isinstance(x, list) else ())]
        if not inner:
            return value
    raise Refused(Place(file), "it is nested too deeply")


def _bounded(text: str, file: str) -> None:
    """Refuse what is too deep before nodes are made of it: libyaml's composer recurses until the stack ends."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH + 1:
            mark = event.start_mark
            raise Refused(Place(file, mark.line + 1, mark.column + 1), "it is nested too deeply, or in itself")


class _Walk:
    """From composed nodes to values, with the place of each."""

    def __init__(self, loader: Any, file: str) -> None:
        self.loader, self.file, self.num = loader, file, 0
        self.places: dict[Path, tuple[int, int]] = {}
        self.twice: list[tuple[str, Place]] = []

    def value(self, node: yaml.Node, path: Path, above: tuple[int, ...]) -> Any:
        """The value of a node; `above` are the nodes around it, by which one in itself is found."""
        self.num += 1
        if self.num > MAX_VALUES:
            raise Refused(self._place(node), f"it has more than {MAX_VALUES} values, aliases counted")
        if len(path) > MAX_DEPTH or id(node) in above:
            raise Refused(self._place(node), "it is nested too deeply, or in itself")
        self.places.setdefault(path, (node.start_mark.line + 1, node.start_mark.column + 1))
        above = (*above, id(node))
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*path, i), above) for i, item in enumerate(node.value)]
        made: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for key, item in node.value:
            if key.tag == _MERGE:
                parts = item.value if isinstance(item, yaml.SequenceNode) else [item]
                for part in parts:
                    found = self.value(part, path, above)
                    merged = {**(found if isinstance(found, dict) else {}), **merged}
                continue
            if not isinstance(key, yaml.ScalarNode):
                hint = _TEMPLATE if isinstance(key, yaml.MappingNode) and key.flow_style else ""
                raise Refused(self._place(key), "a key is a list or a map", hint=hint)
            name = key.value
            if name in made:
                self.twice.append((name, self._place(key)))
            self.places[*path, name] = (key.start_mark.line + 1, key.start_mark.column + 1)
            made[name] = self.value(item, (*path, name), above)
        return {**merged, **made}

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        if node.tag not in _PLAIN or len(node.value) > MAX_NUMBER:
            return str(node.value)
        try:
            return self.loader.construct_object(node)
        except (ValueError, OverflowError):
            return str(node.value)

    def _place(self, node: yaml.Node) -> Place:
        return Place(self.file, node.start_mark.line + 1, node.start_mark.column + 1)


def _refused(error: yaml.YAMLError, file: str, text: str) -> Refused:
    mark = getattr(error, "problem_mark", None)
    place = Place(file, mark.line + 1, mark.column + 1) if mark else Place(file)
    what = getattr(error, "problem", None) or str(error).splitlines()[0]
    if "nesting depth" in str(what):  # a newer libyaml has a limit of its own
        return Refused(place, "it is nested too deeply")
    context = getattr(error, "context", None)
    why = f"{what} ({context})" if context else str(what)
    return Refused(place, f"no YAML: {why}", hint=_TEMPLATE if "{{" in text else "")

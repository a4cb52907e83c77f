"""What a probe read on one node: a tree of plain values in which every hole is marked and says why.

A leaf that could not be read is the object `{"unread": "why", "source": "/sys/..."}`, with `needs` where a right is
missing: a fact in its own right. Rules
reach values through `Facts.get`, which raises Unread on a hole, so that a rule cannot mistake "could not read" for a
value.

A path is written `ib.devices.mlx5_ib0.ports.1.rate`; a key that itself holds a dot stands in brackets:
`pci.devices[0101:00:00.0].numa_node`. Code passes such keys as further arguments:
`get("pci.devices", bdf, "numa_node")`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from fairlead.records.border import MAX_BYTES, Border

SCHEMA = "fairlead.facts/1"
MAX_DEPTH = 24
"""Of the tree; a node with eight GPUs fills ten."""
FACTS_BYTES = 8 * MAX_BYTES
"""Of a document without a captured tree; a node with eight GPUs fills a twentieth of one."""


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One node's document, as the probe prints it."""

    schema: str = SCHEMA
    node: str = ""
    """The name the cluster file uses for the node; set by the side that asked."""
    taken_at_ns: int = 0
    """UTC, by the node's own clock."""
    probe: str = ""
    """Digest of the probe program that read it."""
    facts: dict[str, Any] = {}
    """Reader name -> tree of values."""
    sources: dict[str, str] = {}
    """Fact path -> the file or command it was read from. A directory ends in `/`: the names below are files in it."""
    took_ms: dict[str, float] = {}
    """Reader name -> time it took."""

    def __post_init__(self) -> None:
        """Whoever walks the tree shall not run out of stack. Raises ValueError."""
        level: list[Any] = [self.facts]
        for _ in range(MAX_DEPTH):
            level = [
                v for own in level for v in (own.values() if type(own) is dict else own) if type(v) in (dict, list)
            ]
            if not level:
                return
        raise ValueError(f"facts more than {MAX_DEPTH} levels deep")


DOCUMENT = Border(NodeFacts, "a document of facts", max_bytes=FACTS_BYTES)


class Unread(Exception):
    """A rule asked for a value that nobody could read."""

    def __init__(self, path: str, why: str, source: str = "", needs: str = "") -> None:
        super().__init__(f"{path}: {why}")
        self.path, self.why, self.source = path, why, source
        self.needs = needs
        """The right it takes, where a missing right was the reason."""


def is_unread(value: Any) -> bool:
    """Whether a value is a marked hole."""
    return isinstance(value, dict) and "unread" in value


def fact_path(keys: Iterable[str]) -> str:
    """Keys as one path.

    >>> fact_path(["pci", "devices", "0101:00:00.0", "numa_node"])
    'pci.devices[0101:00:00.0].numa_node'
    """
    text = ""
    for key in keys:
        text += f"[{key}]" if "." in key or not key else f".{key}" if text else key
    return text


@functools.cache
def _split(path: str) -> tuple[str, ...]:
    return tuple(path.split("."))


class Facts:
    """A read-only view of one node's facts; remembers what was read through it, as evidence."""

    def __init__(self, record: NodeFacts) -> None:
        self.record = record
        self.read: dict[tuple[str, ...], Any] = {}

    @property
    def node(self) -> str:
        """The node's name in the cluster file."""
        return self.record.node

    def get(self, path: str, *keys: str) -> Any:
        """The value at a dotted path, and at the keys below it; Unread if it is a hole or absent."""
        full = _split(path) + keys
        value: Any = self.record.facts
        try:
            for key in full:
                value = value[key]
        except (KeyError, TypeError):
            raise self._unread(full) from None
        if isinstance(value, dict) and "unread" in value:
            raise self._unread(full)
        self.read[full] = value
        return value

    def _unread(self, full: tuple[str, ...]) -> Unread:
        """Why there is no value at a path: the hole on the way to it, or that nobody reported it."""
        value: Any = self.record.facts
        for depth, key in enumerate(full, 1):
            value = value.get(key) if isinstance(value, dict) else None
            if is_unread(value):
                why, source = str(value["unread"]), str(value.get("source", ""))
                return Unread(fact_path(full), why, source or self.source(full[:depth]), str(value.get("needs", "")))
        return Unread(fact_path(full), "the probe did not report it", self.source(full))

    def begin(self) -> None:
        """Forget what was read so far: what comes next is the evidence of something else."""
        self.read = {}

    def keys(self, path: str, *keys: str) -> list[str]:
        """The names below a path, in the order reported."""
        value = self.get(path, *keys)
        return list(value) if isinstance(value, dict) else []

    def source(self, keys: tuple[str, ...]) -> str:
        """The file or command a fact came from; the fact path itself where the probe named none."""
        for end in range(len(keys), 0, -1):
            found = self.record.sources.get(fact_path(keys[:end]))
            if found is not None:
                return found + "/".join(keys[end:]) if found.endswith("/") else found
        return fact_path(keys)

    def holes(self) -> Iterator[tuple[str, str]]:
        """Every marked hole: (path, why)."""

        def walk(keys: tuple[str, ...], value: Any) -> Iterator[tuple[str, str]]:
            if is_unread(value):
                yield fact_path(keys), str(value["unread"])
            elif isinstance(value, dict):
                for key, child in value.items():
                    yield from walk((*keys, str(key)), child)

        yield from walk((), self.record.facts)

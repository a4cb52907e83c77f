"""What a probe read on one node: a tree of plain values in which every hole is marked and says why.

A leaf that could not be read is the object `{"unread": "why", "source": "/sys/..."}`: a fact in its own right. Rules reach
values through `Facts.get`, which raises Unread on a hole, so that a rule cannot mistake "could not read" for a value.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

SCHEMA = "fairlead.facts/1"


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
    """Fact path (dotted) -> the file or command it was read from."""
    took_ms: dict[str, float] = {}
    """Reader name -> time it took."""


class Unread(Exception):  # noqa: N818
    """A rule asked for a value that nobody could read."""

    def __init__(self, path: str, why: str, source: str = "") -> None:
        super().__init__(f"{path}: {why}")
        self.path, self.why, self.source = path, why, source


def is_unread(value: Any) -> bool:
    """Whether a value is a marked hole."""
    return isinstance(value, dict) and "unread" in value


class Facts:
    """A read-only view of one node's facts; remembers what was read through it, as evidence."""

    def __init__(self, record: NodeFacts) -> None:
        self.record = record
        self.read: dict[str, Any] = {}

    @property
    def node(self) -> str:
        return self.record.node

    def get(self, path: str) -> Any:
        """The value at a dotted path such as `ib.devices.mlx5_ib0.ports.1.rate`; Unread if it is a hole or absent."""
        value: Any = self.record.facts
        walked: list[str] = []
        for key in path.split("."):
            walked.append(key)
            if is_unread(value):
                break
            if not isinstance(value, dict) or key not in value:
                raise Unread(path, "the probe did not report it", "")
            value = value[key]
        if is_unread(value):
            raise Unread(path, str(value["unread"]), str(value.get("source", "")))
        self.read[path] = value
        return value

    def keys(self, path: str) -> list[str]:
        """The names below a path, in natural reading order."""
        value = self.get(path)
        return list(value) if isinstance(value, dict) else []

    def source(self, path: str) -> str:
        """The file or command a fact came from; the fact path itself where the probe named none."""
        parts = path.split(".")
        for end in range(len(parts), 0, -1):
            found = self.record.sources.get(".".join(parts[:end]))
            if found:
                return found
        return path

    def holes(self) -> Iterator[tuple[str, str]]:
        """Every marked hole: (path, why)."""

        def walk(prefix: str, value: Any) -> Iterator[tuple[str, str]]:
            if is_unread(value):
                yield prefix, str(value["unread"])
            elif isinstance(value, dict):
                for key, child in value.items():
                    yield from walk(f"{prefix}.{key}" if prefix else str(key), child)

        yield from walk("", self.record.facts)

"""From what a file says to what holds: flags and variables over the file, the lab's preset and the VM sizes under it.

Every value keeps its origin. Must not know: whether the values fit together (rules.py), or any machine.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import Struct, inspect

from fairlead.base.rooms import load
from fairlead.errors import UsageError
from fairlead.spec.decode import Decoded, Reading, decode_value, type_of
from fairlead.spec.locate import KeyPath, dotted
from fairlead.spec.model import Pool, Spec
from fairlead.spec.tables import tables
from fairlead.spec.vmsize import size

OriginKind = Literal["flag", "environment", "file", "preset", "size", "derived", "default"]


class Origin(NamedTuple):
    """Where a final value came from."""

    kind: OriginKind
    detail: str = ""
    line: int = 0

    def __str__(self) -> str:
        where = f"{self.detail}:{self.line}" if self.line else self.detail
        return f"{self.kind} {where}" if where and self.kind != "file" else where or self.kind


class Override(NamedTuple):
    """A value that a flag or a variable may set for one run."""

    path: tuple[str, str]
    flag: str
    variable: str


OVERRIDES = (
    Override(("access", "via"), "--via", "FAIRLEAD_VIA"),
    Override(("access", "user"), "--user", "FAIRLEAD_USER"),
    Override(("access", "fanout"), "--fanout", "FAIRLEAD_FANOUT"),
    Override(("access", "timeout_s"), "--timeout", "FAIRLEAD_TIMEOUT"),
    Override(("runs", "dir"), "--runs", "FAIRLEAD_RUNS"),
)

Fill = tuple[KeyPath, Any, Origin | None]
"""A value to put in, and its origin; None: each part of it brings its own."""


def resolve(
    reading: Reading[Spec], lab: Decoded[Spec], *, flags: Mapping[str, Any], environ: Mapping[str, str]
) -> tuple[Spec, dict[KeyPath, Origin]]:
    """The spec with everything filled in, and where each value came from. `lab` is the lab's preset."""
    spec, origins = _overridden(reading, flags, environ)
    said = set(reading.places) | set(origins)
    if spec.is_lab:
        spec = _fill(spec, _from_lab(spec, lab, said), origins)
    spec = _fill(spec, _from_sizes(spec, said | set(origins)), origins)
    spec = _fill(spec, _derived(spec, said | set(origins)), origins)
    return spec, {path: origins.get(path) or _written(reading, path) for path, _ in leaves(spec)}


def _written(reading: Reading[Spec], path: KeyPath) -> Origin:
    """Where the file says it, if it does."""
    place = reading.places.get(path)
    if place is None:
        return Origin("default")
    if reading.file.startswith("preset:"):
        return Origin("preset", reading.file.removeprefix("preset:"))
    return Origin("file", reading.file, place.value.line)


def leaves(value: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Every plain value of a tree of Structs with its key path, in the order of the types."""
    if isinstance(value, Struct):
        for field in msgspec.structs.fields(value):
            yield from leaves(getattr(value, field.name), (*path, field.encode_name))
    elif isinstance(value, tuple) and (not value or isinstance(value[0], Struct)):
        for number, item in enumerate(value):
            yield from leaves(item, (*path, number))
    else:
        yield path, value


def _overridden(
    reading: Reading[Spec], flags: Mapping[str, Any], environ: Mapping[str, str]
) -> tuple[Spec, dict[KeyPath, Origin]]:
    """Flags win over variables, variables over the file."""
    known = {dotted(o.path): o for o in OVERRIDES}
    for name in flags:
        if name not in known:
            raise UsageError("spec/unknown-flag", f"no flag sets `{name}`")
    spec = reading.value
    origins: dict[KeyPath, Origin] = {}
    for name, override in known.items():
        if flags.get(name) is not None:
            raw, origin = flags[name], Origin("flag", override.flag)
        elif environ.get(override.variable):
            raw, origin = environ[override.variable], Origin("environment", override.variable)
        else:
            continue
        reading.report.elsewhere[override.path] = origin.detail
        raw = os.fspath(raw) if isinstance(raw, os.PathLike) else raw
        kind, is_text = _type_at(override.path), origin.kind == "environment"
        value = decode_value(raw, kind, override.path, reading.report, is_text=is_text)
        if not reading.report.is_refused(override.path):
            spec = replace_at(spec, override.path, value)
            origins[override.path] = origin
    return spec, origins


def _from_lab(spec: Spec, lab: Decoded[Spec], said: set[KeyPath]) -> Iterator[Fill]:
    """What the lab's preset says of pools and fabric, where the file is silent."""
    origin = Origin("preset", "lab")
    if not spec.pools:
        yield ("pool",), lab.value.pools, None
    for path, value in leaves(lab.value):
        is_missing = path[0] == "fabric" or (path[0] == "pool" and not spec.pools)
        if is_missing and path in lab.places and path not in said:
            yield path, value, origin


def _from_sizes(spec: Spec, said: set[KeyPath]) -> Iterator[Fill]:
    """What the VM size knows of a pool. The ports of a lab host follow from the planes instead."""
    keys = {"gpus": "gpus"} if spec.is_lab else {"gpus": "gpus", "ports": "hca_ports"}
    for number, pool in enumerate(spec.pools):
        facts = size(pool.size)
        for key, fact in keys.items():
            path = ("pool", number, key)
            value = getattr(facts, fact) if facts else None
            if facts and path not in said and value is not None:
                yield path, value, Origin("size", f"{facts.name}: {facts.source(fact)}")


def _derived(spec: Spec, said: set[KeyPath]) -> Iterator[Fill]:
    """What follows from other values."""
    for number, pool in enumerate(spec.pools):
        if ("pool", number, "count") not in said:
            yield ("pool", number, "count"), len(pool.nodes), Origin("derived", "from `nodes`")
        if spec.is_lab and ("pool", number, "python") not in said:
            yield ("pool", number, "python"), sys.executable, Origin("derived", "the Python that runs fairlead")
        if spec.is_lab and ("pool", number, "ports") not in said:
            yield ("pool", number, "ports"), spec.fabric.planes, Origin("derived", "from `planes`")
    num_t0 = spec.fabric.t0
    nics = sum(num_nics(spec, p) for p in spec.pools)
    if num_t0 and ("fabric", "hosts_per_t0") not in said and nics % num_t0 == 0:
        yield ("fabric", "hosts_per_t0"), nics // num_t0, Origin("derived", "from the nodes and `t0`")
    for table in tables():
        if table.derived:
            yield from load(table.derived)(spec, said)


def num_nics(spec: Spec, pool: Pool) -> int:
    """NICs of a pool's nodes on the fabric: a node has one for each port it has in a plane, and at least one."""
    per_node = 1 if spec.is_lab else max(1, (pool.ports or 0) // spec.fabric.planes)
    return per_node * len(pool.nodes)


def _fill(spec: Spec, fills: Iterator[Fill], origins: dict[KeyPath, Origin]) -> Spec:
    for path, value, origin in list(fills):
        spec = replace_at(spec, path, value)
        if origin:
            origins[path] = origin
    return spec


def replace_at(value: Any, path: KeyPath, new: Any) -> Any:
    """A copy of a tree of Structs with one value changed; the path is in TOML names."""
    if not path:
        return new
    head, rest = path[0], path[1:]
    if isinstance(head, int):
        return (*value[:head], replace_at(value[head], rest, new), *value[head + 1 :])
    name = next(f.name for f in msgspec.structs.fields(value) if f.encode_name == head)
    return msgspec.structs.replace(value, **{name: replace_at(getattr(value, name), rest, new)})


def _type_at(path: tuple[str, ...]) -> inspect.Type:
    kind = type_of(Spec)  # a flag sets no room's table
    for name in path:
        assert isinstance(kind, inspect.StructType)
        kind = next(f.type for f in kind.fields if f.encode_name == name)
    return kind

"""What a spread will do: files in their order, chunks, who has what, and how soon it could end. Pure."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fairlead.errors import FairleadError, UsageError
from fairlead.records.border import shown
from fairlead.weights.manifest import lengths_of
from fairlead.weights.objects import MAX_OBJECTS, Object, bad_names, in_order, without_folders
from fairlead.weights.onnode.layout import MAX_CHUNKS, chunk_bytes_for, cut
from fairlead.weights.shape import hops, width_for

if TYPE_CHECKING:
    from fairlead.weights.manifest import Manifest
    from fairlead.weights.onnode.layout import Pieces


@dataclass(frozen=True)
class Plan:
    """The files of one spread, and how they are cut."""

    objects: tuple[Object, ...]
    """In the order in which they are fetched."""
    early: int
    """How many of the first are published as soon as each is whole."""
    trusted: frozenset[str] = frozenset()
    """Files that count as present where they have the right size."""
    manifest: Manifest | None = None
    """What the publisher says of their bytes."""
    again: bool = False
    """Nothing that was published counts as present."""

    @cached_property
    def total_bytes(self) -> int:
        """Of all files."""
        return sum(o.size for o in self.objects)

    @cached_property
    def chunk_bytes(self) -> int:
        """Of a chunk, at most."""
        return self.manifest.piece_bytes if self.manifest is not None else chunk_bytes_for(self.total_bytes)

    @cached_property
    def chunks(self) -> list[Pieces]:
        """As every node cuts them."""
        return cut([o.size for o in self.objects], self.chunk_bytes, lengths_of(self.manifest, self.objects))

    @cached_property
    def key(self) -> str:
        """What is spread, in 16 digits: other objects, versions or chunks have another."""
        what = [[o.path, o.size, o.tag] for o in self.objects]
        said = [] if self.manifest is None else [self.manifest.key]
        return hashlib.sha256(json.dumps([self.chunk_bytes, what, *said]).encode()).hexdigest()[:16]

    def packed(self, algorithm: str = "") -> bytes:
        """The files as they are sent to nodes, with the manifest's digests where they are of that algorithm."""
        files: list[dict[str, Any]] = []
        for o in self.objects:
            file: dict[str, Any] = {"path": o.path, "size": o.size, "tag": o.tag}
            pieces = self.manifest.of(o) if self.manifest is not None else None
            if pieces is not None and pieces.lengths:
                file["lengths"] = pieces.lengths
            if pieces is not None and self.manifest is not None and self.manifest.algorithm == algorithm:
                file["digests"] = pieces.digests
            if o.path in self.trusted:
                file["trust"] = 1
            if self.again:
                file["again"] = 1
            files.append(file)
        return zlib.compress(json.dumps(files).encode(), 1)


def plan_of(
    objects: Sequence[Object],
    *,
    source: str,
    first: Sequence[str] = (),
    trusted: frozenset[str] = frozenset(),
    manifest: Manifest | None = None,
    again: bool = False,
) -> Plan:
    """A plan for what was listed and is wanted. Raises FairleadError where that cannot be."""
    files = without_folders(objects)
    if not files:
        raise FairleadError("weights/nothing", f"no object below {source}", hint=f"fairlead weights ls {source}")
    if bad := list(bad_names(files)):
        some = "; ".join(f"{shown(name)}: {why}" for name, why in bad[:3])
        more = f", and {len(bad) - 3} more" if len(bad) > 3 else ""
        raise UsageError("weights/name", f"names that cannot become files: {some}{more}", hint="--leave-out PATTERN")
    ordered, early = in_order(files, first)
    plan = Plan(tuple(ordered), early, trusted, manifest, again)
    if len(files) > MAX_OBJECTS or len(plan.chunks) > MAX_CHUNKS:
        text = f"{len(files)} files of {plan.total_bytes} bytes in all are more than one spread takes"
        raise UsageError("weights/too-many", text, hint="a part at a time, with --include")
    return plan


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Bytes a second; 0: not known, and no bound."""

    origin: float = 0.0
    link: float = 0.0
    write: float = 0.0


def bound_s(num_bytes: int, rates: Rates) -> float:
    """No spread ends sooner: each byte leaves the origin once, and enters and is written on each node once."""
    return max((num_bytes / rate for rate in (rates.origin, rates.link, rates.write) if rate), default=0.0)


def predicted_s(plan: Plan, num_bytes: int, num_nodes: int, rates: Rates) -> float:
    """The bound, and the last chunk's way over the longest row and column."""
    if not num_bytes or num_nodes < 2 or not rates.link:
        return bound_s(num_bytes, rates)
    width = width_for(num_nodes, len(plan.chunks))
    return bound_s(num_bytes, rates) + hops(num_nodes, width) * plan.chunk_bytes / rates.link


def presence(num_chunks: int, has: Mapping[str, bytearray]) -> dict[str, int]:
    """Chunks that all nodes have, some have, none has."""
    all_, any_ = -1, 0
    for flags in has.values():
        bits = int.from_bytes(flags, "little")
        all_, any_ = all_ & bits, any_ | bits
    everywhere = (all_ & any_).bit_count()
    return {"all": everywhere, "some": any_.bit_count() - everywhere, "none": num_chunks - any_.bit_count()}

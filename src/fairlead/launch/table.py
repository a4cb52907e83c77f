"""`[launch]` in the cluster file, and the patience that follows from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from fairlead.launch.patience import Row, rows
from fairlead.records.limit import Limit
from fairlead.spec.model import Spec

Wait = Annotated[float, Meta(gt=0, le=86_400, examples=[600])]


class Launch(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How ranks of a job start, and how long each part may take; times left out grow with the group."""

    backend: Literal["auto", "nccl", "rccl", "gloo", "mrc"] = "auto"
    """How ranks communicate. auto: NCCL (or RCCL) on GPUs, gloo on CPUs; mrc: NCCL over its MRC plugin."""

    pending_s: Wait | None = None
    """How long a scheduler may hold the step of ranks back."""

    start_s: Wait | None = None
    """How long the last rank may take to start, a container image included."""

    import_s: Wait | None = None
    """How long a rank may take to import torch."""

    rendezvous_s: Wait | None = None
    """How long ranks may take to come to the rendezvous once the others are there."""

    join_s: Wait | None = None
    """How long the group may take to form: NCCL loads kernels, searches the topology and connects."""

    step_s: Wait | None = None
    """How long the group may go without a step once it stands; left out, as long as its longest phase before that,
    within bounds."""

    behind_s: Wait | None = None
    """How long a rank may stay behind the others, at least; as long as the quickest needed, where that is longer."""

    silent_s: Wait | None = None
    """How long a rank may give no sign of life while others do."""

    stopped_s: Wait | None = None
    """How long a rank's process may be stopped."""

    stuck_s: Wait | None = None
    """How long a rank's process may be stuck in the kernel."""


def own_patience(spec: Spec) -> Mapping[str, float]:
    """What the cluster file says of patience, by row of patience.toml."""
    said = msgspec.structs.asdict(spec.table(Launch))
    return {name.removesuffix("_s"): value for name, value in said.items() if name.endswith("_s") and value is not None}


def _grows(row: Row) -> str:
    """What else decides, in words."""
    more = f"and {row.per_rank_s:g} s more for each rank" if row.per_rank_s else ""
    if row.least_s is None:
        return more
    return f"{more}; from {row.least_s:g} s on where no phase before it took longer"


def limits(spec: Spec) -> Iterator[Limit]:
    """Every patience, for `fairlead limits`."""
    own = own_patience(spec)
    for name, row in rows().items():
        if f"{name}_s" not in Launch.__struct_fields__:
            continue  # it judges nothing
        yield Limit(
            name=f"launch_{name}_s",
            what=row.what,
            judges="at most",
            value=own.get(name, row.base_s),
            unit="s",
            source="[launch] in the cluster file" if name in own else row.source,
            holds_for="" if name in own else _grows(row),
            key=f"launch.{name}_s",
            code="preflight/rank-stopped" if name in ("stopped", "stuck", "silent") else "preflight/collective-failed",
        )

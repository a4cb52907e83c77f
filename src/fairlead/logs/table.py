"""`[logs]` in the cluster file."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct


class Logs(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much of the logs is kept."""

    keep_days: Annotated[int, Meta(ge=0, le=100_000)] = 0
    """Records that the store took in longer ago are dropped, whole days at a time; 0 keeps them for ever."""

    max_gib: Annotated[float, Meta(ge=0, examples=[500])] = 0.0
    """When records take more on the disk, the oldest days are dropped, but never the current one; 0 is no limit."""

"""`[serve]` in the cluster file: how long the offline proof waits and watches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct

from fairlead.records.limit import Limit

if TYPE_CHECKING:
    from fairlead.spec.model import Spec


class Serve(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Models on sites without a way out."""

    patience_s: Annotated[float, Meta(gt=0, le=86_400, examples=[1800])] = 600
    """How long a server may take in the offline proof until it names its model."""

    watch_s: Annotated[float, Meta(ge=0, le=86_400, examples=[660])] = 60
    """How long it is watched after the questions, for calls that come late. vLLM reports its usage every 600 s."""


def limits(spec: Spec) -> Iterator[Limit]:
    """How long a server is waited for and watched."""
    own = spec.table(Serve)
    yield Limit(
        name="serve_patience_s",
        what="how long a server takes in the offline proof until it names its model",
        judges="at most",
        value=own.patience_s,
        unit="s",
        source="16 GB of weights from a share of 128 MiB/s take two minutes, and kernels are compiled after that",
        key="serve.patience_s",
        code="serve/no-answer",
    )
    yield Limit(
        name="serve_watch_s",
        what="how long the offline proof watches a server that answered",
        judges="at least",
        value=own.watch_s,
        unit="s",
        source="a report of usage that a server makes when it starts has been made by then",
        key="serve.watch_s",
        code="serve/called-out",
    )

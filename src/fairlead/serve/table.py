"""`[serve]` in the cluster file: how long the offline proof waits and watches, and what the endpoint takes."""

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
    """How long a server may take until it names its model, in the offline proof, or answers its first question."""

    watch_s: Annotated[float, Meta(ge=0, le=86_400, examples=[660])] = 60
    """How long it is watched after the questions, for calls that come late. vLLM reports its usage every 600 s."""

    body_bytes: Annotated[int, Meta(ge=1024, le=1 << 30, examples=[33_554_432])] = 4 << 20
    """The largest body of a request that the endpoint takes. Pictures in base64 need more."""

    context_tokens: Annotated[int, Meta(ge=0, le=100_000_000, examples=[131_072])] = 0
    """Tokens of prompt and answer together; 0: as the model's config.json says."""

    concurrency: Annotated[int, Meta(ge=1, le=100_000, examples=[512])] = 256
    """Requests that the engine has at once."""

    queue: Annotated[int, Meta(ge=0, le=100_000, examples=[64])] = 1024
    """Requests that may wait for a place; more are refused with 429."""

    queue_s: Annotated[float, Meta(gt=0, le=86_400, examples=[10])] = 60
    """How long one may wait before it is refused with 503."""

    request_s: Annotated[float, Meta(gt=0, le=3600, examples=[10])] = 30
    """How long head and body of a request may each take to arrive."""

    drain_s: Annotated[float, Meta(ge=0, le=86_400, examples=[600])] = 300
    """How long answers go on after SIGTERM. `terminationGracePeriodSeconds` of Kubernetes must be longer."""


def limits(spec: Spec) -> Iterator[Limit]:
    """How long a server is waited for and watched, and what the endpoint takes."""
    own = spec.table(Serve)
    yield Limit(
        name="serve_patience_s",
        what="how long a server takes until it names its model or answers its first question",
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
    for name, what, unit, source in _ENDPOINT:
        yield Limit(
            name=f"serve_{name}",
            what=what,
            judges="at most",
            value=getattr(own, name),
            unit=unit,
            source=source,
            key=f"serve.{name}",
            code="serve/endpoint",
        )


_ENDPOINT = (
    ("body_bytes", "the body of a request", "B", "a million tokens of four bytes"),
    ("context_tokens", "tokens of prompt and answer; 0: as the model says", "tokens", "config.json of the model"),
    ("concurrency", "requests at the engine at once", "", "docs.vllm.ai, max_num_seqs: what a batch holds by default"),
    ("queue", "requests that wait for the engine", "", "four batches; with full bodies 5 GiB of memory in all"),
    ("queue_s", "how long a request waits for the engine", "s", "clients that wait longer ask again by themselves"),
    ("request_s", "how long head and body of a request take to arrive", "s", "4 MiB at 140 KiB/s"),
    ("drain_s", "how long answers go on after SIGTERM", "s", "4096 tokens at 14 tokens/s"),
)

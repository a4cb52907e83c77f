"""`[weights]` in the cluster file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from msgspec import Meta, Struct

from fairlead.records.limit import Limit
from fairlead.spec.model import Spec

Wait = Annotated[float, Meta(gt=0, le=86_400, examples=[30])]


class Weights(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How `fairlead weights` spreads a model over the nodes."""

    connections: Annotated[int, Meta(ge=1, le=256, examples=[8])] = 8
    """Requests that one node has at the origin at a time, at most: fewer while the origin is busy."""

    transport: Annotated[Literal["tcp", "mrc"], Meta(examples=["mrc"])] = "tcp"
    """By what chunks go from node to node: TCP, or MRC over all planes, which the nodes' Python must have installed
    (`fairlead[fabric]`)."""

    streams: Annotated[int, Meta(ge=1, le=32, examples=[4])] = 2
    """Connections from a node to the next one."""

    fetching: Annotated[int, Meta(ge=0, le=1_000_000, examples=[8])] = 0
    """Nodes that ask the origin, spread evenly over all; 0: every node."""

    origin_gbps: Annotated[float, Meta(ge=0, le=1e6, examples=[200])] = 0
    """What the origin gives to all nodes together, in Gb/s, for `weights plan`; 0: not known. Azure documents 200 Gb/s
    for a standard storage account in large regions."""

    link_gbps: Annotated[float, Meta(ge=0, le=1e6, examples=[80])] = 0
    """What a node's link between nodes carries each way, in Gb/s, for `weights plan`; 0: what the interface says, or
    the VM size's documentation."""

    write_mb_s: Annotated[float, Meta(ge=0, le=1e9, examples=[6000])] = 0
    """What a node's disk takes for good, in MB/s, for `weights plan`; 0: not known."""

    give_up_s: Wait = 120
    """How long a node goes on asking an origin that gives nothing before others try, four nodes in all."""

    silent_s: Wait = 15
    """How long a node may say nothing before it counts as lost."""

    slow_share: Annotated[float, Meta(gt=0, lt=1, examples=[0.5])] = 0.5
    """A node that takes less than this share of what the middle one takes, while more waits for it than for others, for
    three seconds one after the other, is taken out of the ring."""


def limits(spec: Spec) -> Iterator[Limit]:
    """Numbers that judge nodes."""
    own = spec.table(Weights)
    yield Limit(
        name="weights_silent_s",
        what="how long a node says nothing during a spread",
        judges="at most",
        value=own.silent_s,
        unit="s",
        source="a node says how far it is once a second",
        key="weights.silent_s",
        code="weights/node-lost",
    )
    yield Limit(
        name="weights_slow_share",
        what="what a node takes, of what the middle one takes, while more waits for it than for others",
        judges="at least",
        value=own.slow_share,
        unit="x",
        source="half: a ring runs at the pace of its slowest node",
        key="weights.slow_share",
        code="weights/slow-node",
    )

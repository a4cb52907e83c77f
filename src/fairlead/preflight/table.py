"""`[preflight]` in the cluster file."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from fairlead.base.suggest import did_you_mean
from fairlead.spec.model import Seconds, Spec
from fairlead.spec.problems import Problems

MOST = 1000
"""No share, multiple or number of seconds that judges a rank is larger."""


class Preflight(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The gate before a job."""

    timeout_s: Seconds = 120.0
    """Time limit for the pair phase, and again for what the ranks do once they have met; see [launch] for before."""

    node_limit_s: Seconds = 60.0
    """The longest a node's own probe may take. Usually less is waited: once half of the nodes have answered, the others
    get three times as long, and thirteen seconds more than the quickest at least; a node that gives no sign of life for
    five seconds is not waited for."""

    message_bytes: Annotated[tuple[Annotated[int, Meta(ge=8, le=1 << 34)], ...], Meta(min_length=1)] = (
        8,
        65_536,
        67_108_864,
    )
    """Message sizes of the all-reduce. Sizes between them are tried too, growing while they fit into `reduce_s`."""

    reduce_s: Seconds = 1.0
    """How long all-reduces may take: on a slow network the largest size is left out rather than waited for."""

    ranks_on: Literal["auto", "gpus", "cpus"] = "auto"
    """What ranks compute and communicate with. auto: GPUs wherever the VM size, the pool or the probe counts any. A
    rank that has none where it should is a fault; it never goes on with its CPU."""

    rail_mib: Annotated[int, Meta(ge=1, le=1024)] = 128
    """Largest message of the rail test, in MiB; less on slow rails."""

    perftest: bool = False
    """Measure each rail by RDMA as well, with ib_write_bw and ib_write_lat, where every node has them."""

    warn_as_fail: bool = False
    """Let a warning close the gate."""

    limits: Annotated[dict[str, Annotated[float, Meta(ge=0)]], Meta(examples=[{"slow_ratio": 0.4}])] = {}
    """Other numbers for nodes, pairs and ranks, by the names `fairlead limits preflight` lists: slow_ratio = 0.4."""


def rules(spec: Spec, report: Problems) -> None:
    """A number must be one there is, whole where it counts something, and above 0 where it is a share or a multiple."""
    said = spec.table(Preflight).limits
    if not said:  # the tables of numbers are read where somebody changes one
        return
    from fairlead.preflight.nodes.patience import rows
    from fairlead.preflight.pairs.limits import table
    from fairlead.preflight.ranks.limits import numbers

    nodes, pairs, ranks = rows(), table(), numbers()
    for name, value in said.items():
        path = ("preflight", "limits", name)
        if name not in nodes and name not in pairs and name not in ranks:
            near = did_you_mean(name, [*nodes, *pairs, *ranks])
            report(path, "preflight/no-limit", f"no number `{name}`; {near}", on="key")
        elif name in pairs and isinstance(pairs[name].value, int) and value != int(value):
            report(path, "preflight/no-limit", f"`{name}` counts whole {pairs[name].unit or 'things'}")
        elif name in ranks and not 0 < value <= MOST:
            report(path, "preflight/no-limit", f"`{name}` is a share or a multiple: above 0, at most {MOST}")

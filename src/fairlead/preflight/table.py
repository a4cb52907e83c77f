"""`[preflight]` in the cluster file."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from fairlead.base.suggest import did_you_mean
from fairlead.spec.model import Seconds, Spec
from fairlead.spec.problems import Problems


class Preflight(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The gate before a job."""

    timeout_s: Seconds = 120.0
    """Time limit for the pair phase, and again for what the ranks do once they have met; see [launch] for before."""

    node_limit_s: Seconds = 60.0
    """The longest a node's own probe may take. Usually less is waited: once half of the nodes have answered, the others
    get three times as long, and fifteen seconds at least."""

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
    """Other numbers for the pair phase, by the names `fairlead limits preflight` lists: slow_ratio = 0.4, ..."""


def rules(spec: Spec, report: Problems) -> None:
    """A number of the pair phase must be one there is, and whole where it counts something."""
    from fairlead.preflight.pairs.limits import table

    known = table()
    for name, value in spec.table(Preflight).limits.items():
        path = ("preflight", "limits", name)
        if name not in known:
            report(path, "preflight/no-limit", f"no number `{name}`; {did_you_mean(name, known)}", on="key")
        elif isinstance(known[name].value, int) and value != int(value):
            report(path, "preflight/no-limit", f"`{name}` counts whole {known[name].unit or 'things'}")


Ratio = Annotated[float, Meta(gt=0, le=1_000)]


class RankLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Numbers that ranks are judged by; `fairlead limits` shows each with its source."""

    straggler_ratio: Ratio = 2.0
    """A rank is a straggler from this multiple of the median rank's time."""

    outlier_mads: Ratio = 6.0
    """Distance from the median, in median absolute deviations, that anything slow must have besides."""

    gpu_matmul_warn_share: Ratio = 0.93
    """Matrix rate of a GPU as a share of the median's: a warning below this."""

    gpu_matmul_fail_share: Ratio = 0.85
    """The same, a failure below this."""

    gpu_copy_warn_share: Ratio = 0.9
    """Rates of copies and of the all-reduce in a node as a share of the median's: a warning below this."""

    gpu_copy_fail_share: Ratio = 0.7
    """The same, a failure below this."""

    cpu_warn_share: Ratio = 0.2
    """All these rates for ranks on CPUs: a warning where every one is below this."""

    size_floor_share: Ratio = 0.8
    """Rates of a GPU as a share of the VM size's least: a failure below this."""

    rail_slow_ratio: Ratio = 0.5
    """Rate of a rail as a share of the median's: a failure below this."""

    rail_floor_ratio: Ratio = 0.2
    """Rate of a rail as a share of the port's: a failure below this."""

    launch_skew_s: Ratio = 10.0
    """Seconds after the first rank from which a node's start is late."""

    perftest_share: Ratio = 0.9
    """Rate of ib_write_bw as a share of the port's: a failure below this."""

    perftest_latency_ratio: Ratio = 2.0
    """Latency of ib_write_lat as a multiple of the median's: a warning above this."""

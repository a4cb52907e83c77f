"""The numbers of the pair phase, from limits.toml, and what follows from them. None depends on how fast a link is.

How much is sent. Each port sends and hears a `sample` in the first pass, however many partners it has: enough that a
port which loses one packet in 500 loses at least one. Any damage is a suspicion; the arithmetic stands beside each
number.

What it takes to accuse. Two repetitions, in quiet, that agree: of loss with 8,000 packets each, enough that a pair
which loses 0.2 % reaches the limit. Packets that arrived and found no room in the receiver's socket are not counted
as lost.

What a burst may weigh. No more than a `window` of small packets is under way unless acknowledged or slower than any
port: 11 KB, and 72 KB in full-size packets at an MTU of 9000, less than the buffer of any port that one would use for
this. So even a link a hundred times slower than its neighbours delivers a burst whole, only later.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib import resources

import msgspec

from fairlead.preflight.table import Preflight
from fairlead.records.limit import Judges, Limit
from fairlead.spec.model import Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Numbers with units; what each is and who says so stands in limits.toml."""

    small: int
    sample: int
    again_small: int
    again_sample: int
    link_small: int
    full: int
    batch: int
    gap_us: int
    window: int
    first_quiet_ms: int
    quiet_ms: int
    loss: float
    loss_chance: float
    by_chance: float
    min_witnesses: int
    min_slow_witnesses: int
    speed_bytes: int
    skip_bytes: int
    window_bytes: int
    speed_budget_ms: int
    again_bytes: int
    again_budget_ms: int
    pings: int
    slow_ratio: float
    floor_ratio: float
    floor_bps: float
    late_ratio: float
    late_mads: float
    clock_ns: int
    clock_exchanges: int
    work_blocks: int
    slow_node_ratio: float
    watch_ms: int
    lost_s: float
    start_s: float
    tcp_s: float


class Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the table says of one number."""

    value: int | float
    what: str
    source: str
    unit: str = ""
    lossless: float | None = None
    """The value where the fabric is declared to lose nothing."""
    judges: Judges | None = None
    """How it judges; None: it only says how much is sent, or how long is waited."""
    code: str = ""


@functools.cache
def table() -> Mapping[str, Row]:
    """Every number by name."""
    text = resources.files("fairlead.preflight.pairs").joinpath("limits.toml").read_text("utf-8")
    return msgspec.convert(tomllib.loads(text), dict[str, Row])


DEFAULT = msgspec.convert({name: row.value for name, row in table().items()}, Limits)


def limits_of(spec: Spec) -> Limits:
    """The numbers for a cluster: the table's, with what the cluster file says instead."""
    lossless = {name: row.lossless for name, row in table().items() if row.lossless is not None}
    ours = (
        asdict(DEFAULT)
        | (lossless if spec.fabric.is_lossless else {})
        | {name: value for name, value in spec.table(Preflight).limits.items() if name in table()}
    )
    return msgspec.convert(ours, Limits, strict=False)


def assumed(spec: Spec) -> str:
    """What the loss that is let pass rests on, where nobody said it and it matters; empty elsewhere.

    RoCE runs with priority flow control and without, and a node cannot see which its switches do.
    """
    if spec.fabric.rdma != "roce" or spec.fabric.lossless is not None or "loss" in spec.table(Preflight).limits:
        return ""
    share = limits_of(spec).loss
    return f"switches may drop packets, as `lossless` is not set in [fabric]: a loss below {share:.2%} is not judged"


def limits(spec: Spec) -> Iterator[Limit]:
    """Those that judge, for `fairlead limits`."""
    ours, said = limits_of(spec), spec.table(Preflight).limits
    for name, row in table().items():
        if row.judges is not None:
            yield Limit(
                name=name,
                what=row.what,
                judges=row.judges,
                value=getattr(ours, name),
                unit=row.unit,
                source="the cluster file" if name in said else row.source,
                key=f"preflight.limits.{name}",
                code=row.code,
            )

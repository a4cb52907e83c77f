"""The numbers that judge ranks: numbers.toml, with what the cluster file says instead, and what a VM size reaches.

Each has a unit and a source, and what it holds for. What has no number is reported, not judged.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any

import msgspec
from msgspec import Struct

from fairlead.preflight.table import Preflight
from fairlead.records.limit import Judges, Limit
from fairlead.spec.limits import Reached, least_message, limit_for, quantity_limits
from fairlead.spec.model import Spec
from fairlead.spec.vmsize import VmSize

NODE, RACK, JOB = "node_allreduce_busbw_gbs", "rack_allreduce_busbw_gbs", "job_allreduce_busbw_gbs"


class Number(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One number of numbers.toml."""

    value: float
    unit: str
    judges: Judges
    what: str
    source: str
    code: str


@functools.cache
def numbers() -> Mapping[str, Number]:
    """All of numbers.toml by name."""
    return msgspec.convert(_toml("numbers.toml"), dict[str, Number])


class Numbers:
    """The numbers in force: the cluster file's own before numbers.toml."""

    def __init__(self, own: Mapping[str, float] | None = None) -> None:
        self.own = {name: value for name, value in (own or {}).items() if name in numbers()}

    def __getitem__(self, name: str) -> float:
        return self.own.get(name, numbers()[name].value)

    def source(self, name: str) -> str:
        """Where a number comes from."""
        return "the cluster file" if name in self.own else numbers()[name].source


def numbers_of(spec: Spec) -> Numbers:
    """The numbers for a cluster: `[preflight.limits]` has those of the pair phase besides."""
    return Numbers(spec.table(Preflight).limits)


def reduce_limit(size: VmSize | None, *, nodes: int, message_bytes: int, over_nvlink: bool) -> Reached | None:
    """What is known of an all-reduce of that size on so many nodes of a VM size; None where nothing is.

    Between nodes that talk over NVLink alone the number of a rack holds, where there is one.
    """
    if size is None:
        return None
    name = NODE if nodes == 1 else RACK if over_nvlink else JOB
    return limit_for(size, name, nodes=nodes, message_bytes=message_bytes)


def judged_messages(size: VmSize | None, *, nodes: int) -> set[int]:
    """Message sizes from which on some number judges."""
    names = (NODE,) if nodes == 1 else (RACK, JOB)
    return {least for name in names if size and (least := least_message(size, name, nodes=nodes))}


def limits(spec: Spec) -> Iterator[Limit]:
    """All of them, for `fairlead limits`."""
    own = numbers_of(spec)
    for name, number in numbers().items():
        yield Limit(
            name=name,
            what=number.what,
            judges=number.judges,
            value=own[name],
            unit=number.unit,
            source=own.source(name),
            key=f"preflight.limits.{name}",
            code=number.code,
        )
    for quantity in (NODE, RACK, JOB):
        yield from quantity_limits(spec, quantity, code="preflight/busbw")
    for rate in ("gpu_gemm_tflops", "gpu_memory_gbs", "gpu_h2d_gbs", "gpu_d2h_gbs"):
        yield from quantity_limits(spec, rate, code="preflight/slow-gpu")


def _toml(name: str) -> dict[str, Any]:
    return tomllib.loads(resources.files("fairlead.preflight.ranks").joinpath(name).read_text("utf-8"))

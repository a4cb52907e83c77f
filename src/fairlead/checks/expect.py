"""What a node should have, as the rules see it: one flat set of numbers, each with the place it comes from.

The numbers are the pool's contract (spec.contract_of: the VM-size table with the cluster file laid over it), and
defaults for the few limits that no VM size can know. Must not know: any node's facts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fairlead.spec.contract import SITE_FACTS, contract_of
from fairlead.spec.model import Pool, Spec
from fairlead.spec.vmsize import FACTS, Source


class Default(NamedTuple):
    """A number that holds where nobody says otherwise."""

    value: Any
    unit: str
    what: str
    source: str


DEFAULTS: Mapping[str, Default] = {
    "memlock_gib": Default(
        32,
        "GiB",
        "memory a process must be allowed to lock; unlimited is always enough",
        "practice of MPI and NCCL sites",
    ),
    "shm_gib": Default(8, "GiB", "size of /dev/shm, through which the ranks of a node talk", "practice of NCCL sites"),
    "max_disk_used_pct": Default(
        95,
        "%",
        "used space or inodes at which a file system fails; it warns 5 % before",
        "practice of Slurm health checks",
    ),
}
"""Limits that hold where the cluster file names no other with `[[expect]]`."""


@dataclass(frozen=True, slots=True)
class Expect:
    """What one pool's nodes should have. A number that nobody says is None."""

    pool: str = ""
    size: str = "other"
    link: str = "ethernet"
    rdma: str = "none"
    is_lab: bool = False
    values: Mapping[str, Any] = field(default_factory=lambda: {name: d.value for name, d in DEFAULTS.items()})
    origins: Mapping[str, str] = field(default_factory=dict)

    def get(self, fact: str) -> Any:
        """The value to expect, or None."""
        return self.values.get(fact)

    def origin(self, fact: str) -> str:
        """Where that value comes from, for people."""
        return self.origins.get(fact, "")


def expect_of(spec: Spec, pool: Pool) -> Expect:
    """What the cluster file and the VM-size table say of a pool."""
    contract = contract_of(spec, pool)
    values: dict[str, Any] = {name: default.value for name, default in DEFAULTS.items()}
    origins = {name: default.source for name, default in DEFAULTS.items()}
    for fact in (*FACTS, *SITE_FACTS):
        value = getattr(contract, fact)
        if value is not None and value not in ((), ""):
            values[fact], origins[fact] = value, _origin(contract.source(fact))
    return Expect(
        pool=pool.name,
        size=contract.name,
        link=spec.fabric.link,
        rdma=spec.fabric.rdma,
        is_lab=spec.is_lab,
        values=values,
        origins=origins,
    )


def _origin(source: Source | None) -> str:
    if source is None:
        return "the cluster file"
    return str(source) if source.date else f"{source.name}: {source.where}"

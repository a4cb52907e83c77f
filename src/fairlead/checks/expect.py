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
    "corrected_errors_per_day": Default(
        10,
        "errors in 24 h",
        "corrected memory errors at which a node is a warning; single ones are what correction is for",
        "mcelog's default for a memory module (mcelog.conf, [dimm] ce-error-threshold = 10 / 24h)",
    ),
    "refused_register_reads_per_hour": Default(
        100,
        "messages in 1 h",
        "refused reads of an HCA's registers at which something polls it too eagerly",
        "seen from node exporters (node_exporter#3434, gpud#1164)",
    ),
    "memory_slack_pct": Default(
        10,
        "%",
        "how much less memory than sold a guest may see",
        "up to 6.7 % by the limits of AzureHPC node health checks (ND96amsr_A100_v4)",
    ),
    "max_gpu_temperature_c": Default(
        93,
        "C",
        "hottest a GPU may be; its own slowdown begins a few degrees above",
        "the limit cluster health agents use (cyclecloud-healthagent)",
    ),
    "max_remapped_rows": Default(
        512,
        "rows",
        "memory rows of a GPU remapped after uncorrectable errors",
        "AzureHPC node health checks give a GPU up there (azure_gpu_ecc)",
    ),
    "max_nvidia_smi_s": Default(
        5, "s", "time nvidia-smi may take; a slow one is often the first sign of a GPU in trouble", "Primus node-smoke"
    ),
    "max_clock_off_s": Default(
        0.1, "s", "how far a clock may be off, by chrony's own measure", "practice of MPI sites"
    ),
    "max_clock_skew_s": Default(
        300, "s", "how far apart the nodes' clocks may be", "older credentials are refused by munge, and so by Slurm"
    ),
    "event_window_min": Default(
        720, "min", "how far ahead an event that the platform has scheduled for a node counts", "a job of half a day"
    ),
    "vf_return_s": Default(
        600,
        "s",
        "how long a virtual function may be away while its host is serviced",
        "about 30 s, at times minutes (Azure documentation, accelerated-networking-how-it-works)",
    ),
    "max_revocation_s": Default(
        300,
        "s",
        "longest that a virtual function may have been away and come back without a warning",
        "about 30 s, at times minutes (Azure documentation, accelerated-networking-how-it-works)",
    ),
    "max_revocations_per_day": Default(
        2,
        "revocations in 24 h",
        "how often a host may take a virtual function before that is a warning",
        "several times a year (Azure documentation); a case of one in one to two days was reported as trouble",
    ),
    "min_vf_share_pct": Default(
        95,
        "%",
        "share of a NIC's bytes since the start that went by its virtual function",
        "only first packets, broadcasts and multicasts take the other path (Azure documentation)",
    ),
    "max_vf_drop_pct": Default(0.1, "%", "packets dropped on their way to a virtual function", "fairlead"),
    "min_nic_channels": Default(
        8,
        "channels",
        "channels a synthetic NIC should use, where it has as many and the machine as many processors",
        "linux drivers/net/hyperv: VRSS_CHANNEL_DEFAULT, 8 until 2023 and 16 since",
    ),
    "flaps_per_day": Default(
        5,
        "losses in 24 h",
        "how often an InfiniBand link may lose its carrier",
        "AzureHPC node health checks (check_IB_link_flapping)",
    ),
    "max_zombies": Default(19, "processes", "zombies: a few are normal where shells run jobs", "fairlead"),
}
"""Limits that hold where the cluster file names no other with `[[expect]]`."""


@dataclass(frozen=True, slots=True)
class Expect:
    """What one pool's nodes should have. A number that nobody says is None."""

    pool: str = ""
    size: str = "other"
    link: str = "ethernet"
    rdma: str = "none"
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
        values=values,
        origins=origins,
    )


def _origin(source: Source | None) -> str:
    if source is None:
        return "the cluster file"
    return str(source) if source.date else f"{source.name}: {source.where}"

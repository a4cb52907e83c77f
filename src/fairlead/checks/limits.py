"""The numbers that checks judge nodes by, for `fairlead limits`: what each pool's nodes must have, with its source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from fairlead.checks.expect import DEFAULTS, expect_of
from fairlead.records.limit import Judges, Limit
from fairlead.spec.contract import Contract
from fairlead.spec.docs import sentences
from fairlead.spec.model import Spec


class _Judged(NamedTuple):
    judges: Judges
    unit: str
    code: str


JUDGED: Mapping[str, _Judged] = {
    "vcpus": _Judged("equal", "", "host/cpus"),
    "memory_gib": _Judged("about", "GiB", "host/memory"),
    "nvme_disks": _Judged("equal", "", "host/nvme"),
    "memlock_gib": _Judged("at least", "GiB", "host/memlock"),
    "shm_gib": _Judged("at least", "GiB", "host/shm"),
    "max_disk_used_pct": _Judged("at most", "%", "host/disk-space"),
    "memory_slack_pct": _Judged("at most", "%", "host/memory"),
    "event_window_min": _Judged("at most", "min", "host/scheduled-event"),
    "max_zombies": _Judged("at most", "", "host/stuck-processes"),
    "max_clock_off_s": _Judged("at most", "s", "host/clock"),
    "max_clock_skew_s": _Judged("at most", "s", "host/clock-skew"),
    "corrected_errors_per_day": _Judged("warn above", "", "host/kernel-faults"),
    "refused_register_reads_per_hour": _Judged("warn above", "", "ib/kernel-messages"),
    "vf_return_s": _Judged("warn above", "s", "net/vf-lost"),
    "max_revocation_s": _Judged("warn above", "s", "net/revocations"),
    "max_revocations_per_day": _Judged("warn above", "", "net/revocations"),
    "min_vf_share_pct": _Judged("warn below", "%", "net/vf-share"),
    "max_vf_drop_pct": _Judged("warn above", "%", "net/vf-drops"),
    "min_nic_channels": _Judged("warn below", "", "net/queues"),
    "flaps_per_day": _Judged("fail above", "", "ib/flaps"),
    "max_gpu_temperature_c": _Judged("at most", "C", "gpu/temperature"),
    "max_remapped_rows": _Judged("at most", "", "gpu/row-remap"),
    "max_nvidia_smi_s": _Judged("at most", "s", "gpu/tool-latency"),
    "gpus": _Judged("equal", "", "gpu/count"),
    "nvlinks_per_gpu": _Judged("equal", "", "gpu/nvlink"),
    "gpus_per_numa": _Judged("equal", "", "gpu/numa"),
    "hca_ports": _Judged("equal", "", "ib/count"),
    "hca_rates_gbps": _Judged("one of", "Gb/s", "ib/port-rate"),
    "hcas_per_numa": _Judged("equal", "", "ib/numa"),
}
"""Facts with a number that a rule asks for, and the finding that says what came of it."""


def limits(spec: Spec) -> Iterator[Limit]:
    """Pool by pool, where somebody says a number."""
    said = sentences(Contract).fields
    for pool in spec.pools:
        expect = expect_of(spec, pool)
        for fact, (judges, unit, code) in JUDGED.items():
            value = expect.get(fact)
            if value is not None:
                yield Limit(
                    name=fact,
                    what=DEFAULTS[fact].what if fact in DEFAULTS else said[fact],
                    judges=judges,
                    value=value,
                    unit=unit,
                    source=expect.origin(fact),
                    holds_for=f"pool {pool.name}, size {expect.size}",
                    key=f"[[expect]] {fact}",
                    code=code,
                )

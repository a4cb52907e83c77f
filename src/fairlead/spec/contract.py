"""What a node of a pool must be: its VM size, with what the cluster file says of the pool laid over it.

Checks judge nodes against a Contract and against nothing else, so every limit has a source that can be printed.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import inspect

from fairlead.spec.decode import type_of
from fairlead.spec.model import Expect, Pool, Spec
from fairlead.spec.vmsize import EXPECTED, FACTS, Expected, Source, VmSize, size


class Contract(VmSize, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A VM size and what a site adds to it."""

    hcas: tuple[str, ...] = ()
    """RDMA devices that count, by name; empty: all of them. For nodes with ports left unused on purpose."""
    memlock_gib: float | None = None
    """Least memory a process may lock, in GiB."""
    shm_gib: float | None = None
    """Least size of /dev/shm, in GiB."""
    max_disk_used_pct: float | None = None
    """Fullest a local file system may be, in per cent."""
    memory_slack_pct: float | None = None
    """How much less memory than sold a node may show, in per cent."""
    max_gpu_temperature_c: float | None = None
    """Hottest a GPU may be, in degrees Celsius."""
    max_remapped_rows: float | None = None
    """Most memory rows of a GPU that may have been remapped after uncorrectable errors."""
    max_nvidia_smi_s: float | None = None
    """Longest that nvidia-smi may take, in seconds."""
    max_clock_off_s: float | None = None
    """Farthest a clock may be off by chrony's own measure, in seconds."""
    max_clock_skew_s: float | None = None
    """Farthest a node's clock may be from the other nodes', in seconds."""
    max_zombies: float | None = None
    """Most zombie processes on a node."""
    event_window_min: float | None = None
    """How far ahead an event that the platform has scheduled for a node counts, in minutes."""
    corrected_errors_per_day: float | None = None
    """Corrected hardware errors in 24 hours at which a node is a warning."""
    refused_register_reads_per_hour: float | None = None
    """Refused reads of an HCA's registers in an hour at which a node is a warning."""
    vf_return_s: float | None = None
    """Longest that a virtual function may be away while its host is serviced, in seconds."""
    max_revocation_s: float | None = None
    """Longest that a virtual function may have been away and come back without a warning, in seconds."""
    max_revocations_per_day: float | None = None
    """Most revocations of a virtual function in 24 hours without a warning."""
    min_vf_share_pct: float | None = None
    """Least share of a NIC's bytes that goes by its virtual function, in per cent."""
    max_vf_drop_pct: float | None = None
    """Most packets that may be dropped on their way to a virtual function, in per cent."""
    min_nic_channels: float | None = None
    """Least channels a synthetic NIC should use."""
    flaps_per_day: float | None = None
    """Losses of carrier of an InfiniBand link in 24 hours at which a node fails."""


SITE_FACTS = tuple(f for f in Contract.__struct_fields__ if f not in VmSize.__struct_fields__)
"""Facts that no VM size has."""

MAX_NODES = 1_000_000

LAB_HAS: Mapping[str, float] = {"memlock_gib": 0.0, "shm_gib": 0.0}
LAB_WHY = "lab hosts lock no memory for RDMA, and their ranks talk through sockets"


@functools.cache
def expectable() -> Mapping[str, inspect.Type]:
    """Every name [[expect]] may use, and the type of its value."""
    contract = type_of(Contract)
    assert isinstance(contract, inspect.StructType)
    facts = {f.name: f.type for f in contract.fields if f.name in FACTS or f.name in SITE_FACTS}
    return facts | dict.fromkeys(EXPECTED, type_of(float))


def contract_of(spec: Spec, pool: Pool) -> Contract:
    """What nodes of a pool must be. The pool's own words go before [[expect]], and that before the VM-size table."""
    table = size(pool.size) or VmSize(name=pool.size)
    said: dict[str, tuple[Any, str]] = (
        {fact: (value, LAB_WHY) for fact, value in LAB_HAS.items()} if spec.is_lab else {}
    )
    reached, expected_why = dict(table.reached), dict[str, str]()
    for expect in spec.expects:
        if expect.pool in ("", pool.name):
            if expect.fact in EXPECTED:
                mine = reached.get(expect.fact, ()) if expect.fact in expected_why else ()
                reached[expect.fact] = (*mine, _limit(expect, table))
                expected_why.setdefault(expect.fact, expect.why)
            else:
                said[expect.fact] = (expect.value, expect.why)
    for fact, value in (("gpus", pool.gpus), ("hca_ports", pool.ports)):
        if value is not None and value != getattr(table, fact):
            said[fact] = (value, f"[[pool]] {pool.name}")
    why = {fact: w for fact, (_, w) in said.items()} | expected_why
    facts = {f: getattr(table, f) for f in (*FACTS, "name", "family", "aliases", "note")}
    facts |= {fact: value for fact, (value, _) in said.items()}
    sources = {**table.sources, **{fact: _own(text) for fact, text in why.items()}}
    expected = {quantity: rows[0] for quantity, rows in reached.items()}
    filled = {**facts, "expected": expected, "reached": reached, "sources": sources}
    return msgspec.convert(filled, Contract, from_attributes=True)


def _own(why: str) -> Source:
    return Source(name="the cluster file", where=why, date="", confidence="documented")


def _limit(expect: Expect, table: VmSize) -> Expected:
    """A site's number is a limit; only for times is it an upper one. It holds for the messages that the table's did."""
    known = table.expected.get(expect.fact)
    least = expect.message_bytes if expect.message_bytes is not None else known.message_bytes if known else 0
    nodes = (expect.min_nodes or 1, expect.max_nodes or MAX_NODES) if expect.min_nodes or expect.max_nodes else None
    side = "fail_above" if EXPECTED[expect.fact][0] == "us" else "fail_below"
    said = f"the cluster file: {expect.why}"
    return Expected(**{side: float(expect.value)}, nodes=nodes, message_bytes=least, source=said)  # type: ignore[arg-type]

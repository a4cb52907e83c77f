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
from fairlead.spec.model import Pool, Spec
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


SITE_FACTS = ("hcas", "memlock_gib", "shm_gib", "max_disk_used_pct")
"""Facts that no VM size has."""


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
    said: dict[str, tuple[Any, str]] = {}
    expected, expected_why = dict(table.expected), {}
    for expect in spec.expects:
        if expect.pool in ("", pool.name):
            if expect.fact in EXPECTED:
                expected[expect.fact] = _limit(expect.fact, float(expect.value))
                expected_why[expect.fact] = expect.why
            else:
                said[expect.fact] = (expect.value, expect.why)
    for fact, value in (("gpus", pool.gpus), ("hca_ports", pool.ports)):
        if value is not None and value != getattr(table, fact):
            said[fact] = (value, f"[[pool]] {pool.name}")
    why = {fact: w for fact, (_, w) in said.items()} | expected_why
    facts = {f: getattr(table, f) for f in (*FACTS, "name", "family", "aliases", "note")}
    facts |= {fact: value for fact, (value, _) in said.items()}
    sources = {**table.sources, **{fact: _own(text) for fact, text in why.items()}}
    return msgspec.convert({**facts, "expected": expected, "sources": sources}, Contract, from_attributes=True)


def _own(why: str) -> Source:
    return Source(name="the cluster file", where=why, date="", confidence="documented")


def _limit(quantity: str, value: float) -> Expected:
    """A site's number is a limit; only for times is it an upper one."""
    if EXPECTED[quantity][0] == "us":
        return Expected(fail_above=value, source="cluster file")
    return Expected(fail_below=value, source="cluster file")

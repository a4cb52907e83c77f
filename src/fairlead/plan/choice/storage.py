"""Which storage tier is enough for data set and checkpoints: MB/s per TiB against what is asked. Pure.

Of the tiers that are enough, the one is taken where least capacity is bought for the sake of speed alone, and of these
the slowest: a fast tier costs more for each TiB, a slow one makes up for its speed by TiB that nobody fills.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from msgspec import Struct

from fairlead.base.units import duration
from fairlead.plan.choice.need import Need
from fairlead.spec.vmsize import Tier, VmSize

TIB = 1 << 40
KEPT_CHECKPOINTS = 2
"""The last one, and the one being written: with fewer, a crash while writing leaves none."""


class Sized(Struct, frozen=True, kw_only=True):
    """A shared file system of one tier, as large as it must be."""

    tier: Tier
    tib: float = 0.0
    mbs: float = 0.0
    why_not: str = ""
    """Empty where it is enough."""


class StorageChoice(Struct, frozen=True, kw_only=True):
    """What is asked, and every tier."""

    least_tib: float
    least_mbs: float
    asked: tuple[str, ...]
    """What asks for it, in words."""
    tiers: tuple[Sized, ...]
    """Those that are enough come first, the least first."""
    local: str = ""
    """What local disks of the nodes are good for; empty where nobody says they have any."""

    @property
    def chosen(self) -> Sized | None:
        """The least that is enough."""
        return next((t for t in self.tiers if not t.why_not), None)


def choose_storage(
    need: Need, tiers: Iterable[Tier], size: VmSize | None = None, nodes: int = 1
) -> StorageChoice | None:
    """None where neither capacity nor throughput is asked for."""
    asked, tib, mbs = [], need.dataset_tib + need.filesystem_tib, need.dataset_mbs
    if need.dataset_tib:
        asked.append(f"a data set of {need.dataset_tib:g} TiB")
    if need.dataset_mbs:
        asked.append(f"{need.dataset_mbs:,.0f} MB/s read by all nodes together")
    if need.checkpoint_bytes is not None:
        rate = need.checkpoint_bytes / need.checkpoint_s / 1e6
        tib, mbs = tib + KEPT_CHECKPOINTS * need.checkpoint_bytes / TIB, max(mbs, rate)
        asked.append(
            f"checkpoints of {need.checkpoint_bytes / 1e9:,.0f} GB, {KEPT_CHECKPOINTS} kept, "
            f"each within {duration(need.checkpoint_s)}: {rate:,.0f} MB/s"
        )
    if not asked and not tib:
        return None
    shared = [sized(tier, tib, mbs) for tier in tiers if tier.kind == "shared"]
    order = sorted(shared, key=lambda s: (bool(s.why_not), s.tib - sized(s.tier, tib, 0.0).tib, s.mbs))
    return StorageChoice(
        least_tib=tib, least_mbs=mbs, asked=tuple(asked), tiers=tuple(order), local=_local(need, size, nodes)
    )


def sized(tier: Tier, tib: float, mbs: float) -> Sized:
    """The smallest file system of a tier with this capacity and throughput."""
    if not tier.mbs_per_tib:
        return Sized(tier=tier, why_not="no source says what a TiB of it delivers")
    least = max(tib, mbs / tier.mbs_per_tib, tier.min_tib or 0.0)
    step = tier.step_tib or 1.0
    whole = math.ceil(least / step - 1e-9) * step
    found = Sized(tier=tier, tib=whole, mbs=whole * tier.mbs_per_tib)
    if tier.max_tib and whole > tier.max_tib:
        why = f"takes {whole:,.0f} TiB, over its maximum of {tier.max_tib:g} ({tier.note or 'no exception is named'})"
        return Sized(tier=tier, tib=whole, mbs=found.mbs, why_not=why)
    return found


def _local(need: Need, size: VmSize | None, nodes: int) -> str:
    if size is None or not size.nvme_gib:
        return ""
    whole = size.nvme_gib * nodes / 1024
    text = f"local NVMe of {size.nvme_gib:,.0f} GiB a node, {whole:,.1f} TiB in all, gone with the VM"
    if need.dataset_tib and size.nvme_gib / 1024 >= need.dataset_tib:
        return text + ": the whole data set fits on each node"
    return text + ": a copy of model and data for reading, a first place for checkpoints"

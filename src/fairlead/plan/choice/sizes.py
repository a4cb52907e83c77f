"""Every VM size: does it fit a need, and if not, why not; those that fit, best first.

A fact that no source names neither fits nor rules out by itself: the size is then set aside with "no source says",
since nobody can promise it. Pure.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

from msgspec import Struct

from fairlead.base.units import counted
from fairlead.plan.choice.need import Need
from fairlead.plan.choice.skus import Offer
from fairlead.spec.vmsize import VmSize

GB = 1e9
_FEWER_CORES = re.compile(r"^(standard_[a-z]+\d+)-\d+(.*)$")
_OWN = ("lab", "other")


class Fit(Struct, frozen=True, kw_only=True):
    """A size that fits, and how many of it."""

    size: VmSize
    nodes: int
    reasons: tuple[str, ...]
    price_per_hour: float | None = None
    """Of all nodes; None where no price was given."""

    @property
    def gpus(self) -> int:
        """GPUs of all nodes."""
        return self.nodes * (self.size.gpus or 0)

    @property
    def memory_bytes(self) -> float:
        """GPU memory of all nodes."""
        return self.gpus * (self.size.gpu_memory_gb or 0.0) * GB


class Rejected(Struct, frozen=True, kw_only=True):
    """A size that does not fit."""

    size: VmSize
    reasons: tuple[str, ...]


class Choice(Struct, frozen=True, kw_only=True):
    """Every size, sorted."""

    fits: tuple[Fit, ...]
    """Best first."""
    rejected: tuple[Rejected, ...]
    notes: tuple[str, ...] = ()

    @property
    def chosen(self) -> Fit | None:
        """The best."""
        return self.fits[0] if self.fits else None


def choose(need: Need, sizes: Iterable[VmSize], offers: Mapping[str, Offer] | None = None) -> Choice:
    """Judge every size. `offers` is what the region sells, by name in small letters; None where nobody said."""
    fits, rejected = [], []
    known = [s for s in sizes if s.name not in _OWN]
    for size in known:
        reasons = [*_why_not(need, size), *_not_sold(need, size, offers)]
        nodes = nodes_of(need, size)
        price = need.prices.get(size.name.casefold())
        total = None if price is None or nodes is None else price * nodes
        if nodes is not None and need.budget_per_hour is not None and not reasons:
            reasons += _too_dear(need.budget_per_hour, total, nodes)
        if reasons or nodes is None:
            rejected.append(Rejected(size=size, reasons=tuple(reasons)))
        else:
            fits.append(Fit(size=size, nodes=nodes, reasons=tuple(_why(need, size, nodes)), price_per_hour=total))
    return Choice(fits=tuple(sorted(fits, key=_order)), rejected=tuple(rejected), notes=_notes(need, known, offers))


def nodes_of(need: Need, size: VmSize) -> int | None:
    """How many VMs of a size hold the need; None where that cannot be said."""
    if need.job == "hpc" and not need.gpus:
        return need.nodes or 1
    if not size.gpus:
        return None
    least = gpus_for(need, size)
    wanted = max(filter(None, (need.gpus, least, (need.nodes or 0) * size.gpus)), default=size.gpus)
    return math.ceil(wanted / size.gpus)


def gpus_for(need: Need, size: VmSize) -> int | None:
    """The fewest GPUs of a size that hold the model's state, spread evenly over all of them."""
    if need.state_bytes is None or not size.gpu_memory_gb:
        return None
    return max(1, math.ceil(need.state_bytes / (size.gpu_memory_gb * GB * need.number("memory_share"))))


def wants_rdma(need: Need, nodes: int) -> bool:
    """Whether nodes exchange so much that the network between them decides: training and MPI, or a model in parts."""
    return nodes > 1 and need.rdma_aware and (need.job != "inference" or need.state_bytes is not None)


def _why_not(need: Need, size: VmSize) -> list[str]:
    reasons = []
    if found := _FEWER_CORES.match(size.name.casefold()):
        whole = size.name[: len(found[1])] + size.name[-len(found[2]) :]
        return [f"the same machine and network as {whole}, with fewer cores"]
    needs_gpu = need.job != "hpc" or bool(need.gpus)
    if needs_gpu and size.gpus == 0:
        reasons.append("no GPUs")
    elif needs_gpu and size.gpus is None:
        reasons.append("no source says how many GPUs it has")
    elif not needs_gpu and size.gpus:
        reasons.append("GPUs that nobody asked for")
    if needs_gpu and size.gpus:
        reasons += _gpu_why_not(need, size)
    nodes = nodes_of(need, size)
    if nodes is not None and wants_rdma(need, nodes):
        if size.rdma is None:
            reasons.append("no source says whether it has RDMA between nodes")
        elif not size.rdma:
            rate = f", Ethernet at {size.ethernet_gbps:g} Gb/s alone" if size.ethernet_gbps else ""
            reasons.append(f"no RDMA between nodes{rate}, and the job takes {counted(nodes, 'node')} of it")
    return reasons


def _gpu_why_not(need: Need, size: VmSize) -> list[str]:
    reasons = []
    if need.gpu_vendor not in ("any", size.gpu_vendor):
        reasons.append(f"its GPUs are {size.gpu_vendor or 'of a maker no source names'}, not {need.gpu_vendor}")
    if size.gpu_share != "1" and need.job in ("training", "finetuning"):
        reasons.append(f"a device is {size.gpu_share} of a GPU, and shares of a GPU have no peer copies between them")
    if need.state_bytes is not None and not size.gpu_memory_gb:
        reasons.append("no source says how much memory a GPU has")
    least = gpus_for(need, size)
    if least is not None and need.gpus is not None and need.gpus < least:
        state, share = (need.state_bytes or 0) / GB, need.number("memory_share")
        holds = need.gpus * (size.gpu_memory_gb or 0) * share
        reasons.append(
            f"{need.gpus} GPUs of {size.gpu_memory_gb:g} GB hold {holds:,.0f} GB at {share:.0%}, "
            f"the model's state takes {state:,.0f} GB"
        )
    return reasons


def _not_sold(need: Need, size: VmSize, offers: Mapping[str, Offer] | None) -> list[str]:
    if offers is None:
        return []
    offer = next((offers[n.casefold()] for n in (size.name, *size.aliases) if n.casefold() in offers), None)
    if offer is None:
        return [f"the list of SKUs has none in {need.region or 'its regions'}"]
    if offer.restricted:
        return [f"the list of SKUs says {offer.restricted}"]
    if offer.rdma is False and size.rdma:
        return ["the list of SKUs says RdmaEnabled False, the VM-size table says it has RDMA: ask before you buy"]
    return []


def _too_dear(budget: float, total: float | None, nodes: int) -> list[str]:
    if total is None:
        return ["a budget was given, and no price for it"]
    return [f"{counted(nodes, 'node')} cost {total:,.2f} an hour, over {budget:,.2f}"] if total > budget else []


def _why(need: Need, size: VmSize, nodes: int) -> list[str]:
    reasons = []
    if size.gpus:
        gpus, share = nodes * size.gpus, "" if size.gpu_share == "1" else f" (each {size.gpu_share} of one)"
        reasons.append(f"{counted(nodes, 'node')} of {size.gpus} {size.gpu_model} GPUs{share}: {gpus} GPUs")
        if need.state_bytes is not None and size.gpu_memory_gb:
            name = need.bytes_per_parameter
            reasons.append(
                f"{gpus * size.gpu_memory_gb:,.0f} GB of GPU memory, {need.state_bytes / GB:,.0f} GB of model state: "
                f"{need.number(name):g} bytes a parameter ({need.source(name)})"
            )
    if size.rdma:
        rates = "/".join(f"{r:g}" for r in size.hca_rates_gbps)
        reasons.append(f"{size.hca_ports} RDMA ports of {rates} Gb/s each ({size.source('hca_rates_gbps')})")
    elif nodes == 1:
        reasons.append("one node holds it, so no RDMA between nodes is asked for")
    return reasons


def _order(fit: Fit) -> tuple[float, int, float, float, str]:
    """Cheapest first where prices are given; then fewest nodes, most RDMA bandwidth a GPU, least memory beyond need."""
    size = fit.size
    rate = min(size.hca_rates_gbps, default=0.0) * (size.hca_ports or 0) / max(1, size.gpus or 1)
    price = math.inf if fit.price_per_hour is None else fit.price_per_hour
    return price, fit.nodes, -rate, fit.memory_bytes, size.name


def _notes(need: Need, known: Iterable[VmSize], offers: Mapping[str, Offer] | None) -> tuple[str, ...]:
    notes = []
    if not need.prices:
        notes.append("no prices were given, so cost decides nothing: fewest nodes first, then RDMA bandwidth a GPU")
    if offers is None:
        notes.append("no list of SKUs was given: whether a region sells a size, and to you, is not known")
        return tuple(notes)
    names = {n.casefold() for s in known for n in (s.name, *s.aliases)}
    if new := sorted(o.name for key, o in offers.items() if key not in names and (o.rdma or o.gpus)):
        shown = ", ".join(new[:8]) + (f" and {len(new) - 8} more" if len(new) > 8 else "")
        notes.append(f"sold there, with GPUs or RDMA, and not judged, as fairlead has no facts about them: {shown}")
    return tuple(notes)

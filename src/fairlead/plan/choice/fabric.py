"""Which network between the nodes, and why not the others. Pure.

rdma         RDMA by the size's own ports (InfiniBand on ND and HB)
ipoib        IP over those ports, for programs that know sockets alone
accelerated  TCP by the virtual function of the Ethernet NIC
synthetic    TCP by the host's virtual switch
guest-rdma   RDMA by the Ethernet NIC of the platform (Azure Boost Guest RDMA, preview)
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from fairlead.base.units import counted, duration
from fairlead.plan.choice.need import Need
from fairlead.plan.choice.sizes import wants_rdma
from fairlead.spec.vmsize import VmSize

Kind = Literal["rdma", "ipoib", "accelerated", "synthetic", "guest-rdma"]
_AKS = "Azure/aks-rdma-infiniband, tests/expected-output.md, 2026-07-15: two ND A100 v4 nodes"


class FabricChoice(Struct, frozen=True, kw_only=True):
    """A network, and the others."""

    kind: Kind
    reasons: tuple[str, ...]
    rejected: tuple[tuple[Kind, str], ...]
    exchange: str = ""
    """What an exchange of all gradients takes at least, by arithmetic; empty where there is none."""


def choose_fabric(need: Need, size: VmSize, nodes: int) -> FabricChoice:
    """The network for so many nodes of a size."""
    kind: Kind = "accelerated" if size.accelerated_networking is not False else "synthetic"
    reasons: list[str]
    if size.rdma and wants_rdma(need, nodes):
        kind, reasons = "rdma", [f"the programs speak RDMA, and {size.name} has {_ports(size)}"]
    elif size.rdma and not need.rdma_aware and size.link_layer == "infiniband" and nodes > 1:
        kind = "ipoib"
        reasons = ["the programs know sockets alone: IP over InfiniBand carries them over the fast ports"]
        if size.ipoib == "down":
            kind, reasons = "accelerated", ["the programs know sockets alone, and IPoIB is not used on this size"]
    elif nodes == 1:
        reasons = ["one node: nothing between nodes; the Ethernet NIC carries storage and management"]
    else:
        reasons = [_ethernet(size)]
    others: tuple[Kind, ...] = ("rdma", "ipoib", "accelerated", "synthetic", "guest-rdma")
    rejected = tuple((other, _why_not(other, need, size, nodes)) for other in others if other != kind)
    return FabricChoice(kind=kind, reasons=tuple(reasons), rejected=rejected, exchange=_exchange(need, size, nodes))


def _ports(size: VmSize) -> str:
    rates = "/".join(f"{r:g}" for r in size.hca_rates_gbps) or "?"
    return f"{counted(size.hca_ports or 0, 'port')} of {rates} Gb/s ({size.link_layer or 'link layer unknown'})"


def _ethernet(size: VmSize) -> str:
    rate = f"{size.ethernet_gbps:g} Gb/s" if size.ethernet_gbps else "a rate no source names"
    if size.accelerated_networking is None:
        return f"Ethernet at {rate}; no source says whether the NIC gets a virtual function: look on a node"
    path = "by the NIC's virtual function" if size.accelerated_networking else "through the host's virtual switch"
    return f"Ethernet at {rate}, {path}"


def _why_not(kind: Kind, need: Need, size: VmSize, nodes: int) -> str:
    if kind == "rdma":
        if size.rdma is None:
            return f"no source says whether {size.name} has RDMA"
        if not size.rdma:
            return f"{size.name} has no RDMA ports ({size.source('rdma')})"
        return "the programs do not speak it" if not need.rdma_aware else "one node needs none between nodes"
    if kind == "ipoib":
        if size.link_layer != "infiniband":
            return f"{size.name} has no InfiniBand"
        if nodes == 1:
            return "one node needs none between nodes"
        return f"through the kernel's IP stack: 3 GB/s against 180 GB/s of all-reduce bus bandwidth ({_AKS})"
    if kind == "accelerated":
        if size.accelerated_networking is False:
            return f"{size.name} has none ({size.source('accelerated_networking')})"
        rate = f" at {size.ethernet_gbps:g} Gb/s" if size.ethernet_gbps else ""
        return f"for storage and management{rate}; traffic between nodes has {_ports(size)}"
    if kind == "synthetic":
        return "every packet through the host's virtual switch; it is what stays while the virtual function is away"
    return (
        "preview, and no list of sizes names it: `fairlead audit` finds it by the RDMA device on a node, then it counts"
    )


def _exchange(need: Need, size: VmSize, nodes: int) -> str:
    """A ring all-reduce moves 2 (n-1)/n of the data through each node, whatever its GPUs do among themselves."""
    if need.gradient_bytes is None or nodes < 2:
        return ""
    moved = 2 * (nodes - 1) / nodes * need.gradient_bytes
    ways = []
    if size.rdma and size.hca_ports and size.hca_rates_gbps:
        gbps = size.hca_ports * min(size.hca_rates_gbps)
        ways.append(f"{duration(moved * 8 / (gbps * 1e9))} over RDMA at {gbps:g} Gb/s")
    if size.ethernet_gbps:
        ways.append(f"{duration(moved * 8 / (size.ethernet_gbps * 1e9))} over Ethernet at {size.ethernet_gbps:g} Gb/s")
    if not ways:
        return ""
    return f"one exchange of all gradients moves {moved / 1e9:,.0f} GB through each node: at least {', '.join(ways)}"

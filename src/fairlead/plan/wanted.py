"""What writers are asked for: the cluster file, joined with the facts of each pool's VM size. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable

from msgspec import Struct

from fairlead.base.nodeset import NodeSet
from fairlead.plan.table import PlanTable
from fairlead.spec.contract import contract_of
from fairlead.spec.layout import Layout, layout_of
from fairlead.spec.model import Fabric, Spec
from fairlead.spec.vmsize import VmSize

RACK_NODES = 18
"""Nodes of an NVL72 rack with 4 GPUs each (NVIDIA GB200 NVL72; Azure ND GB200 and GB300 v6)."""


class PoolWanted(Struct, frozen=True, kw_only=True):
    """One pool."""

    name: str
    nodes: NodeSet
    size: VmSize
    """The VM size with what the cluster file says of it laid over; None stays None."""

    @property
    def gpus(self) -> int:
        """GPUs of a node; 0 also where nobody says."""
        return self.size.gpus or 0

    @property
    def ports(self) -> int:
        """RDMA ports of a node; 0 also where nobody says."""
        return self.size.hca_ports or 0

    @property
    def layout(self) -> Layout | None:
        """Where its devices sit."""
        return layout_of(self.size.name)

    @property
    def gpu_resource(self) -> str:
        """The extended resource that a device plugin offers GPUs as."""
        return "amd.com/gpu" if self.size.gpu_vendor == "amd" else "nvidia.com/gpu"

    @property
    def is_infiniband(self) -> bool:
        """Whether its RDMA ports are known to be InfiniBand."""
        return bool(self.size.rdma) and self.size.link_layer == "infiniband" and self.ports > 0

    @property
    def is_rack(self) -> bool:
        """Whether an NVLink fabric joins nodes of a rack."""
        return self.size.fabric_manager == "external"


class Wanted(Struct, frozen=True, kw_only=True):
    """A cluster, and what shall be written for it."""

    cluster: str
    pools: tuple[PoolWanted, ...]
    said: PlanTable
    fabric: Fabric
    partition: str = ""

    @property
    def gpu_vendors(self) -> tuple[str, ...]:
        """Makers of GPUs in it."""
        return tuple(sorted({p.size.gpu_vendor for p in self.pools if p.gpus and p.size.gpu_vendor}))

    @property
    def has_rdma(self) -> bool:
        """Whether any pool has InfiniBand."""
        return any(p.is_infiniband for p in self.pools)

    @property
    def network(self) -> str:
        """How pods get RDMA ports, with `auto` resolved."""
        if self.said.network != "auto":
            return self.said.network if self.has_rdma else "none"
        return network_for(self.pools)

    @property
    def topology(self) -> str:
        """Slurm's topology, with `auto` resolved."""
        if self.said.topology != "auto":
            return self.said.topology
        return "block" if any(p.is_rack for p in self.pools) else "tree" if len(self.nodes) > 1 else "none"

    @property
    def nodes(self) -> NodeSet:
        """All nodes."""
        return NodeSet(name for p in self.pools for name in p.nodes)

    @property
    def resource_group(self) -> str:
        """The Azure resource group."""
        return self.said.resource_group or f"rg-{self.cluster}"


def network_for(pools: Iterable[PoolWanted]) -> str:
    """What `auto` is: dra where ports have no net device, by which plugins tell InfiniBand; else sriov, or none."""
    fast = [p for p in pools if p.is_infiniband]
    if not fast:
        return "none"
    return "dra" if any(p.size.port_netdevs is False for p in fast) else "sriov"


def wanted_of(spec: Spec) -> Wanted:
    """What writers are asked for by a cluster file."""
    pools = tuple(
        PoolWanted(name=pool.name, nodes=pool.nodes, size=contract_of(spec, pool))
        for pool in spec.pools
        if pool.size not in ("lab", "other")
    )
    return Wanted(
        cluster=spec.cluster.name,
        pools=pools,
        said=spec.table(PlanTable),
        fabric=spec.fabric,
        partition=spec.table("slurm").partition,
    )


class Planned(Struct, frozen=True, kw_only=True):
    """A file to write."""

    path: str
    """Below the folder of the plan, with `/`."""
    text: str
    about: str
    """One line for people."""
    executable: bool = False


def least_nodes_of(pool: PoolWanted) -> int:
    """Nodes of a test between nodes: two, or one where the pool has no more."""
    return min(2, len(pool.nodes))


def memory_mib(pool: PoolWanted, slack: float = 0.05) -> int | None:
    """Memory that Slurm may count on, in MiB: as sold, less what a guest does not see (5 %); None where nobody says."""
    gib = pool.size.memory_gib
    return None if gib is None else math.floor(gib * 1024 * (1 - slack))

"""Everything for one cluster on Kubernetes, as files in the order to apply; and every kind of cluster, for tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product

from msgspec import Struct

from fairlead.base.nodeset import NodeSet
from fairlead.plan.kubernetes import dra, gpu, jobs, nic
from fairlead.plan.kubernetes.parts import EXCLUSIVE, NAMESPACE, SHARED, Manifest, namespace, versions
from fairlead.plan.kubernetes.topology import topology_map
from fairlead.plan.table import Drivers, Network, PlanTable
from fairlead.plan.wanted import PoolWanted, Wanted
from fairlead.spec.model import Fabric
from fairlead.spec.vmsize import VmSize, sizes

RESOURCES = ("nvidia.com/gpu", "amd.com/gpu", EXCLUSIVE, SHARED)
"""Extended resources that the pods ask for."""


class Part(Struct, frozen=True, kw_only=True):
    """A file: objects to apply together, or values of a chart."""

    path: str
    about: str
    objects: tuple[Manifest, ...] = ()
    chart: str = ""
    """`nvidia/gpu-operator`: then the one object is its values, and nothing to apply."""


class Variant(Struct, frozen=True, kw_only=True):
    """A cluster's manifests."""

    name: str
    about: str
    parts: tuple[Part, ...]

    @property
    def objects(self) -> tuple[Manifest, ...]:
        """Everything to apply, in order."""
        return tuple(made for part in self.parts if not part.chart for made in part.objects)

    @property
    def values(self) -> Mapping[str, Manifest]:
        """Chart to Helm values."""
        return {part.chart: part.objects[0] for part in self.parts if part.chart}

    @property
    def files(self) -> Mapping[str, str]:
        """Path to YAML text. Needs the extra `plan`."""
        from fairlead.plan.kubernetes.emit import to_yaml

        return {part.path: to_yaml(part.objects, head=part.about) for part in self.parts}


def variant_of(wanted: Wanted, name: str = "") -> Variant:
    """The manifests of one cluster."""
    parts = [*_namespaces(wanted), *_network(wanted), *_gpus(wanted), *_tests(wanted)]
    about = f"{wanted.network} network, {wanted.said.gpu_driver} driver, " + ", ".join(
        p.size.name for p in wanted.pools
    )
    return Variant(name=name or wanted.cluster, about=about, parts=tuple(parts))


def variants() -> Iterator[Variant]:
    """Every RDMA size with every network and driver it can have, MIG and time slicing; and a size without RDMA."""
    for size in _whole_sizes():
        pool = PoolWanted(name="pool", nodes=NodeSet("n-[0-3]"), size=size)
        drivers: tuple[Drivers, ...] = ("operator", "aks", "managed") if size.gpu_vendor == "nvidia" else ("operator",)
        for network, driver in product(_networks(pool), drivers):
            yield _of(pool, PlanTable(network=network, gpu_driver=driver))
        if size.gpu_vendor == "nvidia":
            yield _of(pool, PlanTable(mig="all-1g.10gb"))
            yield _of(pool, PlanTable(time_slices=4, registry="mirror.example.com", api_server="isolated"))


def _whole_sizes() -> list[VmSize]:
    """Sizes of interest: one that shares a machine with fewer cores says nothing new."""
    fast = [s for s in sizes().values() if s.rdma and s.link_layer == "infiniband" and "-" not in s.name]
    return [*fast, *(s for s in sizes().values() if s.name.startswith("Standard_NC144ds"))]


def _networks(pool: PoolWanted) -> tuple[Network, ...]:
    if not pool.is_infiniband:
        return ("none",)
    if pool.size.port_netdevs is False:  # device plugins would not find them
        return ("host", "dra")
    return ("sriov", "shared", "host", "dra", *(("ipoib",) if pool.layout is not None else ()))


def _of(pool: PoolWanted, said: PlanTable) -> Variant:
    extras = [f"mig-{said.mig}" if said.mig else "", f"slices-{said.time_slices}" if said.time_slices > 1 else ""]
    wanted = Wanted(cluster="test", pools=(pool,), said=said, fabric=Fabric())
    words = [pool.size.name.removeprefix("Standard_"), wanted.network, said.gpu_driver, *filter(None, extras)]
    return variant_of(wanted, "-".join(words))


def _namespaces(wanted: Wanted) -> Iterator[Part]:
    names = ["network-operator"] if _has_operator(wanted) else []
    names += ["gpu-operator"] if _has_gpu_operator(wanted) else []
    names += ["gpu-resources"] if _has_peermem(wanted) else []
    names += [gpu.AMD_NAMESPACE] if "amd" in wanted.gpu_vendors else []
    made = [namespace(name, privileged=True) for name in names]
    made.append(namespace(NAMESPACE, privileged=True))  # pods with IPC_LOCK are beyond the baseline level
    about = "Namespaces. Pod security admits privileged pods where drivers are installed and memory is locked."
    yield Part(path="kubernetes/00-namespaces.yaml", about=about, objects=tuple(made))


def _network(wanted: Wanted) -> Iterator[Part]:
    if not wanted.has_rdma:
        return
    fast = [p for p in wanted.pools if p.is_infiniband]
    if _has_operator(wanted):
        version = versions()["network-operator"]["chart"]
        about = f"Values of the chart nvidia/network-operator, version {version}."
        yield Part(
            path="kubernetes/10-network-operator.values.yaml",
            about=about,
            objects=(gpu.network_values(),),
            chart="nvidia/network-operator",
        )
        about = (
            "Nodes with an InfiniBand port: maker and PCI class, as an accelerated Ethernet port has the same maker."
        )
        yield Part(path="kubernetes/11-node-feature-rule.yaml", about=about, objects=(nic.node_rule(),))
        about = f"Driver and device plugin for the network `{wanted.network}`; versions of one release."
        yield Part(path="kubernetes/12-nic-cluster-policy.yaml", about=about, objects=(nic.policy(wanted),))
    if wanted.network == "ipoib":
        about = "The second network of pods. Its range overlaps none of [plan] networks, nor Azure's RDMA range."
        objects = tuple(nic.ipoib_network(wanted, fast[0]))
        yield Part(path="kubernetes/13-ipoib-network.yaml", about=about, objects=objects)
    if wanted.network == "dra":
        about = (
            "RDMA ports as DRANET publishes them. Needs Kubernetes 1.34, and DRANET with --move-ib-interfaces=false."
        )
        objects = (dra.device_class(), *(dra.claim(pool) for pool in fast))
        yield Part(path="kubernetes/13-dra.yaml", about=about, objects=objects)


def _gpus(wanted: Wanted) -> Iterator[Part]:
    if _has_gpu_operator(wanted):
        if wanted.said.time_slices > 1:
            about = "Time slicing: pods share a GPU in turns; memory and faults are not kept apart."
            yield Part(path="kubernetes/20-time-slicing.yaml", about=about, objects=(gpu.slices(wanted),))
        version = versions()["gpu-operator"]["chart"]
        about = f"Values of the chart nvidia/gpu-operator, version {version}. " + _driver_words(wanted)
        yield Part(
            path="kubernetes/21-gpu-operator.values.yaml",
            about=about,
            objects=(gpu.nvidia_values(wanted),),
            chart="nvidia/gpu-operator",
        )
    if _has_peermem(wanted):
        about = "AKS's own driver leaves nvidia-peermem out, which GPUDirect RDMA needs."
        yield Part(path="kubernetes/22-nvidia-peermem.yaml", about=about, objects=(gpu.peermem(wanted),))
    if "amd" in wanted.gpu_vendors:
        version = versions()["amd-gpu-operator"]["chart"]
        about = f"Values of the chart rocm/gpu-operator-charts, version {version}. It needs cert-manager."
        yield Part(
            path="kubernetes/23-amd-gpu-operator.values.yaml",
            about=about,
            objects=(gpu.amd_values(wanted),),
            chart="rocm/gpu-operator-charts",
        )
        about = "AMD GPUs with the driver that is there: the node image's, or installed before."
        yield Part(path="kubernetes/24-amd-device-config.yaml", about=about, objects=(gpu.amd_config(wanted),))


def _tests(wanted: Wanted) -> Iterator[Part]:
    for pool in wanted.pools:
        topology = topology_map(pool)
        if topology is not None:
            about = (
                f"NCCL's topology file of {pool.size.name}, from its PCI places ({pool.layout.source})."
                if pool.layout
                else ""
            )
            yield Part(path=f"kubernetes/30-topology-{pool.name}.yaml", about=about, objects=(topology,))
        if pool.gpus:
            about = "The first proof: one GPU, listed by a pod."
            yield Part(path=f"kubernetes/40-gpu-{pool.name}.yaml", about=about, objects=(gpu.gpu_pod(wanted, pool),))
        if pool.is_infiniband and wanted.network != "ipoib" and len(pool.nodes) > 1:
            about = "RDMA between two nodes, port by port as the pod gets them: ib_write_bw."
            objects = tuple(jobs.rdma_pair(wanted, pool))
            yield Part(path=f"kubernetes/41-rdma-{pool.name}.yaml", about=about, objects=objects)
        if pool.gpus and not wanted.said.mig:
            about = "An all-reduce over all GPUs and ports of two nodes, every value checked. Needs the MPI operator."
            yield Part(
                path=f"kubernetes/42-allreduce-{pool.name}.yaml", about=about, objects=(jobs.allreduce(wanted, pool),)
            )


def _has_operator(wanted: Wanted) -> bool:
    return wanted.has_rdma and wanted.network in ("sriov", "shared", "ipoib", "host")


def _has_gpu_operator(wanted: Wanted) -> bool:
    """AKS's managed experience brings plugin and metrics itself; with AKS's driver the operator brings the rest."""
    return "nvidia" in wanted.gpu_vendors and wanted.said.gpu_driver != "managed"


def _has_peermem(wanted: Wanted) -> bool:
    return "nvidia" in wanted.gpu_vendors and wanted.has_rdma and wanted.said.gpu_driver != "operator"


def _driver_words(wanted: Wanted) -> str:
    if wanted.said.gpu_driver == "operator":
        return "The driver is the operator's: the node pool must be made with --gpu-driver none."
    return "The driver and the container toolkit are AKS's: the operator must install neither."

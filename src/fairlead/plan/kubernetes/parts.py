"""Parts that several manifests share: names, labels, tolerations, pod templates. Pure; objects are plain dicts."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from importlib import resources
from typing import Any

from fairlead.plan.wanted import PoolWanted, Wanted

Manifest = dict[str, Any]

NAMESPACE = "fairlead-test"
NIC_LABEL = "feature.node.kubernetes.io/pci-15b3.present"
"""The label by which the network operator finds its nodes (pkg/nodeinfo/attributes.go); our own rule sets it only where
there is an InfiniBand port, so that an accelerated Ethernet port of the same maker does not count."""
SHARED, EXCLUSIVE = "rdma/shared_ib", "rdma/ib"
IPOIB_NETWORK = "infiniband"

TOLERATIONS: list[Manifest] = [
    {"key": "sku", "operator": "Equal", "value": "gpu", "effect": "NoSchedule"},
    {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
    {"key": "amd.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
]
"""Of the taints that GPU pools have: AKS documentation's sku=gpu, and those of the makers' operators."""


@functools.cache
def versions() -> Mapping[str, Mapping[str, str]]:
    """Operators and images by name."""
    text = resources.files("fairlead.plan.kubernetes").joinpath("versions.toml").read_text("utf-8")
    return tomllib.loads(text)


def image(name: str, wanted: Wanted) -> str:
    """An image, from the site's own registry where it has one."""
    return mirrored(versions()[name]["image"], wanted)


def mirrored(whole: str, wanted: Wanted) -> str:
    """The same image in the site's own registry: the path is kept, the host exchanged."""
    host, _, path = whole.partition("/")
    return f"{wanted.said.registry}/{path}" if wanted.said.registry and "." in host else whole


def meta(name: str, namespace: str = NAMESPACE, **labels: str) -> Manifest:
    """Metadata; no namespace for what has none."""
    made: Manifest = {"name": name}
    if namespace:
        made["namespace"] = namespace
    if labels:
        made["labels"] = {key.replace("__", "/").replace("_", "-"): value for key, value in labels.items()}
    return made


def namespace(name: str, *, privileged: bool) -> Manifest:
    """A namespace; operators install drivers, so theirs must admit privileged pods."""
    made: Manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    if privileged:
        made["metadata"]["labels"] = {"pod-security.kubernetes.io/enforce": "privileged"}
    return made


def amounts(wanted: Wanted, pool: PoolWanted, *, gpus: bool = True) -> dict[str, int]:
    """Extended resources of a pod that takes a whole node: every GPU, and every RDMA port or a slot of shared ones."""
    found: dict[str, int] = {}
    if gpus and pool.gpus:
        found[pool.gpu_resource] = pool.gpus * (wanted.said.time_slices if pool.size.gpu_vendor == "nvidia" else 1)
    if pool.is_infiniband and wanted.network == "sriov":
        found[EXCLUSIVE] = pool.ports
    elif pool.is_infiniband and wanted.network == "shared":
        found[SHARED] = 1
    return found


def security(wanted: Wanted) -> Manifest:
    """A pod locks memory for RDMA; without a plugin it needs the host's devices as well."""
    return {"privileged": True} if wanted.network == "host" else {"capabilities": {"add": ["IPC_LOCK"]}}


def nccl_env(wanted: Wanted, pool: PoolWanted) -> dict[str, str]:
    """NCCL's settings in a pod. With IPoIB its sockets go by the second interface, and RDMA is not offered."""
    by_ip = wanted.network == "ipoib" and pool.is_infiniband
    env = {
        "NCCL_SOCKET_IFNAME": "net1" if by_ip else "eth0",
        "NCCL_IB_DISABLE": "0" if pool.is_infiniband and not by_ip else "1",
        "NCCL_DEBUG": "INFO",
    }
    if pool.is_infiniband and not by_ip and pool.gpus:
        env["NCCL_NET_GDR_LEVEL"] = "SYS"
    if pool.layout is not None and pool.gpus:
        env |= {"NCCL_TOPO_FILE": "/opt/topology/topo.xml", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    if pool.size.gpu_vendor == "amd":
        env["RCCL_MSCCL_ENABLE"] = "0"
    return env


def worker_pod(
    wanted: Wanted, pool: PoolWanted, container: Manifest, *, spread_by: Mapping[str, str], gpus: bool = True
) -> Manifest:
    """A pod that takes a node of a pool for itself; `spread_by` are labels of its like, of which a node has one.

    With `gpus` it has all GPUs and NCCL's topology file; all RDMA ports it has always.
    """
    gpus = gpus and pool.gpus > 0
    volumes: list[Manifest] = [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}}]
    mounts: list[Manifest] = [{"name": "shm", "mountPath": "/dev/shm"}]  # noqa: S108 - the pod's own, in memory
    if pool.layout is not None and gpus:
        volumes.append({"name": "topology", "configMap": {"name": topology_name(pool)}})
        mounts.append({"name": "topology", "mountPath": "/opt/topology"})
    asked = {key: str(num) for key, num in amounts(wanted, pool, gpus=gpus).items()}
    filled = {**container, "securityContext": security(wanted), "volumeMounts": mounts}
    if asked:
        filled["resources"] = {"requests": asked, "limits": asked}
    claims: list[Manifest] = []
    if pool.is_infiniband and wanted.network == "dra":
        claims.append({"name": "ports", "resourceClaimTemplateName": claim_name(pool)})
        filled.setdefault("resources", {})["claims"] = [{"name": "ports"}]
    term = {"labelSelector": {"matchLabels": dict(spread_by)}, "topologyKey": "kubernetes.io/hostname"}
    pod: Manifest = {
        "nodeSelector": {"node.kubernetes.io/instance-type": pool.size.name},
        "tolerations": TOLERATIONS,
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}},
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        "containers": [filled],
        "volumes": volumes,
    }
    if claims:
        pod["resourceClaims"] = claims
    return pod


def second_network(wanted: Wanted, pool: PoolWanted) -> dict[str, str]:
    """The second network of a pod, where IP over InfiniBand is wanted."""
    if wanted.network != "ipoib" or not pool.is_infiniband:
        return {}
    return {"k8s.v1.cni.cncf.io/networks": IPOIB_NETWORK}


def topology_name(pool: PoolWanted) -> str:
    """The ConfigMap with NCCL's topology file of a pool."""
    return f"topology-{pool.name}"


def claim_name(pool: PoolWanted) -> str:
    """The template of a claim for all RDMA ports of a node."""
    return f"ports-{pool.name}"

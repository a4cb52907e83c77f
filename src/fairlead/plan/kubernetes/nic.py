"""The RDMA side: which nodes, which driver, which device plugin, which second network. Pure.

NVIDIA's network operator takes one NicClusterPolicy; the plugins read their `config` as a JSON text within it.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterable
from typing import Any

from fairlead.errors import UsageError
from fairlead.plan.kubernetes.parts import IPOIB_NETWORK, NAMESPACE, NIC_LABEL, Manifest, mirrored, versions
from fairlead.plan.wanted import PoolWanted, Wanted
from fairlead.spec.layout import layouts

MELLANOX, INFINIBAND_CLASS = "15b3", "0207"
"""PCI vendor id, and the class of an InfiniBand controller: an accelerated Ethernet port of the same maker is 0200."""
SLOTS = 63
"""Pods that may share the ports of a node: the number of Azure/aks-rdma-infiniband."""
RESERVED = "172.16.0.0/16"
"""The RDMA address space of Azure's InfiniBand (setup-infiniband.md): no other network may use it."""
SECOND_NETWORKS = ("192.168.0.0/16", "198.18.0.0/16", "100.80.0.0/16")
"""Ranges that a second network of pods may have; the first that overlaps nothing is taken."""


def node_rule() -> Manifest:
    """Labels nodes that have an InfiniBand port of this vendor."""
    rule = {
        "name": "infiniband",
        "labels": {NIC_LABEL: "true"},
        "matchFeatures": [
            {
                "feature": "pci.device",
                "matchExpressions": {
                    "vendor": {"op": "In", "value": [MELLANOX]},
                    "class": {"op": "In", "value": [INFINIBAND_CLASS]},
                },
            }
        ],
    }
    return {
        "apiVersion": "nfd.k8s-sigs.io/v1alpha1",
        "kind": "NodeFeatureRule",
        "metadata": {"name": "infiniband"},
        "spec": {"rules": [rule]},
    }


def policy(wanted: Wanted) -> Manifest:
    """The NicClusterPolicy: the driver, and the plugin of the network that is wanted."""
    spec: Manifest = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": NIC_LABEL, "operator": "In", "values": ["true"]}]}]
            }
        },
        "tolerations": [{"key": "sku", "operator": "Equal", "value": "gpu", "effect": "NoSchedule"}],
        "ofedDriver": _driver(wanted),
    }
    link = {"vendors": [MELLANOX], "linkTypes": ["infiniband"]}
    if wanted.network == "sriov":
        row: dict[str, Any] = {"resourcePrefix": "rdma", "resourceName": "ib", "selectors": {**link, "isRdma": True}}
        spec["sriovDevicePlugin"] = _part(wanted, "sriov-network-device-plugin", {"resourceList": [row]})
    elif wanted.network in ("shared", "ipoib"):
        row = {"resourcePrefix": "rdma", "resourceName": "shared_ib", "rdmaHcaMax": SLOTS, "selectors": link}
        spec["rdmaSharedDevicePlugin"] = _part(wanted, "k8s-rdma-shared-dev-plugin", {"configList": [row]})
    if wanted.network == "ipoib":
        spec["nvIpam"] = {**_part(wanted, "nvidia-k8s-ipam"), "enableWebhook": False}
        spec["secondaryNetwork"] = {
            "cniPlugins": _part(wanted, "plugins"),
            "multus": _part(wanted, "multus-cni"),
            "ipoib": _part(wanted, "ipoib-cni"),
        }
    return {
        "apiVersion": "mellanox.com/v1alpha1",
        "kind": "NicClusterPolicy",
        "metadata": {"name": "nic-cluster-policy"},
        "spec": spec,
    }


def ipoib_network(wanted: Wanted, pool: PoolWanted) -> list[Manifest]:
    """IP over InfiniBand for pods: a range that overlaps nothing in use, and the network on the first port of the size.

    Addresses are the network operator's own (nv-ipam): it brings no whereabouts any more.
    """
    found = free_range(wanted.said.networks)
    addresses = {
        "apiVersion": "nv-ipam.nvidia.com/v1alpha1",
        "kind": "IPPool",
        "metadata": {"name": IPOIB_NETWORK, "namespace": "network-operator"},
        "spec": {"subnet": str(found), "perNodeBlockSize": SLOTS + 1, "gateway": str(found[1])},
    }
    ipam = json.dumps({"type": "nv-ipam", "poolName": IPOIB_NETWORK}, indent=2) + "\n"
    network = {
        "apiVersion": "mellanox.com/v1alpha1",
        "kind": "IPoIBNetwork",
        "metadata": {"name": IPOIB_NETWORK},
        "spec": {"networkNamespace": NAMESPACE, "master": ipoib_netdev(pool), "ipam": ipam},
    }
    return [addresses, network]


def ipoib_netdev(pool: PoolWanted) -> str:
    """The network device of the first port, as systemd names it by its PCI place (`ib` P domain p bus s slot).

    Raises UsageError (`plan/no-ipoib`) for a size whose PCI places no source names.
    """
    if pool.layout is None:
        known = sorted(size for layout in layouts() for size in layout.sizes)
        raise UsageError(
            "plan/no-ipoib",
            f"no source names the InfiniBand device of {pool.size.name}, which IP over InfiniBand needs",
            hint=f'[plan] network = "sriov", or a size of: {", ".join(known)}',
        )
    return netdev_name(pool.layout.first_port)


def netdev_name(address: str) -> str:
    """The name that systemd gives an InfiniBand port at a PCI address (systemd.net-naming-scheme).

    >>> netdev_name("0101:00:00.0")
    'ibP257p0s0'
    """
    domain, bus, rest = address.split(":")
    slot, _, function = rest.partition(".")
    where = f"P{int(domain, 16)}" if int(domain, 16) else ""
    return f"ib{where}p{int(bus, 16)}s{int(slot, 16)}" + (f"f{function}" if function != "0" else "")


def free_range(taken: Iterable[str]) -> ipaddress.IPv4Network:
    """The first range for a second network that overlaps nothing. Raises UsageError (`plan/no-range`)."""
    used = [ipaddress.ip_network(text) for text in (*taken, RESERVED)]
    for text in SECOND_NETWORKS:
        found = ipaddress.IPv4Network(text)
        if not any(isinstance(other, ipaddress.IPv4Network) and found.overlaps(other) for other in used):
            return found
    raise UsageError(
        "plan/no-range",
        f"each of {', '.join(SECOND_NETWORKS)} overlaps a range in [plan] networks",
        hint="name narrower ranges there, or take another network than ipoib",
    )


def _driver(wanted: Wanted) -> Manifest:
    return {
        "repository": mirrored("nvcr.io/nvidia/mellanox", wanted),
        "image": "doca-driver",
        "version": versions()["network-operator"]["ofed"],
        # the blacklist must lie where the host's modprobe reads it, else a module of the kernel is loaded first
        "env": [{"name": "OFED_BLACKLIST_MODULES_FILE", "value": "/host/etc/modprobe.d/blacklist-ofed-modules.conf"}],
        "forcePrecompiled": False,
        "upgradePolicy": {
            "autoUpgrade": True,
            "maxParallelUpgrades": 1,
            "drain": {"enable": True, "force": True, "deleteEmptyDir": True, "timeoutSeconds": 300},
        },
        "startupProbe": {"initialDelaySeconds": 10, "periodSeconds": 20},
        "livenessProbe": {"initialDelaySeconds": 30, "periodSeconds": 30},
        "readinessProbe": {"initialDelaySeconds": 10, "periodSeconds": 30},
    }


def _part(wanted: Wanted, name: str, config: Manifest | None = None) -> Manifest:
    made = {
        "repository": mirrored("nvcr.io/nvidia/mellanox", wanted),
        "image": name,
        "version": versions()["network-operator"]["images"],
    }
    return made if config is None else {**made, "config": json.dumps(config, indent=2) + "\n"}

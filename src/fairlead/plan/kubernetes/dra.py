"""RDMA ports by dynamic resource allocation: DRANET publishes them, claims take them. Pure.

For ports without a network device, which device plugins cannot tell from Ethernet ones. `resource.k8s.io/v1` is in
Kubernetes 1.34 and newer; the attributes are DRANET's (kubernetes-sigs/dranet, site/content/docs/user/azure-aks.md).
"""

from __future__ import annotations

from fairlead.plan.kubernetes.parts import Manifest, claim_name, meta
from fairlead.plan.wanted import PoolWanted

CLASS = "rdma-port"


def device_class() -> Manifest:
    """Every RDMA device that DRANET publishes."""
    cel = 'device.driver == "dra.net" && device.attributes["dra.net"].rdma == true'
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": CLASS},
        "spec": {"selectors": [{"cel": {"expression": cel}}]},
    }


def claim(pool: PoolWanted) -> Manifest:
    """All ports of a node, of one placement group: VMs of two groups share no InfiniBand."""
    vm = f'device.attributes["azure.dra.net"].vmSize == "{pool.size.name}"'
    request = {
        "name": "ports",
        "exactly": {
            "deviceClassName": CLASS,
            "allocationMode": "ExactCount",
            "count": pool.ports,
            "selectors": [{"cel": {"expression": vm}}],
        },
    }
    same = {"requests": ["ports"], "matchAttribute": "azure.dra.net/placementGroupId"}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": meta(claim_name(pool)),
        "spec": {"spec": {"devices": {"requests": [request], "constraints": [same]}}},
    }

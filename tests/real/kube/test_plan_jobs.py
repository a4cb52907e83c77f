"""The test Jobs that `fairlead plan` writes, given to a real scheduler, and on one of two nodes to a real kubelet.

That node's device plugins hand out eight GPUs and eight InfiniBand ports; the other node is declared with as many. The
images are not here, so a pod gets as far as its image: bound, admitted, its devices allocated.
"""

from __future__ import annotations

import pytest

from fairlead.plan.kubernetes import variants
from support.kube.client import condition
from support.kube.crds import workers

pytestmark = [pytest.mark.real, pytest.mark.requires("kube", "kubelet")]

GPU, PORT, SLOT = "nvidia.com/gpu", "rdma/ib", "rdma/shared_ib"
SIZE = "Standard_ND96isr_H100_v5"
TAINT = {"key": "sku", "value": "gpu", "effect": "NoSchedule"}


@pytest.fixture(scope="module")
def written() -> dict[str, dict[str, list[dict]]]:
    """Kind to objects, of each kind of cluster."""
    found: dict[str, dict[str, list[dict]]] = {}
    for variant in variants():
        kinds = found.setdefault(variant.name, {})
        for made in variant.objects:
            kinds.setdefault(made["kind"], []).append(made)
    return found


@pytest.fixture(scope="module")
def pool(cluster, written):
    """Two nodes as a GPU pool of AKS has them."""
    from support.kube.plugin import DevicePlugin

    api, labels = cluster.api, {"node.kubernetes.io/instance-type": SIZE}
    cluster.declare_node("n2", {GPU: "8", PORT: "8"}, labels, [TAINT])
    mine = api.get("v1", "Node", "n1")
    with (
        DevicePlugin(cluster.plugins, GPU, 8, shown="/dev/nvidia", variable="NVIDIA_VISIBLE_DEVICES") as gpus,
        DevicePlugin(cluster.plugins, PORT, 8, shown="/dev/infiniband/uverbs", variable="RDMA_DEVICES") as ports,
    ):
        api.merge(mine, {"metadata": {"labels": labels}, "spec": {"taints": [TAINT]}})
        cluster.until(
            lambda: (cluster.allocatable().get(GPU), cluster.allocatable().get(PORT)) == ("8", "8"), "devices"
        )
        for kind in ("Namespace", "ConfigMap", "Service"):
            for made in written["ND96isr_H100_v5-sriov-operator"].get(kind, []):
                api.apply(made)
        cluster.namespace("fairlead-test")
        yield cluster, gpus, ports


def clear(cluster, *objects: dict) -> None:
    """Take away objects and all pods of the namespace."""
    for made in objects:
        cluster.api.delete(made, propagationPolicy="Background")
    for pod in cluster.api.list("v1", "Pod", "fairlead-test"):
        cluster.api.delete(pod, gracePeriodSeconds="0")
    cluster.until(lambda: not cluster.api.list("v1", "Pod", "fairlead-test"), "pods gone")


def placed(cluster, number: int) -> list[dict]:
    """So many pods, bound; the one on the real node has come to its image."""

    def seen() -> bool:
        found = cluster.api.list("v1", "Pod", "fairlead-test")
        if len(found) != number or not all(pod["spec"].get("nodeName") for pod in found):
            return False
        return all(waits_for_image(pod) for pod in found if pod["spec"]["nodeName"] == "n1")

    cluster.until(seen, f"{number} pods placed", 120)
    return cluster.api.list("v1", "Pod", "fairlead-test")


def waits_for_image(pod: dict) -> bool:
    rows = pod["status"].get("containerStatuses", [])
    return bool(rows) and rows[0]["state"].get("waiting", {}).get("reason") in ("ErrImagePull", "ImagePullBackOff")


def test_a_gpu_is_given_to_the_first_proof(pool, written):
    cluster, gpus, _ = pool
    job = next(
        made for made in written["ND96isr_H100_v5-sriov-operator"]["Job"] if "gpu-list" in made["metadata"]["name"]
    )
    # the other node is full, so that it is the real one
    full = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "full", "namespace": "fairlead-test"}}
    asked = {"limits": {GPU: "8"}}
    full["spec"] = {"nodeName": "n2", "containers": [{"name": "c", "image": "example.test/none:1", "resources": asked}]}
    cluster.api.apply(full)
    cluster.api.apply(job)
    found = placed(cluster, 2)
    assert {pod["spec"]["nodeName"] for pod in found} == {"n1", "n2"}
    assert len(gpus.given[-1]) == 1
    clear(cluster, job)


def test_the_two_sides_of_an_rdma_test_get_a_node_each_with_every_port(pool, written):
    cluster, _, ports = pool
    jobs = [made for made in written["ND96isr_H100_v5-sriov-operator"]["Job"] if "rdma-" in made["metadata"]["name"]]
    assert len(jobs) == 2
    for job in jobs:
        cluster.api.apply(job)
    found = placed(cluster, 2)
    assert {pod["spec"]["nodeName"] for pod in found} == {"n1", "n2"}
    assert ports.given[-1] == ports.ids
    clear(cluster, *jobs)


def test_the_workers_of_an_all_reduce_get_a_node_each_with_every_gpu_and_port(pool, written):
    cluster, gpus, ports = pool
    pods = workers(written["ND96isr_H100_v5-sriov-operator"]["MPIJob"][0])
    for pod in pods:
        cluster.api.apply(pod)
    found = placed(cluster, 2)
    assert {pod["spec"]["nodeName"] for pod in found} == {"n1", "n2"}
    assert (gpus.given[-1], ports.given[-1]) == (gpus.ids, ports.ids)
    clear(cluster)


@pytest.mark.parametrize(
    ("variant", "why"),
    [
        ("ND96isr_H100_v5-shared-operator", f"2 Insufficient {SLOT}."),  # the plugin of another network
        ("ND96amsr_A100_v4-sriov-operator", "2 node(s) didn't match Pod's node affinity."),  # another size
    ],
)
def test_what_no_node_has_stays_pending_with_the_reason(pool, written, variant, why):
    cluster, _, _ = pool
    pod = workers(written[variant]["MPIJob"][0])[0]
    cluster.api.apply(pod)
    waits = cluster.api.until(pod, lambda found: condition(found, "PodScheduled").get("status") == "False")
    assert waits["status"]["phase"] == "Pending"
    assert condition(waits, "PodScheduled")["message"] == f"0/2 nodes are available: {why}"
    clear(cluster)

"""A real scheduler and sixteen nodes of eight GPUs and eight InfiniBand ports, which are only declared.

What a Job asks for is what decides where it goes, or why it waits; the words are the scheduler's own.
"""

from __future__ import annotations

from collections import Counter

import pytest

from support.kube.client import condition

pytestmark = [pytest.mark.real, pytest.mark.requires("kube")]

GPU, PORT, SLOT = "nvidia.com/gpu", "rdma/ib", "rdma/shared_ib"
SIZE = "Standard_ND96isr_H100_v5"
TAINT = {"key": "sku", "value": "gpu", "effect": "NoSchedule"}
TOLERATES = {"key": "sku", "operator": "Equal", "value": "gpu", "effect": "NoSchedule"}
NODES = 16


@pytest.fixture(scope="module")
def pool(control):
    """As a GPU pool of AKS is: labelled with its size, and tainted so that only who means it gets there."""
    labels = {"node.kubernetes.io/instance-type": SIZE}
    for index in range(NODES):
        control.declare_node(f"gpu-{index:02}", {GPU: "8", PORT: "8"}, labels, [TAINT])
    control.declare_node("system-0", {})
    return control


def pods(number: int, asked: dict[str, str], *, tolerates: bool = True, alone: bool = False) -> dict:
    """The spec of a Job."""
    labels = {"app": "workers"}
    spec = {
        "restartPolicy": "Never",
        "nodeSelector": {"node.kubernetes.io/instance-type": SIZE},
        "tolerations": [TOLERATES] if tolerates else [],
        "containers": [
            {"name": "c", "image": "example.test/none:1", "resources": {"requests": asked, "limits": asked}}
        ],
    }
    if alone:
        term = {"labelSelector": {"matchLabels": labels}, "topologyKey": "kubernetes.io/hostname"}
        spec["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    return {"parallelism": number, "completions": number, "template": {"metadata": {"labels": labels}, "spec": spec}}


def place(control, name: str, spec: dict, bound: int, waiting: int) -> tuple[Counter, list[str]]:
    """Nodes with the number of pods they got, and why the others wait, once the scheduler has seen all."""
    control.namespace(name)
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job", "namespace": name}, "spec": spec}
    control.api.apply(job)

    def seen() -> bool:
        found = control.api.list("v1", "Pod", name)
        states = [condition(pod, "PodScheduled").get("status") for pod in found]
        return states.count("True") == bound and states.count("False") == waiting

    control.until(seen, f"{bound} pods placed and {waiting} waiting", 60)
    found = control.api.list("v1", "Pod", name)
    why = [condition(pod, "PodScheduled")["message"] for pod in found if not pod["spec"].get("nodeName")]
    nodes = Counter(pod["spec"]["nodeName"] for pod in found if pod["spec"].get("nodeName"))
    control.api.delete(job, propagationPolicy="Background")
    for pod in found:  # no kubelet says that it has ended
        control.api.delete(pod, gracePeriodSeconds="0")
    control.until(lambda: not control.api.list("v1", "Pod", name), "pods gone")
    return nodes, why


def test_workers_that_take_a_node_each_get_sixteen_nodes_and_the_next_one_waits(pool, fresh_name):
    nodes, why = place(pool, fresh_name, pods(NODES + 1, {GPU: "8", PORT: "8"}), bound=NODES, waiting=1)
    assert nodes == {f"gpu-{index:02}": 1 for index in range(NODES)}
    assert len(why) == 1
    assert f"{NODES} Insufficient {GPU}" in why[0]
    assert f"{NODES} Insufficient {PORT}" in why[0]


def test_gpus_without_their_ports_let_two_workers_share_a_node_unless_kept_apart(pool, fresh_name):
    together, _ = place(pool, f"{fresh_name}-a", pods(2 * NODES, {GPU: "4"}), bound=2 * NODES, waiting=0)
    assert set(together.values()) == {2}
    apart, why = place(pool, f"{fresh_name}-b", pods(NODES + 1, {GPU: "4"}, alone=True), bound=NODES, waiting=1)
    assert set(apart.values()) == {1}
    assert "didn't match pod affinity/anti-affinity" in why[0]


def test_without_the_toleration_the_taint_is_the_reason(pool, fresh_name):
    nodes, why = place(pool, fresh_name, pods(1, {GPU: "8"}, tolerates=False), bound=0, waiting=1)
    assert not nodes
    assert f"{NODES} node(s) had taint {{sku: gpu}}, that the pod didn't tolerate" in why[0]


@pytest.mark.parametrize("asked", [{SLOT: "1"}, {PORT: "9"}, {PORT: "1", SLOT: "1"}, {"nvidia.com/mig-1g.10gb": "1"}])
def test_what_no_node_has_is_named(pool, fresh_name, asked):
    nodes, why = place(pool, fresh_name, pods(1, asked), bound=0, waiting=1)
    assert not nodes
    lacking = SLOT if SLOT in asked else next(iter(asked))
    assert f"{NODES} Insufficient {lacking}" in why[0]

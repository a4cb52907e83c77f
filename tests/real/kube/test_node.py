"""A real kubelet with containers, and device plugins that advertise eight GPUs and eight InfiniBand ports to it."""

from __future__ import annotations

import pytest

from support.kube.client import Refused, condition
from support.processes import until

pytestmark = [pytest.mark.real, pytest.mark.requires("kube", "kubelet")]

GPU, PORT = "nvidia.com/gpu", "rdma/ib"
EIGHT = {GPU: "8", PORT: "8"}


@pytest.fixture(scope="module")
def plugins(cluster):
    from support.kube.plugin import DevicePlugin

    with (
        DevicePlugin(cluster.plugins, GPU, 8, shown="/dev/nvidia", variable="NVIDIA_VISIBLE_DEVICES") as gpus,
        DevicePlugin(cluster.plugins, PORT, 8, shown="/dev/infiniband/uverbs", variable="RDMA_DEVICES") as ports,
    ):
        cluster.until(lambda: has(cluster, "8", "8"), "devices on the node")
        yield gpus, ports


def has(cluster, gpus: str, ports: str) -> bool:
    found = cluster.allocatable()
    return (found.get(GPU), found.get(PORT)) == (gpus, ports)


def pod(name: str, script: str, asked: dict[str, str] | None = None, **more: object) -> dict:
    from support.kube.node import IMAGE

    container = {"name": "c", "image": IMAGE, "imagePullPolicy": "Never", "command": ["sh", "-c", script]}
    container |= {"resources": {"limits": asked or {}}, **more.pop("container", {})}
    spec = {
        "restartPolicy": "Never",
        "dnsPolicy": "Default",
        "terminationGracePeriodSeconds": 0,
        "containers": [container],
        **more,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": spec}


def outcome(cluster, what: dict) -> tuple[str, str]:
    """How a pod ended and what it printed; the pod is gone then."""
    cluster.api.apply(what)
    ended = cluster.api.until(what, lambda found: found["status"].get("phase") in ("Succeeded", "Failed"), 120)
    said = cluster.api.ask("GET", cluster.api.path(what) + "/log")
    remove(cluster, what)
    return ended["status"]["phase"], said


def remove(cluster, what: dict) -> None:
    cluster.api.delete(what, gracePeriodSeconds="0")

    def is_gone() -> bool:
        try:
            cluster.api.ask("GET", cluster.api.path(what))
        except Refused as error:
            return error.status == 404
        return False

    assert until(is_gone, 60)


def test_a_pod_gets_all_eight_of_both_and_the_next_one_waits_with_the_reason(cluster, plugins):
    gpus, ports = plugins
    script = "echo $NVIDIA_VISIBLE_DEVICES; echo $RDMA_DEVICES; ls /dev/nvidia* /dev/infiniband/*; sleep 3600"
    first, second = pod("whole", script, EIGHT), pod("more", "true", {GPU: "1"})
    cluster.api.apply(first)
    cluster.api.until(first, lambda found: found["status"].get("phase") == "Running", 120)
    assert until(lambda: cluster.api.ask("GET", cluster.api.path(first) + "/log").count("\n") >= 18)
    said = cluster.api.ask("GET", cluster.api.path(first) + "/log").split()
    assert said[:2] == [",".join(gpus.ids), ",".join(ports.ids)]
    assert said[2:] == sorted([f"/dev/nvidia{i}" for i in range(8)] + [f"/dev/infiniband/uverbs{i}" for i in range(8)])
    cluster.api.apply(second)
    waits = cluster.api.until(second, lambda found: condition(found, "PodScheduled").get("status") == "False")
    assert waits["status"]["phase"] == "Pending"
    assert condition(waits, "PodScheduled")["reason"] == "Unschedulable"
    assert condition(waits, "PodScheduled")["message"] == f"0/1 nodes are available: 1 Insufficient {GPU}."
    # as soon as the node is free again, it runs
    remove(cluster, first)
    ended = cluster.api.until(second, lambda found: found["status"].get("phase") == "Succeeded", 120)
    assert ended["spec"]["nodeName"] == "n1"
    assert len(gpus.given[-1]) == 1
    remove(cluster, second)


def test_a_device_that_is_lost_leaves_the_node_with_seven(cluster, plugins):
    gpus, _ = plugins
    gpus.set_health(gpus.ids[3], is_healthy=False)
    cluster.until(lambda: has(cluster, "7", "8"), "seven GPUs")
    whole = pod("lost", "true", EIGHT)
    cluster.api.apply(whole)
    waits = cluster.api.until(whole, lambda found: condition(found, "PodScheduled").get("status") == "False")
    assert condition(waits, "PodScheduled")["message"] == f"0/1 nodes are available: 1 Insufficient {GPU}."
    gpus.set_health(gpus.ids[3], is_healthy=True)
    cluster.api.until(whole, lambda found: found["status"].get("phase") == "Succeeded", 120)
    remove(cluster, whole)


def test_what_kubectl_says_of_the_node_is_judged(cluster, plugins, tmp_path):
    """Eight of eight, seven of eight and the reason, from the words of a real kubelet."""
    import shutil
    import subprocess

    from fairlead.plan.lint.judge import lint_paths

    kubectl = shutil.which("kubectl")
    if not kubectl:
        pytest.skip("needs kubectl: see kubernetes.io/docs/tasks/tools")
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}
    size = {"node.kubernetes.io/instance-type": "Standard_ND96isr_H100_v5"}
    cluster.api.merge(node, {"metadata": {"labels": size}})

    def said() -> list[tuple[str, str]]:
        words = [kubectl, f"--kubeconfig={cluster.config('admin')}", "get", "nodes,pods", "-A", "-o", "json"]
        run = subprocess.run(words, capture_output=True, text=True, timeout=60)
        (tmp_path / "cluster.json").write_text(run.stdout)
        found = lint_paths([tmp_path / "cluster.json"]).findings
        return [(f.verdict.value, f.message) for f in found if f.code == "plan/node-resources"]

    gpus, _ = plugins
    cluster.until(lambda: has(cluster, "8", "8"), "eight of both")
    ((verdict, _),) = said()
    assert verdict == "pass"
    gpus.set_health(gpus.ids[3], is_healthy=False)
    cluster.until(lambda: has(cluster, "7", "8"), "seven GPUs")
    ((verdict, message),) = said()
    gpus.set_health(gpus.ids[3], is_healthy=True)
    cluster.until(lambda: has(cluster, "8", "8"), "eight of both")
    assert verdict == "fail"
    assert "1 of 8 are not healthy" in message


def test_a_plugin_that_is_gone_leaves_no_device(cluster):
    from support.kube.plugin import DevicePlugin

    with DevicePlugin(cluster.plugins, "rdma/shared_ib", 63, shown="/dev/infiniband/shared", variable="SLOT"):
        cluster.until(lambda: cluster.allocatable().get("rdma/shared_ib") == "63", "63 slots")
    cluster.until(lambda: cluster.allocatable().get("rdma/shared_ib") == "0", "no slot")


def test_memory_can_be_locked_with_the_capability_and_shared_memory_is_as_large_as_asked(cluster, plugins):
    shm = {
        "container": {
            "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
            "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
        },
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}],
    }
    script = "cat /proc/self/status /proc/mounts"
    bounding = {}
    for name, more in (("with", shm), ("without", {})):
        phase, said = outcome(cluster, pod(name, script, {PORT: "1"}, **more))
        assert phase == "Succeeded"
        bits = int(next(line.split()[1] for line in said.splitlines() if line.startswith("CapEff")), 16)
        size = next(line for line in said.splitlines() if " /dev/shm " in line)
        bounding[name] = (bool(bits >> 14 & 1), "size=65536k" in size)  # CAP_IPC_LOCK, capability.h
    assert bounding == {"with": (True, False), "without": (False, True)}


def test_a_container_that_fails_is_a_pod_that_failed(cluster):
    phase, said = outcome(cluster, pod("fails", "echo no luck; false"))
    assert (phase, said) == ("Failed", "no luck\n")


def test_kubectl_talks_to_the_node_through_the_server(cluster):
    """What `kubectl exec` and `kubectl logs` need: server to kubelet to container, by certificates of the test."""
    import shutil
    import subprocess

    kubectl = shutil.which("kubectl")
    if not kubectl:
        pytest.skip("needs kubectl: see kubernetes.io/docs/tasks/tools")
    target = pod("talks", "echo here; sleep 3600")
    cluster.api.apply(target)
    cluster.api.until(target, lambda found: found["status"].get("phase") == "Running", 120)
    words = [kubectl, f"--kubeconfig={cluster.config('admin')}"]
    said = subprocess.run([*words, "exec", "talks", "--", "ls", "/dev"], capture_output=True, text=True, timeout=60)
    assert "null" in said.stdout.split(), said.stderr
    said = subprocess.run([*words, "logs", "talks"], capture_output=True, text=True, timeout=60)
    assert said.stdout == "here\n", said.stderr
    remove(cluster, target)

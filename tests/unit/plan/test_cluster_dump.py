"""What an API server says of nodes and operators: well, not well, and not to be told.

States and fields: Kubernetes' API reference and its page on device plugins; NVIDIA's network operator (issue 557: a
policy whose label no node has is notReady) and GPU operator (issue 1310: states of a ClusterPolicy that are not ready).
"""

from __future__ import annotations

import json

import pytest
import yaml

from fairlead.plan.lint.judge import lint_paths
from fairlead.plan.lint.read import DUMP_BYTES
from fairlead.records.verdict import Verdict
from support.traps import LIVE

NODE, POLICY, DAEMONS, POD = 0, 2, 3, 4
HAS, IS_READY = "plan/node-resources", "plan/operator-ready"


def judged(tmp_path, change=list, extra="", name="cluster.json", pad=0):
    whole = yaml.safe_load(LIVE["cluster.yaml"])
    change(whole["items"])
    (tmp_path / name).write_text(json.dumps(whole) + " " * pad)
    if extra:
        (tmp_path / "policy.yaml").write_text(extra)
    return lint_paths([tmp_path]).findings


def of(findings, code):
    return [f for f in findings if f.code == code]


def offers(**amounts):
    def change(items):
        for which in ("allocatable", "capacity"):
            for name, amount in amounts.items():
                key = {"gpu": "nvidia.com/gpu", "ib": "rdma/ib", "shared": "rdma/shared_ib"}[name]
                items[NODE]["status"][which].pop(key, None)
                if amount is not None:
                    items[NODE]["status"][which][key] = str(amount)

    return change


def test_what_holds_passes_and_is_counted(tmp_path):
    findings = judged(tmp_path)
    assert {f.code: f.verdict for f in findings} == {HAS: Verdict.PASS, IS_READY: Verdict.PASS}
    assert of(findings, IS_READY)[0].message.startswith("4 looked at")


@pytest.mark.parametrize(
    ("amounts", "said"),
    [
        ({"gpu": 7}, "offers 7, and Standard_ND96isr_H100_v5 has 8 GPUs"),
        ({"gpu": None}, "offers 0, and Standard_ND96isr_H100_v5 has 8 GPUs"),
        ({"ib": 7}, "offers 7, and Standard_ND96isr_H100_v5 has 8 RDMA ports"),
        ({"ib": 0}, "offers 0"),
        ({"ib": None, "shared": 0}, "offers 0, and each slot gives all ports"),
    ],
)
def test_a_node_with_fewer_fails_by_name(tmp_path, amounts, said):
    (found,) = of(judged(tmp_path, offers(**amounts)), HAS)
    assert found.verdict is Verdict.FAIL
    assert "aks-gpu-10001234-vmss000000" in found.message
    assert said in found.message


def test_a_selector_that_takes_the_ethernet_function_too_is_named(tmp_path):
    """Azure/aks-rdma-infiniband's sriov.yaml selects by linkTypes; by vendor alone a node has nine."""
    policy = """
apiVersion: mellanox.com/v1alpha1
kind: NicClusterPolicy
metadata: {name: nic-cluster-policy}
spec:
  sriovDevicePlugin:
    config: |
      {"resourceList": [{"resourcePrefix": "rdma", "resourceName": "ib", "selectors": {"vendors": ["15b3"]}}]}
"""
    (found,) = of(judged(tmp_path, offers(ib=9), policy), HAS)
    assert (found.verdict, "Ethernet" in found.message) == (Verdict.FAIL, True)


def slices(items):
    items[NODE]["metadata"]["labels"]["nvidia.com/gpu.replicas"] = "4"
    offers(gpu=32)(items)


def mig(items):
    items[NODE]["metadata"]["labels"]["nvidia.com/gpu.product"] = "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb"
    offers(gpu=56)(items)


def unlabelled(items):
    del items[NODE]["metadata"]["labels"]["node.kubernetes.io/instance-type"]


def other_size(items):
    items[NODE]["metadata"]["labels"]["node.kubernetes.io/instance-type"] = "Standard_ND999_v9"


def silent(items):
    items[NODE]["status"] = {}


def gone(items):
    items[NODE]["status"]["conditions"][1]["status"] = "Unknown"  # as the node controller sets it


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        (slices, Verdict.PASS),  # time slicing offers replicas of each GPU
        (offers(ib=None, shared=63), Verdict.PASS),
        (mig, Verdict.SKIP),
        (offers(ib=None), Verdict.SKIP),  # by claims (DRA), perhaps
        (unlabelled, Verdict.UNKNOWN),
        (other_size, Verdict.UNKNOWN),
        (silent, Verdict.UNKNOWN),
        (gone, Verdict.UNKNOWN),
        (offers(ib=63), Verdict.UNKNOWN),  # ports, or slots of a plugin that nothing describes
    ],
)
def test_what_cannot_be_told_never_fails_and_never_passes(tmp_path, change, verdict):
    assert {f.verdict for f in of(judged(tmp_path, change), HAS)} == {verdict}


def published(devices, *, of=1, generation=3, basic=False):
    """A slice as Kubernetes' API reference and NVIDIA's driver have it, of a node that offers no resource."""
    kinds = [
        {"attributes": {"type": {"string": kind}, "uuid": {"string": f"GPU-{i}"}}} for i, kind in enumerate(devices)
    ]

    def change(items):
        offers(gpu=0)(items)
        name = items[NODE]["metadata"]["name"]
        rows = [{"name": f"gpu-{i}", **({"basic": kind} if basic else kind)} for i, kind in enumerate(kinds)]
        spec = {"driver": "gpu.nvidia.com", "nodeName": name, "devices": rows}
        spec["pool"] = {"name": name, "generation": generation, "resourceSliceCount": of}
        version = "resource.k8s.io/v1beta1" if basic else "resource.k8s.io/v1"
        meta = {"name": f"{name}-gpu.nvidia.com-{generation}", "uid": f"u{generation}"}
        items.append({"apiVersion": version, "kind": "ResourceSlice", "metadata": meta, "spec": spec})

    return change


def older_too(items):
    published(["gpu"] * 7, generation=2)(items)
    published(["gpu"] * 8)(items)


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        (published(["gpu"] * 8), Verdict.PASS),
        (published(["gpu"] * 8, basic=True), Verdict.PASS),
        (older_too, Verdict.PASS),
        (published(["gpu"] * 7), Verdict.FAIL),
        (published(["gpu"] * 7, of=2), Verdict.UNKNOWN),
        (published(["mig"] * 14), Verdict.SKIP),
    ],
)
def test_gpus_that_claims_give_count_by_their_slices(tmp_path, change, verdict):
    assert {f.verdict for f in of(judged(tmp_path, change), HAS)} == {verdict}


def with_driver(items):
    offers(gpu=None)(items)
    meta = {"name": "nvidia-dra-driver-gpu-kubelet-plugin", "namespace": "nvidia", "uid": "u"}
    items.append({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": meta, "spec": {}, "status": {}})


def nodes_alone(items):
    offers(gpu=None)(items)
    items[:] = [made for made in items if made["kind"] == "Node"]


@pytest.mark.parametrize("change", [with_driver, nodes_alone])
def test_without_slices_nobody_knows_what_claims_give(tmp_path, change):
    (found,) = of(judged(tmp_path, change), HAS)
    assert found.verdict is Verdict.UNKNOWN
    assert "resourceslices" in found.remedy


def crash(items):
    items[POD]["status"]["conditions"][1]["status"] = "False"
    items[POD]["status"]["containerStatuses"][0] |= {
        "ready": False,
        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s restarting failed container"}},
    }


def unscheduled(items):
    message = "0/17 nodes are available: 17 node(s) didn't match Pod's node affinity/selector."
    items[POD]["status"] = {
        "phase": "Pending",
        "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}],
    }


def evicted(kind, node):
    """An evicted pod stays, Failed, until the garbage collector comes; its owner has made another one elsewhere."""

    def change(items):
        old = json.loads(json.dumps(items[POD]))
        old["metadata"] |= {"name": "operator-old", "uid": "9"}
        old["spec"]["nodeName"] = node
        old["status"] = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}
        for pod in (items[POD], old):
            pod["metadata"]["ownerReferences"] = [{"kind": kind, "name": "operator-7d9f"}]
        items.append(old)

    return change


def test_an_evicted_pod_counts_only_where_none_could_take_its_place(tmp_path):
    (found,) = of(judged(tmp_path, evicted("ReplicaSet", "another")), IS_READY)
    assert found.verdict is Verdict.PASS
    (found,) = of(judged(tmp_path, evicted("DaemonSet", "another")), IS_READY)
    assert (found.verdict, "Evicted" in found.message) == (Verdict.FAIL, True)


def few_daemons(items):
    items[DAEMONS]["status"]["numberReady"] = 14


def policy_waits(items):
    items[POLICY]["status"] = {"state": "notReady", "appliedStates": [{"name": "state-OFED", "state": "notReady"}]}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (crash, "CrashLoopBackOff"),
        (unscheduled, "Unschedulable 0/17"),
        (few_daemons, "14 of 16 pods are ready"),
        (policy_waits, "state-OFED notReady"),
    ],
)
def test_an_operator_that_is_not_ready_fails_with_the_reason(tmp_path, change, said):
    (found,) = of(judged(tmp_path, change), IS_READY)
    assert (found.verdict, said in found.message) == (Verdict.FAIL, True)
    assert found.remedy.startswith("kubectl describe")


@pytest.mark.parametrize("which", [POLICY, DAEMONS, POD])
def test_an_operator_that_says_nothing_is_unknown(tmp_path, which):
    (found,) = of(judged(tmp_path, lambda items: items[which].pop("status")), IS_READY)
    assert found.verdict is Verdict.UNKNOWN


def test_a_pod_that_ended_and_was_replaced_is_no_fault(tmp_path):
    def change(items):
        items.append(json.loads(json.dumps(items[POD])))
        items[-1]["metadata"] |= {"name": "nvidia-device-plugin-daemonset-old", "uid": "1"}
        items[-1]["status"] = {"phase": "Failed", "reason": "Evicted"}

    assert [f.verdict for f in of(judged(tmp_path, change), IS_READY)] == [Verdict.PASS]


def test_manifests_are_not_asked_what_only_a_server_knows(tmp_path):
    """A DaemonSet of a file has no uid and no status: nothing is said of it."""
    (tmp_path / "ds.yaml").write_text(
        "apiVersion: apps/v1\nkind: DaemonSet\nmetadata: {name: mofed-ds, namespace: network-operator}\n"
    )
    assert of(lint_paths([tmp_path]).findings, IS_READY) == []


def test_a_list_of_the_server_itself_names_no_kind_in_its_items(tmp_path):
    """As `curl .../api/v1/nodes` and client libraries print it."""
    nodes = [i for i in yaml.safe_load(LIVE["cluster.yaml"])["items"] if i["kind"] == "Node"]
    for node in nodes:
        del node["kind"], node["apiVersion"]
    (tmp_path / "nodes.json").write_text(json.dumps({"kind": "NodeList", "apiVersion": "v1", "items": nodes}))
    assert [f.verdict for f in of(lint_paths([tmp_path]).findings, HAS)] == [Verdict.PASS]


def test_a_large_dump_is_judged_alike(tmp_path):
    small = judged(tmp_path, crash)
    large = judged(tmp_path, crash, pad=DUMP_BYTES)
    assert [(f.code, f.verdict, f.message) for f in small] == [(f.code, f.verdict, f.message) for f in large]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("{" + " " * DUMP_BYTES, 1),
        ("{\n" + " " * DUMP_BYTES + '\n"a": nope}', 3),
        ("[" * DUMP_BYTES + "]", 0),
        ('{"a": ' * 300 + "1" + "}" * 300 + " " * DUMP_BYTES, 0),
        ('{"a": ' + "9" * DUMP_BYTES + "}", 0),
    ],
)
def test_a_large_dump_that_is_junk_is_refused_with_its_place(tmp_path, text, line):
    (tmp_path / "x.json").write_text(text)
    (found,) = lint_paths([tmp_path]).findings
    assert (found.code, found.verdict, found.data["line"]) == ("plan/yaml", Verdict.UNKNOWN, line)

"""Nodes through Kubernetes: which pod stands for a node, and what kubectl's complaints mean.

What kubectl says is what kubectl 1.32 printed against an API server of 1.20, and the messages of client-go. Commands in
pods of a real kubelet: tests/real/cluster.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from fairlead.base.nodeset import NodeSet
from fairlead.cluster.kubernetes import KubernetesBackend
from fairlead.cluster.protocol import State
from fairlead.cluster.table import Kubernetes
from fairlead.errors import ClusterError, MissingTool


def pod(name: str, node: str = "", phase: str = "Running", *, deleted: bool = False, containers: str = "c") -> dict:
    """As `kubectl get pods --output=json` has it, with some of what is not read."""
    meta = {"name": name, "namespace": "default", "labels": {"app": "x"}}
    meta |= {"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleted else {}
    spec = {"containers": [{"name": each, "image": "i"} for each in containers.split()], "dnsPolicy": "Default"}
    spec |= {"nodeName": node} if node else {}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": {"phase": phase}}


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A kubectl that lists these pods; returns what `ready` refuses and the backend, then what kubectl was asked."""

    def ask(pods: object, nodes: str, *, status: int = 0, err: str = "", **settings: str):
        said = pods if isinstance(pods, str) else json.dumps({"apiVersion": "v1", "kind": "List", "items": pods})
        (tmp_path / "said").write_text(said)
        (tmp_path / "err").write_text(err)
        program = tmp_path / "bin" / "kubectl"
        program.parent.mkdir(exist_ok=True)
        program.write_text(
            f'#!/bin/sh\necho "$@" > {tmp_path}/argv\ncat {tmp_path}/said\ncat {tmp_path}/err >&2\nexit {status}\n'
        )
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
        backend = KubernetesBackend(Kubernetes(**settings))
        refused = asyncio.run(backend.ready(NodeSet(nodes)))
        return backend, {node: str(why.error) for node, why in refused.items()}, (tmp_path / "argv").read_text()

    return ask


def test_a_daemonset_a_job_and_a_kubeconfig_of_ones_own(asked):
    pods = [pod("agent-x7k2p", "gpu-0"), pod("worker-1", "gpu-9"), pod("agent-q", "gpu-1", containers="main log")]
    backend, refused, argv = asked(pods, "gpu-[0-1],worker-1", namespace="jobs", selector="app=x", context="aks")
    assert refused == {}
    assert argv.split()[:8] == ["--context", "aks", "--namespace", "jobs", "get", "pods", "--selector", "app=x"]
    into = ["kubectl", "--context", "aks", "--namespace", "jobs", "exec", "--stdin"]
    assert backend.wrap("gpu-0", ["a b"]) == [*into, "agent-x7k2p", "--container", "c", "--", "a b"]
    assert backend.wrap("gpu-1", ["x"]) == [*into, "agent-q", "--container", "main", "--", "x"]
    assert backend.wrap("worker-1", ["x"])[7] == "worker-1"


def test_the_container_that_was_asked_for(asked):
    backend, _, _ = asked([pod("p", "n1", containers="main log")], "n1", container="log")
    assert backend.wrap("n1", ["x"])[-3:] == ["log", "--", "x"]


@pytest.mark.parametrize(("annotation", "container"), [("log", "log"), ("gone", "main")])
def test_the_container_that_the_pod_names_comes_before_its_first(asked, annotation, container):
    made = pod("p", "n1", containers="main log")
    made["metadata"]["annotations"] = {"kubectl.kubernetes.io/default-container": annotation}
    backend, _, _ = asked([made], "n1")
    assert backend.wrap("n1", ["x"])[-3:] == [container, "--", "x"]


def test_no_pod_is_two_nodes(asked):
    backend, refused, _ = asked([pod("worker-0", "gpu-3"), pod("p", "gpu-4")], "gpu-[3-4],worker-0")
    assert list(refused) == ["gpu-3"]
    assert "worker-0, is a node of the cluster file itself" in refused["gpu-3"]
    assert backend.wrap("worker-0", ["x"])[4:6] == ["--stdin", "worker-0"]


@pytest.mark.parametrize(
    "odd",
    [pod("--help", "n1"), pod("a/b", "n1"), pod("p", "n1", containers=""), pod("p", "n1", containers="-x")],
)
def test_what_no_api_server_says_goes_into_no_command(asked, odd):
    with pytest.raises(ClusterError, match="is no list of pods"):
        asked([odd], "n1")


@pytest.mark.parametrize(
    ("pods", "says"),
    [
        ([], "no pod that fits has its name or stands on it"),
        ([pod("p", "n2")], "no pod that fits has its name or stands on it"),
        ([pod("p", "n1"), pod("q", "n1")], "2 pods that fit stand on it: p, q"),
        ([pod("p", "n1", "Pending")], "its pod p is Pending"),
        ([pod("p", "n1", "Succeeded")], "its pod p is Succeeded"),
        ([pod("p", "n1", deleted=True)], "its pod p is being deleted"),
        # a pod of that name is meant, wherever it stands, and however well another one is
        ([pod("n1", "n7", "Failed"), pod("p", "n1")], "its pod n1 is Failed"),
    ],
)
def test_a_node_without_one_pod_is_refused_with_the_reason(asked, pods, says):
    _, refused, _ = asked(pods, "n1")
    assert refused == {"n1": says}


def test_an_old_pod_that_goes_does_not_hide_the_new_one(asked):
    backend, refused, _ = asked(
        [pod("old", "n1", deleted=True), pod("done", "n1", "Succeeded"), pod("new", "n1")], "n1"
    )
    assert refused == {}
    assert "new" in backend.wrap("n1", ["x"])


@pytest.mark.parametrize(
    ("said", "status", "err"),
    [
        ("", 1, "Unable to connect to the server: dial tcp 10.0.0.1:443: i/o timeout"),
        ("", 1, 'Error from server (Forbidden): pods is forbidden: User "u" cannot list resource "pods"'),
        ("no JSON", 0, ""),
        ('{"items": [{"metadata": {}}]}', 0, ""),
        ('{"items": 7}', 0, ""),
    ],
)
def test_where_kubernetes_says_nothing_the_command_to_type_is_named(asked, said, status, err):
    with pytest.raises(ClusterError) as caught:
        asked(said, "n1", status=status, err=err)
    assert caught.value.code == "cluster/kubernetes-silent"
    assert caught.value.hint.startswith("kubectl --namespace default get pods")
    assert err in str(caught.value)


def test_without_kubectl(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingTool):
        asyncio.run(KubernetesBackend(Kubernetes()).ready(NodeSet("n1")))


@pytest.mark.parametrize(
    ("said", "rc", "error"),
    [
        ('Error from server (NotFound): pods "p" not found', 1, "its pod is gone"),
        (('Error from server (Forbidden): pods "p" is forbidden: User "u" cannot create resource "pods/exec" in API '
         'group "" in the namespace "default"'), 1, "you may not run things in pods there"),
        ('error: unable to upgrade connection: container not found ("c")', 1, "its container does not run"),
        ("error: cannot exec into a container in a completed pod; current phase is Succeeded", 1,
         "its container does not run"),
        ("Error from server: error dialing backend: dial tcp 10.1.0.4:10250: connect: connection refused", 1,
         "the API server does not reach its kubelet"),
        ("The connection to the server localhost:8080 was refused - did you specify the right host or port?", 1,
         "the API server does not answer"),
        ("Unable to connect to the server: net/http: TLS handshake timeout", 1, "the API server does not answer"),
        ("error: You must be logged in to the server (Unauthorized)", 1, "the API server does not know you"),
        (('error: Internal error occurred: error executing command in container: failed to exec in container: failed '
         'to start exec: OCI runtime exec failed: exec failed: unable to start container process: exec: "python3": '
         'executable file not found in $PATH: unknown'), 1, None),
        ("", 137, None),
    ],
)  # fmt: skip
def test_what_kubectl_says_when_a_node_cannot_be_used(said, rc, error):
    why = KubernetesBackend(Kubernetes()).explain("n1", rc, said)
    if error:
        assert (why.state, why.error) == (State.UNREACHABLE, error)
    elif "python3" in said:
        assert why.state is State.FAILED
        assert why.error.startswith("no Python to run there")
    else:
        assert why.state is State.UNREACHABLE
        assert why.error

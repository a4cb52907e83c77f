"""What Kubernetes needs for a model on every node: pods that hold the folder, and a Job that fills it. Pure.

The pods of a DaemonSet stand on the cluster file's nodes and do nothing by themselves. The Job runs `fairlead weights
spread` through them with the cluster file as it is: what it may do is `kubectl exec` into pods of its namespace. Pods
that use the model mount the same folder of the node, read-only, and an init container holds them until it is there.
kubernetes.io/docs: DaemonSet, Job, "Using RBAC Authorization", "Pod Security Standards" (a folder of the node takes a
namespace that admits more than `baseline`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from importlib import resources
from typing import Any

import msgspec

from fairlead.cluster.table import Kubernetes
from fairlead.errors import UsageError

Manifest = dict[str, Any]

_PAIR = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_./]{0,315})={1,2}([A-Za-z0-9][-A-Za-z0-9_.]{0,62})\Z")
FILE = "/etc/fairlead/cluster.toml"
VOLUME = "fairlead-model"
"""Of the init container, too, in pods of users: no name of theirs."""
_WAITS = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); signal.pause()"
"""What a pod of the DaemonSet does. As process 1 it would not hear SIGTERM otherwise."""
TOLERATIONS: list[Manifest] = [
    {"key": "sku", "operator": "Equal", "value": "gpu", "effect": "NoSchedule"},
    {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
    {"key": "amd.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
]
"""Of the taints that GPU pools have: AKS documentation's sku=gpu, and those of the makers' operators."""


class Wished(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be spread, and by what."""

    source: str
    dest: str
    """A folder of every node, and of the pods."""
    image: str
    """Has Python, fairlead with its extra `weights`, and kubectl."""
    secret: str = ""
    """A Secret whose keys are the origin's credentials, as environment of the Job alone; empty: none."""
    only: str = ""
    """The nodes, where they are not all of the cluster file."""
    host_network: bool = False
    name: str = "weights"


def labels_of(selector: str) -> dict[str, str]:
    """The labels that a pod needs to be chosen. Raises UsageError for a selector that says more than that.

    >>> labels_of("app=weights,team=ml")
    {'app': 'weights', 'team': 'ml'}
    """
    found = [_PAIR.match(each.strip()) for each in selector.split(",")]
    if not all(found):
        text = f"[kubernetes] selector {selector!a} names no labels that pods could be given"
        raise UsageError("cli/usage", text, hint='selector = "app=weights"')
    return {pair[1]: pair[2] for pair in found if pair}


def objects(wished: Wished, settings: Kubernetes, nodes: Sequence[str], cluster_file: str) -> dict[str, list[Manifest]]:
    """The objects by the file they stand in, in the order to apply them. Raises UsageError."""
    if settings.context:
        text = f"a Job has no kubeconfig, and [kubernetes] names the context {settings.context!a}"
        raise UsageError("cli/usage", text, hint="leave it out, and choose it by `kubectl config use-context`")
    labels = labels_of(settings.selector)
    meta = {"name": wished.name, "namespace": settings.namespace}
    return {
        "10-nodes.yaml": [_daemons(wished, settings, meta, labels, nodes)],
        "20-access.yaml": _access(meta),
        "30-spread.yaml": [
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"cluster.toml": cluster_file}},
            _job(wished, meta, len(nodes)),
        ],
    }


def _daemons(
    wished: Wished, settings: Kubernetes, meta: Manifest, labels: dict[str, str], nodes: Sequence[str]
) -> Manifest:
    names = {"key": "metadata.name", "operator": "In"}
    terms = [{"matchFields": [{**names, "values": [node]}]} for node in nodes]  # the API takes one name a term
    container = {
        "name": settings.container or "node",
        "image": wished.image,
        "command": ["python3", "-c", _WAITS],
        "resources": {"requests": {"cpu": "100m", "memory": "512Mi"}},
        "securityContext": {"allowPrivilegeEscalation": False},
        "volumeMounts": [{"name": "model", "mountPath": wished.dest}],
    }
    pod: Manifest = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}},
        "tolerations": TOLERATIONS,
        "containers": [container],
        "volumes": [{"name": "model", "hostPath": {"path": wished.dest, "type": "DirectoryOrCreate"}}],
    }
    if wished.host_network:
        pod |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": meta,
        "spec": {
            "selector": {"matchLabels": labels},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "100%"}},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def held(wished: Wished, users: Sequence[Any], root: str = "") -> list[Any]:
    """The same objects, whose pods mount the model read-only and begin only when it is there: a Pod, or whatever has
    templates of pods (Deployment, Job, StatefulSet, LeaderWorkerSet, PyTorchJob, ...). With `root` of one version, that
    one. Changes `users` in place, and what was held before is held once. Raises UsageError where there is no pod.
    """
    pods = [pod for each in users for pod in pods_of(each)]
    if not pods:
        raise UsageError("cli/usage", "there is no pod in it", hint="a Pod, Deployment, Job, StatefulSet, ...")
    source = resources.files("fairlead.weights.onnode").joinpath("held_back.py").read_text(encoding="utf-8")
    mount = {"name": VOLUME, "mountPath": wished.dest, "readOnly": True}
    first = {
        "name": VOLUME,
        "image": wished.image,
        "command": ["python3", "-c", source, wished.dest, *([root] if root else [])],
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}},
        # our folder in DEST is its owner's alone
        "securityContext": {"runAsUser": 0, "allowPrivilegeEscalation": False},
        "volumeMounts": [mount],
    }
    volume = {"name": VOLUME, "hostPath": {"path": wished.dest, "type": "DirectoryOrCreate"}}
    for pod in pods:
        pod["initContainers"] = [first, *_others(pod.get("initContainers"))]
        pod["volumes"] = [*_others(pod.get("volumes")), volume]
        for container in pod["containers"]:
            there = container.get("volumeMounts") or []
            container["volumeMounts"] = [m for m in there if m.get("mountPath") != wished.dest] + [mount]
    return list(users)


def pods_of(made: Any) -> Iterator[Manifest]:
    """Every specification of a pod in an object, whatever its kind: what has a list of containers."""
    if isinstance(made, dict):
        if isinstance(made.get("containers"), list) and all(isinstance(c, dict) for c in made["containers"]):
            yield made
            return
        for value in made.values():
            yield from pods_of(value)
    elif isinstance(made, list):
        for value in made:
            yield from pods_of(value)


def _others(there: Any) -> list[Any]:
    return [each for each in there or [] if each.get("name") != VOLUME]


def _access(meta: Manifest) -> list[Manifest]:
    """The Job lists pods of its namespace and runs programs in them, and nothing else."""
    rules = [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]},
        # kubectl opens exec by WebSocket (GET) since 1.31, by SPDY (POST) before
        {"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["get", "create"]},
    ]
    group = "rbac.authorization.k8s.io"
    account = {"kind": "ServiceAccount", "name": meta["name"], "namespace": meta["namespace"]}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta},
        {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": meta, "rules": rules},
        {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": meta,
            "subjects": [account],
            "roleRef": {"apiGroup": group, "kind": "Role", "name": meta["name"]},
        },
    ]


def _job(wished: Wished, meta: Manifest, num_nodes: int) -> Manifest:
    words = ["fairlead", "weights", "spread", wished.source, wished.dest, "-f", FILE]
    words += ["-w", wished.only] if wished.only else []
    container: Manifest = {
        "name": "spread",
        "image": wished.image,
        # its run folder lies in the image's own home: a volume of the pod is open to everybody, and refused
        "command": words,
        # a connection to each node, and a process of kubectl to keep it
        "resources": {"requests": {"cpu": "1", "memory": f"{256 + 48 * num_nodes}Mi"}},
        "securityContext": {"allowPrivilegeEscalation": False},
        "volumeMounts": [
            # the file alone: the folder of a ConfigMap is open to everybody, and what lies there is not trusted
            {"name": "cluster", "mountPath": FILE, "subPath": "cluster.toml", "readOnly": True}
        ],
    }
    if wished.secret:
        container["envFrom"] = [{"secretRef": {"name": wished.secret}}]
    pod = {
        "serviceAccountName": meta["name"],
        "enableServiceLinks": False,
        "restartPolicy": "Never",
        "containers": [container],
        "volumes": [{"name": "cluster", "configMap": {"name": meta["name"]}}],
    }
    # a run that was ended goes on where it was, so trying again costs what is missing
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": meta,
        "spec": {"backoffLimit": 3, "template": {"spec": pod}},
    }

"""A closed site's objects of Kubernetes: pure. The model in the image, or on a share that is mounted read-only.

kubernetes.io/docs: "Configure Liveness, Readiness and Startup Probes", "Network Policies", "Persistent Volumes";
docs.vllm.ai, "Using Kubernetes". The two ways are those that sites without a way out publish.
"""

from __future__ import annotations

import math
import re
from pathlib import PurePosixPath
from typing import Any

import msgspec

from fairlead.errors import UsageError
from fairlead.serve.image import OFFLINE

Manifest = dict[str, Any]

PORT = 8000
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,50}[a-z0-9])?\Z")
_DIGEST = re.compile(r"[^@\s]+@sha256:[0-9a-f]{64}\Z")
_CACHE = "/cache"
_PROBE_S = 10
_END_S = 30
"""What is left for an engine after its answers, before the kubelet kills it."""


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """Where the weights lie for all nodes."""

    server: str = ""
    """Of NFS; empty where every node has it mounted already."""
    path: str
    """That the server exports, or that every node sees: the folder of the bundle."""
    size_bytes: int


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """What is to run."""

    name: str
    """What clients call the model."""
    image: str
    """REPOSITORY@sha256:..."""
    command: tuple[str, ...] = ()
    """The server; empty: `vllm serve` of the model."""
    at: str
    """The model's folder, in the image or below the share."""
    share: Share | None = None
    gpus: int = 1
    """Of one server: its tensors are split over them."""
    replicas: int = 1
    namespace: str = "models"
    key_secret: str = ""
    """A Secret with `VLLM_API_KEY`, which somebody else makes; empty: none."""
    patience_s: float
    """How long it may load."""
    drain_s: float
    """How long answers go on after SIGTERM."""


def share_of(said: str, size_bytes: int) -> Share:
    """`SERVER:/EXPORT`, or `/PATH` that every node has. Raises UsageError.

    >>> share_of("10.0.0.4:/share/llama", 5).server, share_of("/mnt/lustre/llama", 5).path
    ('10.0.0.4', '/mnt/lustre/llama')
    """
    server, _, path = said.rpartition(":") if not said.startswith("/") else ("", "", said)
    if not path.startswith("/") or ".." in PurePosixPath(path).parts or any(c.isspace() for c in said):
        hint = "--share 10.0.0.4:/share/llama, or --share /mnt/lustre/llama where all nodes have it mounted"
        raise UsageError("cli/usage", f"{said!a} is no share", hint=hint)
    return Share(server=server, path=path, size_bytes=size_bytes)


def objects(served: Served) -> dict[str, list[Manifest]]:
    """The objects by the file they stand in, in the order to apply them. Raises UsageError."""
    if not _DIGEST.match(served.image):
        text = f"{served.image!a} names no image by its digest"
        raise UsageError("cli/usage", text, hint="registry.site/vllm@sha256:...: tags can be moved")
    name = label(served.name)
    found = {"10-network-policy.yaml": [_policy(name, served)]}
    if served.share is not None:
        found["20-share.yaml"] = [_volume(name, served, served.share), _claim(name, served, served.share)]
    return found | {"30-deployment.yaml": [_deployment(name, served)], "40-service.yaml": [_service(name, served)]}


def label(name: str) -> str:
    """A model's name as Kubernetes takes it (RFC 1123). Raises UsageError.

    >>> label("Meta-Llama-3.1-8B")
    'meta-llama-3-1-8b'
    """
    made = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    if not _LABEL.match(made):
        raise UsageError("cli/usage", f"Kubernetes takes no name like {name!a}", hint="--name llama")
    return made


def command_of(served: Served) -> list[str]:
    """How the server starts in its container: no shell is involved."""
    if served.command:
        return list(served.command)
    split = ["--tensor-parallel-size", str(served.gpus)] if served.gpus > 1 else []
    listen = ["--host", "0.0.0.0", "--port", str(PORT)]  # noqa: S104 - inside the pod; the policy says who may come
    return ["vllm", "serve", served.at, "--served-model-name", served.name, *listen, *split]


def _meta(name: str, served: Served, **more: Any) -> Manifest:
    return {"name": name, "namespace": served.namespace, "labels": {"app": name}, **more}


def _deployment(name: str, served: Served) -> Manifest:
    mounts: list[Manifest] = [
        {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - of the container
        {"name": "cache", "mountPath": _CACHE},
        {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108
    ]
    volumes: list[Manifest] = [
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}},
        {"name": "cache", "emptyDir": {}},
        {"name": "tmp", "emptyDir": {}},
    ]
    if served.share is not None:
        mounts.append({"name": "model", "mountPath": served.at, "subPath": "model", "readOnly": True})
        volumes.append({"name": "model", "persistentVolumeClaim": {"claimName": name, "readOnly": True}})
    health = {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": _PROBE_S, "timeoutSeconds": 5}
    container = {
        "name": "server",
        "image": served.image,
        "imagePullPolicy": "IfNotPresent",
        "command": command_of(served),
        "env": _env(served),
        "ports": [{"name": "http", "containerPort": PORT, "protocol": "TCP"}],
        "resources": {"limits": {"nvidia.com/gpu": str(served.gpus)}} if served.gpus else {},
        "startupProbe": {**health, "failureThreshold": math.ceil(served.patience_s / _PROBE_S)},
        "readinessProbe": {**health, "failureThreshold": 1},
        "livenessProbe": {**health, "failureThreshold": 6},
        "securityContext": {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True},
        "volumeMounts": mounts,
    }
    pod = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": math.ceil(served.drain_s) + _END_S,
        "tolerations": [
            {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
            {"key": "sku", "operator": "Equal", "value": "gpu", "effect": "NoSchedule"},
        ],
        "containers": [container],
        "volumes": volumes,
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _meta(name, served),
        "spec": {
            "replicas": served.replicas,
            # the GPUs of the old server are those of the new one
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
            "progressDeadlineSeconds": math.ceil(served.patience_s) + math.ceil(served.drain_s) + 2 * _END_S,
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": pod},
        },
    }


def _env(served: Served) -> list[Manifest]:
    """No call to the outside, caches where something may be written, and a key only by the name of its Secret."""
    caches = {"HF_HOME": f"{_CACHE}/hf", "VLLM_CACHE_ROOT": f"{_CACHE}/vllm", "XDG_CACHE_HOME": _CACHE}
    more = {"VLLM_HOST_IP": "127.0.0.1", "HOME": _CACHE}
    rows: list[Manifest] = [{"name": key, "value": value} for key, value in (OFFLINE | caches | more).items()]
    if served.key_secret:
        key = {"secretKeyRef": {"name": served.key_secret, "key": "VLLM_API_KEY"}}
        rows.append({"name": "VLLM_API_KEY", "valueFrom": key})
    return rows


def _service(name: str, served: Served) -> Manifest:
    inside = {"service.beta.kubernetes.io/azure-load-balancer-internal": "true"}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _meta(name, served, annotations=inside),
        "spec": {
            "type": "LoadBalancer",
            "selector": {"app": name},
            "ports": [{"name": "http", "port": 80, "targetPort": "http", "protocol": "TCP"}],
        },
    }


def _policy(name: str, served: Served) -> Manifest:
    """Questions come in; nothing goes out, names are not asked for either."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _meta(name, served),
        "spec": {
            "podSelector": {"matchLabels": {"app": name}},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"ports": [{"port": PORT, "protocol": "TCP"}]}],
            "egress": [],
        },
    }


def _volume(name: str, served: Served, share: Share) -> Manifest:
    if share.server:
        source: Manifest = {"nfs": {"server": share.server, "path": share.path, "readOnly": True}}
        source["mountOptions"] = ["ro", "nfsvers=4.1", "hard"]
    else:
        source = {"hostPath": {"path": share.path, "type": "Directory"}}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"{served.namespace}-{name}", "labels": {"app": name}},
        "spec": {
            "capacity": {"storage": str(max(1, share.size_bytes))},
            "accessModes": ["ReadOnlyMany"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "",
            "claimRef": {"name": name, "namespace": served.namespace},
            **source,
        },
    }


def _claim(name: str, served: Served, share: Share) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": _meta(name, served),
        "spec": {
            "accessModes": ["ReadOnlyMany"],
            "storageClassName": "",
            "volumeName": f"{served.namespace}-{name}",
            "resources": {"requests": {"storage": str(max(1, share.size_bytes))}},
        },
    }

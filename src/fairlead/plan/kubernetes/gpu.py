"""The GPU side: Helm values of the GPU Operator, MIG and time slicing, drivers of AKS, AMD's operator. Pure."""

from __future__ import annotations

import json

from fairlead.plan.kubernetes.parts import TOLERATIONS, Manifest, meta, mirrored, versions
from fairlead.plan.wanted import PoolWanted, Wanted

SLICES = "time-slicing"
AMD_NAMESPACE = "kube-amd-gpu"


def nvidia_values(wanted: Wanted) -> Manifest:
    """Values for the chart nvidia/gpu-operator.

    NFD comes with the network operator where that is installed, and would run twice. The driver is the operator's own
    only if AKS installed none; with AKS's the operator must not replace the container toolkit either.
    """
    own = wanted.said.gpu_driver == "operator"
    values: Manifest = {
        "nfd": {"enabled": not wanted.has_rdma},
        "driver": {
            "enabled": own,
            # loads nvidia-peermem, by which an HCA reads and writes GPU memory
            "rdma": {"enabled": own and wanted.has_rdma},
        },
        "toolkit": {"enabled": own},
        "migManager": {"enabled": bool(wanted.said.mig)},
        "vgpuDeviceManager": {"enabled": False},
        "vfioManager": {"enabled": False},
        "sandboxDevicePlugin": {"enabled": False},
        "dcgmExporter": {"enabled": True, "serviceMonitor": {"enabled": True, "interval": "15s"}},
        "daemonsets": {"tolerations": TOLERATIONS},
    }
    values["node-feature-discovery"] = {"worker": {"tolerations": TOLERATIONS}}
    if wanted.said.mig:
        values["mig"] = {"strategy": "single"}
        values["migManager"]["config"] = {"default": wanted.said.mig}
    if wanted.said.time_slices > 1:
        values["devicePlugin"] = {"config": {"name": SLICES, "default": "any"}}
    if wanted.said.registry:
        values["operator"] = {"repository": mirrored("nvcr.io/nvidia", wanted)}
        values["validator"] = {"repository": mirrored("nvcr.io/nvidia", wanted)}
        values["driver"]["repository"] = mirrored("nvcr.io/nvidia", wanted)
        values["toolkit"]["repository"] = mirrored("nvcr.io/nvidia/k8s", wanted)
        values["devicePlugin"] = {**values.get("devicePlugin", {}), "repository": mirrored("nvcr.io/nvidia", wanted)}
        values["gfd"] = {"repository": mirrored("nvcr.io/nvidia", wanted)}
        values["dcgmExporter"]["repository"] = mirrored("nvcr.io/nvidia/k8s", wanted)
    return values


def network_values() -> Manifest:
    """Values for the chart nvidia/network-operator: NFD is this one's, its rule is ours (it lacks the class)."""
    return {
        "nfd": {"enabled": True, "deployNodeFeatureRules": False},
        "node-feature-discovery": {"worker": {"tolerations": TOLERATIONS}},
    }


def slices(wanted: Wanted) -> Manifest:
    """The device plugin's configuration for time slicing: pods share a GPU in turns, with nothing between them."""
    config = {
        "version": "v1",
        "sharing": {"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": wanted.said.time_slices}]}},
    }
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": meta(SLICES, "gpu-operator"),
        "data": {"any": json.dumps(config, indent=2) + "\n"},
    }


def peermem(wanted: Wanted) -> Manifest:
    """Keeps nvidia-peermem loaded where the driver is AKS's, which does not load it.

    The module is the host's, and so is modprobe: nothing is installed in the container.
    """
    load: Manifest = {"exec": {"command": ["chroot", "/host", "modprobe", "nvidia-peermem"]}}
    container = {
        "name": "load",
        "image": mirrored("mcr.microsoft.com/mirror/docker/library/ubuntu:24.04", wanted),
        "command": ["chroot", "/host", "sh", "-c", "modprobe nvidia-peermem; exec sleep infinity"],
        "securityContext": {"privileged": True},
        "startupProbe": {**load, "periodSeconds": 10, "failureThreshold": 120, "timeoutSeconds": 10},
        "livenessProbe": {**load, "periodSeconds": 30, "failureThreshold": 1, "timeoutSeconds": 10},
        "volumeMounts": [{"name": "host", "mountPath": "/host"}],
    }
    term = {"key": "kubernetes.azure.com/accelerator", "operator": "In", "values": ["nvidia"]}
    terms = [{"matchExpressions": [term]}]
    labels = {"app": "nvidia-peermem"}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": meta("nvidia-peermem", "gpu-resources"),
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "priorityClassName": "system-node-critical",
                    "tolerations": TOLERATIONS,
                    "affinity": {
                        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
                    },
                    "containers": [container],
                    "volumes": [{"name": "host", "hostPath": {"path": "/", "type": "Directory"}}],
                },
            },
        },
    }


def amd_values(wanted: Wanted) -> Manifest:
    """Values for the chart rocm/gpu-operator-charts: NFD once in a cluster, the DeviceConfig is ours."""
    return {
        "node-feature-discovery": {"enabled": not wanted.has_rdma},
        "kmm": {"enabled": True},
        "crds": {"defaultCR": {"install": False}},
    }


def amd_config(wanted: Wanted) -> Manifest:
    """AMD's operator for GPUs that a guest sees as virtual functions, with the driver that is there."""
    version = versions()["amd-gpu-operator"]["images"]
    return {
        "apiVersion": "amd.com/v1alpha1",
        "kind": "DeviceConfig",
        "metadata": meta("gpu-operator", AMD_NAMESPACE),
        "spec": {
            "driver": {"enable": False, "blacklist": False},
            "devicePlugin": {
                "devicePluginImage": mirrored("docker.io/rocm/k8s-device-plugin:latest", wanted),
                "nodeLabellerImage": mirrored("docker.io/rocm/k8s-device-plugin:labeller-latest", wanted),
                "enableNodeLabeller": True,
            },
            "metricsExporter": {
                "enable": True,
                "serviceType": "ClusterIP",
                "port": 5000,
                "image": mirrored(f"docker.io/rocm/device-metrics-exporter:{version}", wanted),
            },
            # on Azure the guest sees virtual functions, which have a label of their own
            "selector": {"feature.node.kubernetes.io/amd-vgpu": "true"},
        },
    }


def gpu_pod(wanted: Wanted, pool: PoolWanted, name: str = "gpu-list") -> Manifest:
    """One GPU, listed: the first proof that drivers, toolkit and plugin agree."""
    resource = pool.gpu_resource
    if wanted.said.mig and pool.size.gpu_vendor == "nvidia":
        resource = "nvidia.com/gpu"  # strategy single: each MIG device is a GPU of its own
    tool = ["rocm-smi"] if pool.size.gpu_vendor == "amd" else ["nvidia-smi", "-L"]
    which = (
        "docker.io/rocm/rocm-terminal:latest"
        if pool.size.gpu_vendor == "amd"
        else "nvcr.io/nvidia/cuda:12.9.1-base-ubuntu24.04"
    )
    asked = {resource: "1"}
    container = {
        "name": "list",
        "image": mirrored(which, wanted),
        "command": tool,
        "resources": {"requests": asked, "limits": asked},
    }
    spec = {
        "restartPolicy": "Never",
        "nodeSelector": {"node.kubernetes.io/instance-type": pool.size.name},
        "tolerations": TOLERATIONS,
        "containers": [container],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": meta(f"{name}-{pool.name}"),
        "spec": {"backoffLimit": 0, "template": {"spec": spec}},
    }

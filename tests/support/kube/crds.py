"""The operators' kinds as an API server learns them, from the fields that their makers document.

A field that is not listed is refused by server-side apply, a value of another type by validation. What a kind holds of
Kubernetes' own types (a pod, an affinity) is open here; `pod_templates` gives such pods to the server as its own kind.
The makers' own files (`kind: CustomResourceDefinition`, *.yaml) are taken instead where a folder of them is at hand:
FAIRLEAD_CRDS, or shared/crds beside the repository.

| kind | documented in |
|---|---|
| NicClusterPolicy, IPoIBNetwork | docs.nvidia.com, Network Operator, "Customization Options and CRDs" |
| IPPool | github.com/Mellanox/nvidia-k8s-ipam, README, "IPPool CR" |
| NodeFeatureRule | kubernetes-sigs.github.io/node-feature-discovery, "Custom resources", "Customization guide" |
| MPIJob | github.com/kubeflow/mpi-operator, README and "v2beta1" API reference |
| DeviceConfig | instinct.docs.amd.com, GPU Operator, "Full Reference Config" |
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

Object = dict[str, Any]
OPEN: Object = {"x-kubernetes-preserve-unknown-fields": True}
_BESIDE = Path(__file__).parents[3].parent / "shared" / "crds"
_PLAIN = {str: "string", int: "integer", bool: "boolean"}


class Map:
    """A map of names that its user chooses."""

    def __init__(self, of: Any) -> None:
        self.of = of


class OneOf:
    """Text, one of these."""

    def __init__(self, *words: str) -> None:
        self.words = list(words)


_PART = {
    "image!": str, "repository": str, "version": str, "imagePullSecrets": [str],
    "containerResources": [{"name!": str, "limits": OPEN, "requests": OPEN}],
}  # fmt: skip
"""An image of the network operator."""
_PLUGIN = {**_PART, "config": str, "useCdi": bool}
_PROBE = {"initialDelaySeconds!": int, "periodSeconds!": int, "timeoutSeconds": int, "failureThreshold": int}
_TOLERATION = {"key": str, "operator": str, "value": str, "effect": str, "tolerationSeconds": int}
_ENV = [{"name!": str, "value": str, "valueFrom": OPEN}]
_DRIVER = {
    **_PART, "env": _ENV, "forcePrecompiled": bool, "terminationGracePeriodSeconds": int,
    "startupProbe": _PROBE, "livenessProbe": _PROBE, "readinessProbe": _PROBE,
    "certConfig": {"name": str}, "repoConfig": {"name": str},
    "upgradePolicy": {
        "autoUpgrade": bool, "maxParallelUpgrades": int, "safeLoad": bool,
        "drain": {"enable": bool, "force": bool, "deleteEmptyDir": bool, "timeoutSeconds": int, "podSelector": str},
        "waitForCompletion": {"podSelector": str, "timeoutSeconds": int},
    },
}  # fmt: skip
_PULL = OneOf("Always", "IfNotPresent", "Never")
_AMD = {
    "enable": bool, "image": str, "imagePullPolicy": _PULL, "imageRegistrySecret": {"name": str},
    "config": {"name": str}, "selector": Map(str), "tolerations": [_TOLERATION],
    "upgradePolicy": {"upgradeStrategy": OneOf("RollingUpdate", "OnDelete"), "maxUnavailable": int},
}  # fmt: skip
"""A part of AMD's operator that runs on every node."""
_OPS = OneOf(
    "In", "NotIn", "InRegexp", "Exists", "DoesNotExist", "Gt", "Ge", "Lt", "Le", "GtLt", "GeLe", "IsTrue", "IsFalse"
)
_MATCH = {"op!": _OPS, "value": [str], "type": str}
_TERMS = [{"feature!": str, "matchExpressions": Map(_MATCH), "matchName": _MATCH}]
_POD: Object = {"type": "object", **OPEN}
_REPLICAS = {"replicas": int, "restartPolicy": OneOf("Never", "OnFailure", "Always"), "template": _POD}

_KINDS: dict[tuple[str, str, str, str], Object] = {
    ("mellanox.com", "v1alpha1", "NicClusterPolicy", "Cluster"): {
        "nodeAffinity": OPEN, "deploymentNodeAffinity": OPEN, "tolerations": [_TOLERATION],
        "deploymentTolerations": [_TOLERATION],
        "global": {"repository": str, "version": str, "imagePullSecrets": [str]},
        "ofedDriver": _DRIVER, "sriovDevicePlugin": _PLUGIN, "rdmaSharedDevicePlugin": _PLUGIN,
        "secondaryNetwork": {"cniPlugins": _PART, "ipoib": _PART, "multus": {**_PART, "config": str}},
        "nvIpam": {**_PART, "enableWebhook": bool}, "nicFeatureDiscovery": _PART,
        "docaTelemetryService": {**_PART, "config": {"fromConfigMap": str}},
        "ibKubernetes": {
            **_PART, "periodicUpdateSeconds": int, "pKeyGUIDPoolRangeStart!": str, "pKeyGUIDPoolRangeEnd!": str,
            "ufmSecret!": str,
        },
        "nicConfigurationOperator": {
            "operator!": _PART, "configurationDaemon!": _PART, "logLevel": OneOf("info", "debug"), "env": _ENV,
            "nicFirmwareStorage": {
                "create": bool, "pvcName": str, "storageClassName": str, "availableStorageSize": str,
            },
        },
        "spectrumXOperator": {**_PART, "xPlane": _PART},
    },
    ("mellanox.com", "v1alpha1", "IPoIBNetwork", "Cluster"): {"networkNamespace": str, "master": str, "ipam": str},
    ("nv-ipam.nvidia.com", "v1alpha1", "IPPool", "Namespaced"): {
        "subnet!": str, "perNodeBlockSize!": int, "gateway": str, "nodeSelector": OPEN, "defaultGateway": bool,
        "exclusions": [{"startIP!": str, "endIP!": str}], "routes": [{"dst!": str}],
        "perNodeExclusions": [{"startIndex!": int, "endIndex!": int}],
    },
    ("nfd.k8s-sigs.io", "v1alpha1", "NodeFeatureRule", "Cluster"): {
        "rules!": [
            {
                "name!": str, "labels": Map(str), "labelsTemplate": str, "annotations": Map(str), "vars": Map(str),
                "varsTemplate": str, "extendedResources": Map(str),
                "taints": [{"key!": str, "value": str, "effect!": str, "timeAdded": str}],
                "matchFeatures": _TERMS, "matchAny": [{"matchFeatures": _TERMS}],
            }
        ]
    },
    ("amd.com", "v1alpha1", "DeviceConfig", "Namespaced"): {
        "selector": Map(str),
        "commonConfig": {"initContainerImage": str, "imageRegistrySecrets": [{"name": str}], "utilsContainer": OPEN},
        "driver": {
            "enable": bool, "blacklist": bool, "driverType": OneOf("container", "vf-passthrough", "pf-passthrough"),
            "image": str, "version": str, "amdgpuInstallerRepoURL": str, "useSourceImage": bool,
            "tolerations": [_TOLERATION], "imageRegistrySecret": {"name": str}, "imageRegistryTLS": OPEN,
            "imageSign": OPEN, "imageBuild": OPEN, "kernelModuleConfig": OPEN, "upgradePolicy": OPEN,
            "vfioConfig": OPEN,
        },
        "devicePlugin": {
            "enableDevicePlugin": bool, "devicePluginImage": str, "devicePluginImagePullPolicy": _PULL,
            "devicePluginTolerations": [_TOLERATION], "devicePluginArguments": Map(str), "hostNetwork": bool,
            "enableNodeLabeller": bool, "nodeLabellerImage": str, "nodeLabellerImagePullPolicy": _PULL,
            "nodeLabellerTolerations": [_TOLERATION], "nodeLabellerArguments": [str], "kubeletSocketPath": str,
            "imageRegistrySecret": {"name": str}, "upgradePolicy": _AMD["upgradePolicy"],
        },
        "metricsExporter": {
            **_AMD, "serviceType": OneOf("ClusterIP", "NodePort"), "port": int, "nodePort": int, "hostNetwork": bool,
            "podAnnotations": Map(str), "serviceAnnotations": Map(str), "podResourceAPISocketPath": str,
            "prometheus": OPEN, "rbacConfig": OPEN, "resource": OPEN,
        },
        "testRunner": {**_AMD, "logsLocation": OPEN},
        "configManager": {**_AMD, "configManagerTolerations": [_TOLERATION]},
        "draDriver": {**_AMD, "cmdLineArguments": Map(str)}, "remediationWorkflow": OPEN,
    },
    ("kubeflow.org", "v2beta1", "MPIJob", "Namespaced"): {
        "slotsPerWorker": int, "runLauncherAsWorker": bool, "sshAuthMountPath": str,
        "launcherCreationPolicy": OneOf("AtStartup", "WaitForWorkersReady"),
        "mpiImplementation": OneOf("OpenMPI", "Intel", "MPICH"),
        "runPolicy": {
            "cleanPodPolicy": OneOf("None", "Running", "All"), "ttlSecondsAfterFinished": int,
            "activeDeadlineSeconds": int, "backoffLimit": int, "suspend": bool, "managedBy": str,
            "schedulingPolicy": {
                "minAvailable": int, "queue": str, "priorityClass": str, "scheduleTimeoutSeconds": int,
                "minResources": OPEN,
            },
        },
        "mpiReplicaSpecs!": Map(_REPLICAS),
    },
}  # fmt: skip


def definitions() -> list[Object]:
    """Every CustomResourceDefinition, `apiextensions.k8s.io/v1`."""
    ours = {
        made["metadata"]["name"]: made for made in (_definition(*named, fields) for named, fields in _KINDS.items())
    }
    folder = Path(os.environ.get("FAIRLEAD_CRDS") or _BESIDE)
    for path in sorted(folder.glob("*.y*ml")):
        for made in yaml.safe_load_all(path.read_text("utf-8")):
            if made and made["kind"] == "CustomResourceDefinition":
                ours[made["metadata"]["name"]] = made
    return list(ours.values())


def pod_templates(what: Object) -> Iterator[Object]:
    """Pods within an operator's object, as objects that the server itself knows; all of those in an MPIJob."""
    for role, replicas in what.get("spec", {}).get("mpiReplicaSpecs", {}).items():
        name = f"{what['metadata']['name']}-{role.lower()}"
        meta = {"name": name, "namespace": what["metadata"].get("namespace", "default")}
        yield {"apiVersion": "v1", "kind": "PodTemplate", "metadata": meta, "template": replicas["template"]}


def workers(what: Object) -> list[Object]:
    """The worker pods that the MPI operator makes of an MPIJob, with the names and labels it documents."""
    name, namespace = what["metadata"]["name"], what["metadata"].get("namespace", "default")
    replicas = what["spec"]["mpiReplicaSpecs"]["Worker"]
    made = []
    for index in range(replicas["replicas"]):
        labels = {
            **replicas["template"].get("metadata", {}).get("labels", {}),
            "training.kubeflow.org/operator-name": "mpi-operator",
            "training.kubeflow.org/job-name": name,
            "training.kubeflow.org/job-role": "worker",
            "training.kubeflow.org/replica-index": str(index),
        }
        meta = {"name": f"{name}-worker-{index}", "namespace": namespace, "labels": labels}
        made.append({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": replicas["template"]["spec"]})
    return made


def _definition(group: str, version: str, kind: str, scope: str, fields: Object) -> Object:
    singular = kind.lower()
    plural = f"{singular[:-1]}ies" if singular.endswith("y") else f"{singular}s"
    parts = {"apiVersion": schema(str), "kind": schema(str), "metadata": {"type": "object"}, "status": _POD}
    whole = {"type": "object", "required": ["spec"], "properties": {**parts, "spec": schema(fields)}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": scope,
            "names": {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": singular},
            "versions": [{"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": whole}}],
        },
    }


def schema(of: Any) -> Object:
    """A structural schema; a name that ends with `!` is required.

    >>> schema({"a!": int, "b": [str]})["required"]
    ['a']
    """
    if of in (str, int, bool):
        return {"type": _PLAIN[of]}
    if isinstance(of, OneOf):
        return {"type": "string", "enum": of.words}
    if isinstance(of, Map):
        return {"type": "object", "additionalProperties": schema(of.of)}
    if isinstance(of, list):
        return {"type": "array", "items": schema(of[0])}
    if "x-kubernetes-preserve-unknown-fields" in of:
        return {"type": "object", **of}
    required = [name[:-1] for name in of if name.endswith("!")]
    made = {"type": "object", "properties": {name.rstrip("!"): schema(each) for name, each in of.items()}}
    return {**made, "required": required} if required else made

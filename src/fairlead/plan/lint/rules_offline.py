"""Traps of a site without a way out: what manifests take from outside, or show to it. Asked for by name, as elsewhere a
public registry is none. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fairlead.base.confidential import holds_secret, is_secret_name
from fairlead.plan.lint.bundle import Bundle, Container, Pod, mapping
from fairlead.plan.lint.read import Path
from fairlead.plan.lint.rule import Hit, Said, Well, offline
from fairlead.records.verdict import Verdict

_INTERNAL = {
    "service.beta.kubernetes.io/azure-load-balancer-internal": "true",
    "networking.gke.io/load-balancer-type": "Internal",
    "cloud.google.com/load-balancer-type": "Internal",
    "service.beta.kubernetes.io/aws-load-balancer-scheme": "internal",
    "service.beta.kubernetes.io/aws-load-balancer-internal": "true",
    "service.beta.kubernetes.io/oci-load-balancer-internal": "true",
    "service.beta.kubernetes.io/openstack-internal-load-balancer": "true",
}
"""kubernetes.io/docs/concepts/services-networking/service, "Internal load balancer" (read 2026-11)."""
_PUBLIC = {
    "docker.io", "index.docker.io", "registry-1.docker.io", "ghcr.io", "quay.io", "nvcr.io", "gcr.io", "us.gcr.io",
    "eu.gcr.io", "asia.gcr.io", "registry.k8s.io", "k8s.gcr.io", "mcr.microsoft.com", "public.ecr.aws",
    "registry.gitlab.com", "registry.access.redhat.com", "registry.redhat.io", "registry.hf.space",
}  # fmt: skip
"""Registries that anybody reaches by the internet. A name without a host is Docker Hub's (distribution/reference)."""
_TRUE = {"1", "true", "yes", "on"}
_WANTED = {
    "HF_HUB_OFFLINE": "huggingface_hub asks the hub when a server starts",
    "TRANSFORMERS_OFFLINE": "transformers asks the hub for files that a model lacks",
}
_WANTED_VLLM = {"VLLM_NO_USAGE_STATS": "vLLM reports its usage", "DO_NOT_TRACK": "vLLM reports its usage"}
"""Either is enough: docs.vllm.ai, "Usage Stats Collection"."""


def registry_of(image: str) -> str:
    """The host of an image's name, as Docker reads it.

    >>> [registry_of(i) for i in ("vllm/vllm-openai:v0.8.2", "r.example:5000/m@sha256:0", "localhost/m", "busybox")]
    ['docker.io', 'r.example:5000', 'localhost', 'docker.io']
    """
    head, slash, _ = image.partition("/")
    return head if slash and ("." in head or ":" in head or head == "localhost") else "docker.io"


@offline
def public_load_balancer(bundle: Bundle) -> Iterator[Said]:
    """A load balancer is public unless it is told otherwise."""
    code = "plan/public-load-balancer"
    for service in bundle.of("Service"):
        kind = service.get("spec", "type")
        notes = {str(k): str(v) for k, v in mapping(service.get("metadata", "annotations")).items()}
        is_internal = any(notes.get(key, "").lower() == value.lower() for key, value in _INTERNAL.items())
        if kind != "LoadBalancer" or is_internal or service.get("spec", "loadBalancerClass"):
            yield Well(code, str(service))
            continue
        yield Hit(
            code=code,
            place=service.at("spec", "type"),
            about=str(service),
            message="its load balancer gets a public address",
            read=f"type: {kind}, no annotation of an internal one",
            remedy='The annotation of an internal one: service.beta.kubernetes.io/azure-load-balancer-internal: "true"',
        )


@offline
def public_registry(bundle: Bundle) -> Iterator[Said]:
    """Nodes cannot pull from where they cannot go."""
    code = "plan/public-registry"
    for pod, container in _containers(bundle):
        image = str(container.value.get("image") or "")
        if not image:
            continue
        host = registry_of(image)
        if host not in _PUBLIC:
            yield Well(code, str(pod))
            continue
        yield Hit(
            code=code,
            place=container.at("image"),
            about=str(pod),
            message=f"container {container.name} takes its image from {host}, which is on the internet",
            read=f"image: {image}",
            remedy="Copy it into the site's registry, and name it there by digest: REGISTRY/NAME@sha256:...",
        )


@offline
def key_in_manifest(bundle: Bundle) -> Iterator[Said]:
    """A key in a file is known to whoever reads the file; and offline nothing needs one of a hub."""
    code = "plan/key-in-manifest"
    for thing in bundle.objects:
        found = list(_secrets(thing.document.value if not thing.kind else thing.get(), ()))
        if thing.kind == "Secret":
            found += [(key, name) for key in ("data", "stringData") for name, v in mapping(thing.get(key)).items() if v]
        if not found:
            yield Well(code, str(thing))
        for path in dict.fromkeys(found):
            yield Hit(
                code=code,
                place=thing.at(*path),
                about=str(thing),
                message=f"a key stands in the file, at {'.'.join(map(str, path))[-80:]}",
                read="<redacted>",
                remedy="Take it out and have it replaced where it came from; a server offline needs none.",
            )


@offline
def online_settings(bundle: Bundle) -> Iterator[Said]:
    """What serves a model has to be told that there is no hub."""
    code = "plan/online-settings"
    for pod, container in _containers(bundle):
        is_vllm = "vllm" in f"{container.value.get('image')} {container.script}".lower()
        if not container.gpus and not is_vllm:
            continue
        env = {name: value for name, (value, _) in bundle.env_of(container).items()}
        missing = {name: why for name, why in _WANTED.items() if env.get(name, "").lower() not in _TRUE}
        if is_vllm and not any(env.get(name, "").lower() in _TRUE for name in _WANTED_VLLM):
            missing["VLLM_NO_USAGE_STATS"] = _WANTED_VLLM["VLLM_NO_USAGE_STATS"]
        if not missing:
            yield Well(code, str(pod))
            continue
        is_off = any(name in env for name in missing)
        name, why = next(iter(missing.items()))
        yield Hit(
            code=code,
            place=container.at("env") if "env" in container.value else container.at(),
            about=str(pod),
            message=f"container {container.name} is not told to stay offline: without {', '.join(missing)} {why}",
            read=f"{name}: {env.get(name, 'not set')}",
            remedy=f'env: [{{name: {name}, value: "1"}}], unless its image sets it.',
            verdict=Verdict.FAIL if is_off else Verdict.WARN,
        )


def _containers(bundle: Bundle) -> Iterator[tuple[Pod, Container]]:
    for pod in bundle.pods:
        for container in pod.containers:
            yield pod, container


def _secrets(value: Any, path: Path) -> Iterator[Path]:
    """Where something of the form of a secret stands, or a value under the name of one."""
    if isinstance(value, str):
        if holds_secret(value):
            yield path
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from _secrets(item, (*path, i))
    elif isinstance(value, dict):
        name, said = value.get("name"), value.get("value")
        if isinstance(name, str) and isinstance(said, str) and said and is_secret_name(name) and "$(" not in said:
            yield (*path, "value")
        for key, item in value.items():
            yield from _secrets(item, (*path, key))

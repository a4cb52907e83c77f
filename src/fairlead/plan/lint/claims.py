"""GPUs that a cluster gives by claims (dynamic resource allocation), by its ResourceSlices. Pure.

Of a pool only the slices of its highest generation count, and the pool is whole when there are as many as each says
(Kubernetes API reference: ResourceSlice, resource.k8s.io/v1; in v1beta1 a device's attributes stand under `basic`).
A GPU's attribute `type` is `gpu` with NVIDIA's driver and `amdgpu` with AMD's; a part of one has another.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from fairlead.plan.lint.bundle import Bundle, Object, items, mapping

DRIVERS = ("gpu.nvidia.com", "gpu.amd.com")
_WHOLE = ("gpu", "amdgpu")


@dataclass(frozen=True)
class Published:
    """What one node's drivers publish."""

    gpus: int
    parts: int
    is_whole: bool
    """All slices of its pools are among the files."""
    slices: tuple[str, ...]


def published(bundle: Bundle, node: str) -> Published | None:
    """The GPUs of a node that claims can have; None where no slice of a GPU driver is about it."""
    pools = defaultdict[tuple[str, str], list[Object]](list)
    for made in bundle.of("ResourceSlice"):
        driver = made.get("spec", "driver")
        if driver in DRIVERS and made.get("spec", "nodeName") == node:
            pools[str(driver), str(made.get("spec", "pool", "name"))].append(made)
    if not pools:
        return None
    newest = [_newest(slices) for slices in pools.values()]
    kinds = [_kind(device) for slices in newest for made in slices for device in items(made.get("spec", "devices"))]
    return Published(
        gpus=sum(kind in _WHOLE for kind in kinds),
        parts=sum(kind not in _WHOLE for kind in kinds),
        is_whole=all(len(slices) == slices[0].get("spec", "pool", "resourceSliceCount") for slices in newest),
        slices=tuple(made.name for slices in newest for made in slices),
    )


def has_driver(bundle: Bundle) -> bool:
    """Whether something among the files shows that GPUs may be given by claims."""
    return any(made.name in DRIVERS for made in bundle.of("DeviceClass")) or any(
        "dra-driver" in made.name for made in bundle.of("DaemonSet", "Pod")
    )


def _newest(slices: list[Object]) -> list[Object]:
    """Those of the highest generation; drivers write the number anew whenever a pool changes."""
    last = max(_generation(made) for made in slices)
    return [made for made in slices if _generation(made) == last]


def _generation(made: Object) -> int:
    found = made.get("spec", "pool", "generation")
    return found if isinstance(found, int) else 0


def _kind(device: object) -> str:
    found = mapping(device)
    attributes = mapping(found.get("attributes")) or mapping(mapping(found.get("basic")).get("attributes"))
    return str(mapping(attributes.get("type")).get("string", ""))

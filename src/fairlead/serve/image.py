"""An OCI image layout: reading the one to stand on, and the documents of the one that is written.

https://github.com/opencontainers/image-spec (v1.1): image-layout.md, manifest.md, config.md, annotations.md.
"""

from __future__ import annotations

import hashlib
import platform as machine
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from fairlead.base.trust import read_file
from fairlead.errors import FairleadError, UsageError

LAYOUT = b'{"imageLayoutVersion":"1.0.0"}\n'
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar"
_INDEXES = (INDEX_TYPE, "application/vnd.docker.distribution.manifest.list.v2+json")
_OCI_LAYER = {
    "application/vnd.docker.image.rootfs.diff.tar.gzip": "application/vnd.oci.image.layer.v1.tar+gzip",
    "application/vnd.docker.image.rootfs.diff.tar": LAYER_TYPE,
}
MAX_LAYERS = 120
"""Of an image in all. Docker's storage takes 125 (moby, layer/layer_store.go, maxLayerDepth); a few are left for
others."""
_MAX_BYTES = 4 << 20
"""Registries take no larger manifest (distribution specification, "Pushing Manifests")."""
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}\Z")
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64", "ppc64le": "ppc64le", "s390x": "s390x", "riscv64": "riscv64"}

OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}
"""What keeps usual servers from calling out: huggingface.co/docs/huggingface_hub, "Environment variables";
docs.vllm.ai, "Usage Stats Collection"."""


class Descriptor(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What OCI calls so: a blob by type, digest and size."""

    media_type: str
    digest: str
    size: int
    platform: dict[str, Any] = {}
    annotations: dict[str, str] = {}


class Base(NamedTuple):
    """An image to stand on."""

    folder: Path
    digest: str
    layers: tuple[Descriptor, ...]
    config: Mapping[str, Any]
    platform: str


class _Index(msgspec.Struct, frozen=True):
    manifests: tuple[Descriptor, ...]


class _Manifest(msgspec.Struct, frozen=True):
    config: Descriptor
    layers: tuple[Descriptor, ...]


def this_platform() -> str:
    """`linux/amd64`."""
    name = machine.machine()
    return f"linux/{_MACHINES.get(name, name)}"


def blob(folder: Path, digest: str) -> Path:
    """Where a blob of a layout lies. Raises UsageError for a digest that is none of SHA-256."""
    if not _DIGEST.match(digest):
        raise UsageError("serve/base", f"the base image names a blob `{digest[:80]}`: only sha256 is read")
    return folder / "blobs" / "sha256" / digest.removeprefix("sha256:")


def read_base(folder: Path, platform: str) -> Base:
    """The image of this platform in a layout. Raises UsageError where there is none, or more than one."""
    if not (folder / "oci-layout").is_file():
        hint = "skopeo copy docker://IMAGE oci:FOLDER:TAG writes one"
        raise UsageError("serve/base", f"{folder} is no OCI image layout: it has no file oci-layout", hint=hint)
    found = _of_platform(folder, _decoded(_read(folder, folder / "index.json"), _Index), platform)
    manifest = _decoded(_checked(folder, found), _Manifest)
    config = _decoded(_checked(folder, manifest.config), dict[str, Any])
    own = f"{config.get('os', '')}/{config.get('architecture', '')}"
    if own != platform:
        text = f"the base image in {folder} is for {own}, the bundle for {platform}"
        raise UsageError("serve/other-architecture", text, hint=f"--platform {own}, or another base image")
    diffs = config.get("rootfs", {}).get("diff_ids") if isinstance(config.get("rootfs"), dict) else None
    if not isinstance(diffs, list) or len(diffs) != len(manifest.layers):
        raise UsageError("serve/base", f"the config of the base image in {folder} does not name its layers")
    layers = tuple(
        Descriptor(media_type=_OCI_LAYER.get(layer.media_type, layer.media_type), digest=layer.digest, size=layer.size)
        for layer in manifest.layers
    )
    return Base(folder, found.digest, layers, config, own)


def _of_platform(folder: Path, index: _Index, platform: str) -> Descriptor:
    found = list[Descriptor]()
    for entry in index.manifests:
        if entry.media_type in _INDEXES:
            found += _decoded(_checked(folder, entry), _Index).manifests
        else:
            found.append(entry)
    os_, _, arch = platform.partition("/")
    fitting = [
        d for d in found if not d.platform or (d.platform.get("os"), d.platform.get("architecture")) == (os_, arch)
    ]
    if len({d.digest for d in fitting}) != 1:
        which = f"{len(fitting)} images" if fitting else "no image"
        text = f"{folder} holds {which} for {platform}"
        raise UsageError("serve/base", text, hint="skopeo copy one image into a folder of its own; or --platform")
    return fitting[0]


def config_of(base: Base | None, diff_ids: Sequence[str], *, platform: str, labels: Mapping[str, str]) -> bytes:
    """The image's config: the base's own, with our layers, the labels and the offline settings on top."""
    os_, _, arch = platform.partition("/")
    made: dict[str, Any] = dict(base.config) if base else {"architecture": arch, "os": os_}
    run = dict(made.get("config") or {})
    env = dict(item.partition("=")[::2] for item in run.get("Env") or [] if isinstance(item, str))
    run["Env"] = [f"{key}={value}" for key, value in (env | OFFLINE).items()]
    run["Labels"] = {**(run.get("Labels") or {}), **labels}
    below = list(base.config["rootfs"]["diff_ids"]) if base else []
    made["config"] = run
    made["rootfs"] = {"type": "layers", "diff_ids": [*below, *diff_ids]}
    history = list(made.get("history") or [])
    made["history"] = [*history, *({"created_by": "fairlead serve bundle", "comment": d} for d in diff_ids)]
    return canonical(made)


def manifest_of(config: Descriptor, layers: Sequence[Descriptor], annotations: Mapping[str, str]) -> bytes:
    """The image's manifest."""
    return canonical(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": config,
            "layers": layers,
            "annotations": dict(annotations),
        }
    )


def index_of(manifest: Descriptor) -> bytes:
    """index.json of a layout with one image."""
    return canonical({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [manifest]})


def canonical(value: Any) -> bytes:
    """JSON whose bytes follow from its content."""
    return msgspec.json.encode(value, order="deterministic")


def described(media_type: str, raw: bytes, **more: Any) -> Descriptor:
    """The descriptor of these bytes."""
    digest = f"sha256:{hashlib.sha256(raw).hexdigest()}"
    return Descriptor(media_type=media_type, digest=digest, size=len(raw), **more)


def _checked(folder: Path, descriptor: Descriptor) -> bytes:
    raw = _read(folder, blob(folder, descriptor.digest))
    if f"sha256:{hashlib.sha256(raw).hexdigest()}" != descriptor.digest:
        text = f"the blob {descriptor.digest} of the base image in {folder} holds other bytes"
        raise FairleadError("serve/base", text, hint="copy the image again")
    return raw


def _read(folder: Path, path: Path) -> bytes:
    try:
        return read_file(path, _MAX_BYTES)
    except OSError as error:
        text = f"the image in {folder} lacks {path.name}: {error.strerror}"
        raise UsageError("serve/base", text, hint="copy the image again") from None


def _decoded(raw: bytes, kind: Any) -> Any:
    try:
        return msgspec.json.decode(raw, type=kind)
    except (ValueError, RecursionError) as error:
        raise UsageError("serve/base", f"the base image does not read: {error}", hint="copy the image again") from None

"""The bill of materials of a bundle: CycloneDX 1.6 (ECMA-424), the form that has a kind for models. Pure.

https://cyclonedx.org/docs/1.6/json/ says what the fields mean; the model's files are `data` inside it.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from fairlead import __version__
from fairlead.serve.model import NOASSERTION
from fairlead.serve.record import Held
from fairlead.serve.wheels import Wheel

_NAMED = uuid.UUID("8a1d8e0c-5f0e-5c53-9b5e-3d1f5c6f2b7a")
"""The name space of our serial numbers: the same content has the same one."""
_SPDX = {"apache-2.0": "Apache-2.0", "mit": "MIT", "bsd-3-clause": "BSD-3-Clause", "bsd-2-clause": "BSD-2-Clause",
         "cc-by-4.0": "CC-BY-4.0", "cc-by-sa-4.0": "CC-BY-SA-4.0", "cc-by-nc-4.0": "CC-BY-NC-4.0", "cc0-1.0": "CC0-1.0",
         "gpl-3.0": "GPL-3.0-only", "agpl-3.0": "AGPL-3.0-only", "lgpl-3.0": "LGPL-3.0-only", "mpl-2.0": "MPL-2.0",
         "artistic-2.0": "Artistic-2.0", "isc": "ISC", "unlicense": "Unlicense", "zlib": "Zlib"}  # fmt: skip
"""What cards call a licence, huggingface.co/docs/hub/repositories-licenses, and its identifier at spdx.org/licenses."""


def spdx_of(licence: str) -> str:
    """The SPDX identifier of a licence as a card names it; empty where the list has none: `llama3.1`, `other`."""
    return _SPDX.get(licence.lower(), "")


def sbom(
    name: str, licence: str, files: Sequence[Held], *, base: str = "", wheels: Sequence[tuple[Wheel, str]] = ()
) -> Mapping[str, Any]:
    """The document: the model with its licence, each file with its digest, the image it stands on, and the wheels of
    its engine with theirs.
    """
    model: dict[str, Any] = {"type": "machine-learning-model", "bom-ref": "model", "name": name}
    if licence != NOASSERTION:
        spdx = spdx_of(licence)
        model["licenses"] = [{"license": {"id": spdx} if spdx else {"name": licence}}]
    components = [
        {
            "type": "file",
            "bom-ref": f"file:{file.path}",
            "name": file.path,
            "hashes": [{"alg": "SHA-256", "content": file.sha256}],
            "properties": [{"name": "fairlead:size", "value": str(file.size)}],
        }
        for file in files
    ]
    if base:
        hashes = [{"alg": "SHA-256", "content": base.removeprefix("sha256:")}]
        components.append({"type": "container", "bom-ref": "base", "name": "base image", "hashes": hashes})
    components += [_library(wheel, digest) for wheel, digest in wheels]
    said = (name, licence, base, [(f.path, f.sha256) for f in files])
    content = repr((*said, [digest for _, digest in wheels]) if wheels else said)
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMED, content)}",
        "version": 1,
        "metadata": {
            "tools": {"components": [{"type": "application", "name": "fairlead", "version": __version__}]},
            "component": model,
        },
        "components": components,
        "dependencies": [{"ref": "model", "dependsOn": [str(c["bom-ref"]) for c in components]}],
    }


def _library(wheel: Wheel, digest: str) -> dict[str, Any]:
    """A package by its package URL (github.com/package-url/purl-spec, type pypi)."""
    purl = f"pkg:pypi/{wheel.name}@{wheel.version}"
    row: dict[str, Any] = {"type": "library", "bom-ref": purl, "name": wheel.name, "version": wheel.version}
    if wheel.licence:
        row["licenses"] = [{"expression": wheel.licence}]
    return row | {"purl": purl, "hashes": [{"alg": "SHA-256", "content": digest}]}


def image_name(name: str) -> str:
    """A model's name as a repository of a registry takes it (OCI distribution specification, "Pulling manifests").

    >>> image_name("Llama-3.1 8B__Instruct"), image_name("--")
    ('llama-3.1-8b-instruct', 'model')
    """
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.") or "model"

"""Manifests against schemas that others wrote.

Kubernetes' own kinds: the package kubernetes-validate, which holds the API server's schemas of each release; strict, so
that a key that no schema knows is refused. Kinds of operators: the CustomResourceDefinitions of support.kube.crds;
objects are closed, as a server prunes what it does not know. A real API server is asked in tests/real/kube.
"""

from __future__ import annotations

import functools

import jsonschema
import kubernetes_validate

from support.kube.crds import definitions

VERSION = "1.34"
"""The first with resource.k8s.io/v1; the oldest that AKS's managed GPU pools and DRANET's examples ask for."""


@functools.cache
def crds() -> dict[tuple[str, str], dict]:
    """(apiVersion, kind) -> a closed JSON schema."""
    found: dict[tuple[str, str], dict] = {}
    for spec in (made["spec"] for made in definitions()):
        for version in spec["versions"]:
            key = (f"{spec['group']}/{version['name']}", spec["names"]["kind"])
            found[key] = _closed(version["schema"]["openAPIV3Schema"], at_top=True)
    return found


def is_core(made: dict) -> bool:
    """Whether Kubernetes itself has this kind."""
    group = made["apiVersion"].partition("/")[0]
    return "." not in group or (group.endswith(".k8s.io") and not group.endswith("k8s-sigs.io"))


def problems_of(made: dict, release: str = VERSION) -> list[str]:
    """What is wrong with an object in a release; raises LookupError where nobody has a schema of its kind."""
    key = (made["apiVersion"], made["kind"])
    if not is_core(made):
        schema = crds().get(key)
        if schema is None:
            raise LookupError(f"no CustomResourceDefinition of {key} at hand")
        checker = jsonschema.Draft202012Validator(schema)
        return [f"{e.json_path}: {e.message}" for e in checker.iter_errors(made)]
    try:
        kubernetes_validate.validate(made, release, strict=True)
    except kubernetes_validate.ValidationError as error:
        return [f"{'.'.join(map(str, error.path))}: {error.message}"]
    return []


def _closed(schema: dict, *, at_top: bool = False) -> dict:
    """The schema with what OpenAPI says in words of its own as JSON Schema, and nothing allowed beyond it."""
    made = {k: v for k, v in schema.items() if not k.startswith("x-kubernetes-") and k not in ("nullable", "default")}
    if schema.get("x-kubernetes-int-or-string"):
        return {"anyOf": [{"type": "integer"}, {"type": "string"}]}
    if "items" in made:
        made["items"] = _closed(made["items"])
    if isinstance(made.get("additionalProperties"), dict):
        made["additionalProperties"] = _closed(made["additionalProperties"])
    if "properties" in made:
        made["properties"] = {k: _closed(v) for k, v in made["properties"].items()}
        if at_top:
            made["properties"]["metadata"] = {"type": "object"}
        if "additionalProperties" not in made and not schema.get("x-kubernetes-preserve-unknown-fields"):
            made["additionalProperties"] = False
    if schema.get("nullable") and "type" in made:
        made["type"] = [made["type"], "null"]
    return made

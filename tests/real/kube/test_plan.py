"""Everything that `fairlead plan` writes for Kubernetes, asked of a real API server by server-side dry run.

The server is 1.20.2. What came later is left out of what it is asked, field by field (`LATER`), and kinds it does not
have (`NEWER`) are for the schemas of later releases, which tests/unit/plan holds them to. Helm values are no objects.
"""

from __future__ import annotations

import copy
import json
from collections import Counter

import pytest

from fairlead.plan.kubernetes import variants
from support.kube.client import Refused
from support.kube.crds import definitions, pod_templates

pytestmark = [pytest.mark.real, pytest.mark.requires("kube")]

NEWER = {("resource.k8s.io/v1", "DeviceClass"), ("resource.k8s.io/v1", "ResourceClaimTemplate")}
LATER = {"resourceClaims": "1.26", "claims": "1.26", "completionMode": "1.21"}
"""Fields of pods and Jobs, and the release that brought them (dynamic resource allocation, indexed Jobs)."""


@pytest.fixture(scope="module")
def server(control):
    """The API server with the operators' kinds."""
    made = definitions()
    for definition in made:
        control.api.create(definition)
    for definition in made:
        control.api.until(definition, is_served)
    return control


def is_served(found: dict) -> bool:
    rows = found.get("status", {}).get("conditions", [])
    return any(row["type"] == "Established" and row["status"] == "True" for row in rows)


@pytest.fixture(scope="module")
def objects() -> list[tuple[str, dict]]:
    """Each different object that any kind of cluster may get, with a cluster that gets it."""
    found: dict[str, tuple[str, dict]] = {}
    for variant in variants():
        for made in variant.objects:
            found.setdefault(json.dumps(made, sort_keys=True), (variant.name, made))
    assert len(found) > 100
    return list(found.values())


def as_of_then(what):
    """A copy without the fields of later releases."""
    if isinstance(what, dict):
        return {key: as_of_then(value) for key, value in what.items() if key not in LATER}
    return [as_of_then(each) for each in what] if isinstance(what, list) else copy.deepcopy(what)


def test_every_manifest_is_accepted(server, objects):
    for name in sorted({made["metadata"]["name"] for _, made in objects if made["kind"] == "Namespace"}):
        server.api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    refused, asked = [], Counter()
    for variant, made in objects:
        if (made["apiVersion"], made["kind"]) in NEWER:
            continue
        for each in (made, *pod_templates(made)):
            try:
                kept = server.api.apply(as_of_then(each), dry_run=True)
            except Refused as error:
                refused.append(f"{variant}: {each['kind']} {each['metadata']['name']}: {error}")
                continue
            assert kept["metadata"]["name"] == each["metadata"]["name"]
            asked[each["kind"]] += 1
    assert not refused, "\n".join(refused)
    assert {"Namespace", "Job", "MPIJob", "PodTemplate", "NicClusterPolicy", "NodeFeatureRule", "ConfigMap"} <= set(
        asked
    )


def test_no_kind_is_left_out_but_those_the_server_cannot_have(server, objects):
    unknown = {(made["apiVersion"], made["kind"]) for _, made in objects}
    unknown = {kind for kind in unknown if not server.api.has(*kind)}
    assert unknown <= NEWER


def spoil(what: dict, *path: str | int, value: object) -> dict:
    """A copy with one value changed, or one field more."""
    made = as_of_then(what)
    here = made
    for step in path[:-1]:
        here = here[step]
    here[path[-1]] = value
    return made


FAULTS = [
    ("NicClusterPolicy", ("spec", "ofedDrivers"), {}, "ofedDrivers"),
    ("NicClusterPolicy", ("spec", "ofedDriver", "upgradePolicy", "autoUpgrade"), "yes", "autoUpgrade"),
    ("NodeFeatureRule", ("spec", "rules", 0, "matchFeatures", 0, "matchExpressions", "vendor", "op"), "Is", "op"),
    ("MPIJob", ("spec", "slotsPerWorker"), "eight", "slotsPerWorker"),
    ("MPIJob", ("spec", "mpiReplicaSpecs", "Worker", "replica"), 2, "replica"),
    ("Job", ("spec", "template", "spec", "containers", 0, "securityContext"), {"privilege": True}, "privilege"),
    ("DaemonSet", ("spec", "selector", "matchLabels"), {"other": "label"}, "selector"),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault[0]}-{fault[3]}")
def test_the_same_manifests_with_a_fault_are_refused(server, objects, fault):
    """Else acceptance would say nothing: the server looks into each of these kinds."""
    kind, path, value, named = fault
    made = next(made for _, made in objects if made["kind"] == kind)
    if "namespace" in made["metadata"]:
        made = spoil(made, "metadata", "namespace", value="default")
    with pytest.raises(Refused) as error:
        server.api.apply(spoil(made, *path, value=value), dry_run=True)
    assert named in str(error.value)

"""Azure's instance metadata service: what the platform says this machine is. Only asked for when wanted.

GET http://169.254.169.254/metadata/instance/compute with the header `Metadata: true`, never through a proxy.
"""

from __future__ import annotations

import json
from typing import Any

from fairlead.probe.readers.tree import Hole, Tree

HOST, PATH = "169.254.169.254", "/metadata/instance/compute?api-version=2021-12-13&format=json"
KEPT = "/http/169.254.169.254_metadata"
KEYS = (
    "vmId",
    "vmSize",
    "name",
    "location",
    "zone",
    "placementGroupId",
    "vmScaleSetName",
    "platformFaultDomain",
    "osType",
    "resourceId",
    "interconnectGroupId",
    "interconnectSubgroupId",
    "physicalZone",
)


def read_imds(tree: Tree) -> dict[str, Any]:
    """`compute`: the fields of the service that tell machines and their placement apart."""
    source = "http://" + HOST + PATH
    tree.source((), source)
    text = _ask() if tree.live else tree.read(KEPT)
    if tree.kept is not None:
        tree.kept[KEPT] = text
    try:
        found = json.loads(text)
        return {"compute": {key: found[key] for key in KEYS if key in found}}
    except (ValueError, TypeError):
        raise Hole("is not the JSON it should be", source) from None


def _ask() -> str:
    import http.client

    source = "http://" + HOST + PATH
    connection = http.client.HTTPConnection(HOST, timeout=2.0)
    try:
        connection.request("GET", PATH, headers={"Metadata": "true"})
        answer = connection.getresponse()
        data = answer.read(1 << 20)
    except (OSError, http.client.HTTPException) as error:
        raise Hole("no answer: %s" % (error or type(error).__name__), source) from None
    finally:
        connection.close()
    if answer.status != 200:
        raise Hole("answers with status %d" % answer.status, source)
    return data.decode("utf-8", "replace")

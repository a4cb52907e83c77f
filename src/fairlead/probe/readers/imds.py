"""Azure's instance metadata service: what the platform says this machine is, and what it means to do to it.

GET http://169.254.169.254/metadata/... with the header `Metadata: true`, never through a proxy, with little patience.
Asked where the board's asset tag shows an Azure VM and this is no container, or where it is asked for.
(learn.microsoft.com: azure/virtual-machines/instance-metadata-service, and scheduled-events in linux.)
"""

from __future__ import annotations

import json
from typing import Any

from fairlead.probe.readers.host import FIRST_PID_NAMESPACE
from fairlead.probe.readers.tree import Hole, Tree, hole

HOST = "169.254.169.254"
ASSET_TAG, AZURE_TAG = "/sys/class/dmi/id/chassis_asset_tag", "7783-7084-3265-9085-8269-3286-77"
COMPUTE = "/metadata/instance/compute?api-version=2021-12-13&format=json"
EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
KEPT = {COMPUTE: "/http/169.254.169.254_metadata", EVENTS: "/http/169.254.169.254_scheduledevents"}
PATIENCE_S = 2.0
"""The service answers at once; only its first answer about events may take two minutes, and the next probe has that."""

NO_ANSWER = "no answer"
ROUTE = "an answer of Azure's metadata service, which a firewall may keep from users and containers"
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
EVENT_KEYS = (
    "EventId",
    "EventType",
    "ResourceType",
    "Resources",
    "EventStatus",
    "NotBefore",
    "Description",
    "EventSource",
    "DurationInSeconds",
)


def read_imds(tree: Tree) -> dict[str, Any]:
    """As `ask_imds`, or `not_asked` and why."""
    why = _why_not(tree)
    return {"not_asked": why} if why else ask_imds(tree)


def ask_imds(tree: Tree) -> dict[str, Any]:
    """`compute`: the fields that tell machines and their placement apart; `events`: what is scheduled, for any VM."""
    tree.source(("compute",), "http://" + HOST + COMPUTE)
    tree.source(("events",), "http://" + HOST + EVENTS)
    return {"compute": _asked(tree, COMPUTE, _compute), "events": _asked(tree, EVENTS, _events)}


def read_events(tree: Tree) -> Any:
    """What is scheduled alone: a list of events, or a hole; one marked `expected` where there is nobody to ask."""
    why = _why_not(tree)
    return {**hole(why, HOST), "expected": "yes"} if why else _asked(tree, EVENTS, _events)


def read_name(tree: Tree) -> str:
    """The VM's name, by which events name it; empty where the service does not tell it."""
    compute = "" if _why_not(tree) else _asked(tree, COMPUTE, _compute)
    return str(compute.get("name", "")) if isinstance(compute, dict) else ""


def _why_not(tree: Tree) -> str:
    """Why the service is not asked; a captured answer is always read."""
    if not tree.live and tree.holds(KEPT[COMPUTE]):
        return ""
    tag = tree.attr(ASSET_TAG)
    if tag != AZURE_TAG:
        return "nothing shows an Azure VM" if isinstance(tag, dict) else "the platform is not Azure"
    if tree.live and tree.linked_name("/proc/self/ns/pid") != FIRST_PID_NAMESPACE:
        return "a container: the platform knows the machine under it"
    return ""


def _asked(tree: Tree, path: str, take: Any) -> Any:
    source = "http://" + HOST + path
    try:
        text = _ask(path) if tree.live else tree.read(KEPT[path])
    except Hole as missing:
        if tree.kept is not None:
            tree.kept["?" + KEPT[path]] = missing.why
        found = hole(missing.why, source)
        return {**found, "needs": ROUTE} if missing.why.startswith(NO_ANSWER) else found
    try:
        used = take(json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        used = None
    if tree.kept is not None:  # no more of it than is used: a VM's custom data and tags are nobody else's
        tree.kept[KEPT[path]] = json.dumps(used)
    return hole("is not the JSON it should be", source) if used is None else used.get("Events", used)


def _compute(found: dict[str, Any]) -> dict[str, Any]:
    return {key: found[key] for key in KEYS if key in found}


def _events(found: dict[str, Any]) -> dict[str, Any]:
    events = found["Events"]
    if not all(isinstance(event[key], str) for event in events for key in ("EventId", "EventType")):
        raise TypeError(events)
    return {"Events": [{key: event[key] for key in EVENT_KEYS if key in event} for event in events]}


def _ask(path: str) -> str:
    import http.client

    source = "http://" + HOST + path
    connection = http.client.HTTPConnection(HOST, timeout=PATIENCE_S)
    try:
        connection.request("GET", path, headers={"Metadata": "true"})
        answer = connection.getresponse()
        data = answer.read(1 << 20)
    except (OSError, http.client.HTTPException) as error:
        raise Hole(NO_ANSWER + ": %s" % (error or type(error).__name__), source) from None
    finally:
        connection.close()
    if answer.status != 200:
        raise Hole("answers with status %d" % answer.status, source)
    return data.decode("utf-8", "replace")

"""A node as the source: what an earlier run published there, as its record says, for others to take from it.

Its digests are the manifest of this run, so a node believes no byte that was not published there.
"""

from __future__ import annotations

import json
import urllib.parse
from typing import Annotated

import msgspec
from msgspec import Meta

from fairlead.base.program import Program
from fairlead.cluster import Cluster, Command
from fairlead.errors import ClusterError, UsageError
from fairlead.records.border import Border, Breach, Text
from fairlead.spec.model import Spec
from fairlead.weights.manifest import MAX_BYTES, Manifest, read_manifest
from fairlead.weights.objects import Object
from fairlead.weights.sources import Source

SCHEME = "node://"
LIMIT_S = 60.0
PARTS = (
    "fairlead.cluster.channel",
    "fairlead.base.trust",
    "fairlead.weights.onnode.place",
    "fairlead.weights.onnode.held",
)
_HINT = "node://NODE/FOLDER, and the same FOLDER as the destination"


class Held(msgspec.Struct, kw_only=True):
    """A node's answer."""

    manifest: msgspec.Raw = msgspec.Raw(b"")
    tags: dict[str, Annotated[str, Meta(max_length=1024)]] = {}
    error: Text = ""


_held = Border(Held, "what a node has published", max_bytes=2 * MAX_BYTES)


def is_node(source: str) -> bool:
    """Whether the source is a node.

    >>> is_node("node://n3/mnt/nvme/llama"), is_node("az://models/llama")
    (True, False)
    """
    return source.startswith(SCHEME)


def place_of(source: str) -> tuple[str, str]:
    """(node, folder) of such a source. Raises UsageError.

    >>> place_of("node://n3/mnt/nvme/llama")
    ('n3', '/mnt/nvme/llama')
    """
    node, _, folder = source.removeprefix(SCHEME).partition("/")
    if not node or not folder.strip("/"):
        raise UsageError("weights/source", f"`{source}` names no folder of a node", hint=_HINT)
    return node, "/" + folder.rstrip("/")


def held_by(cluster: Cluster, spec: Spec, source: str) -> tuple[Source, list[Object], Manifest]:
    """Asks the node. Raises ClusterError where it does not answer, UsageError where it published nothing there."""
    node, folder = place_of(source)
    if node not in spec.nodes:
        raise UsageError("weights/source", f"{node} is no node of the cluster file", hint=_HINT)
    program = Program.of("fairlead-weights-held", *PARTS, call="tell_held()")
    told = json.dumps({"dest": folder}).encode() + b"\n"
    python = next((pool.python for pool in spec.pools if node in pool.nodes), "python3")
    command = Command(argv=program.words(python), stdin=program.stdin + told)
    result = cluster.run_each({node: command}, limit_s=max(spec.access.timeout_s, LIMIT_S), keep_bytes=MAX_BYTES)[0]
    line = next((line for line in result.stdout.text.splitlines() if line.startswith("{")), "")
    try:
        objects, manifest = read_held(line if result.ok else json.dumps({"error": result.error}), source)
    except Breach as breach:
        hint = f"fairlead exec -w {node} -- ls {folder}"
        raise ClusterError(
            "weights/no-origin", f"{node} does not say what it has: {breach}", nodes=node, hint=hint
        ) from None
    made = Source(
        name=f"{SCHEME}{node}{folder}",
        listed=lambda: objects,
        urls=lambda paths: {p: "file://" + urllib.parse.quote(f"{folder}/{p}") for p in paths},
        pins=False,
        node=node,
    )
    return made, objects, manifest


def read_held(text: str, source: str) -> tuple[list[Object], Manifest]:
    """A node's answer. Raises Breach, and FairleadError where the node has published nothing there."""
    said = _held(text)
    if said.error:
        raise Breach(said.error)
    if not said.tags:
        why = f"nothing was published by fairlead at {source}"
        raise UsageError("weights/source", why, hint="a spread or a pull of fairlead publishes, and keeps a record")
    manifest = read_manifest(bytes(said.manifest), source)
    return [
        Object(path=path, size=pieces.size, tag=said.tags.get(path, "")) for path, pieces in manifest.files.items()
    ], manifest

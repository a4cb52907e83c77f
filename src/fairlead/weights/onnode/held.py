"""Tells what a node published in a folder, as its record says: the manifest of it, and each file's tag. Python 3.9."""

from __future__ import annotations

import json
import os

from fairlead.cluster.channel import Channel
from fairlead.weights.onnode.place import Unusable, open_dest, open_own, read_record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def tell_held() -> None:
    """One order, one answer."""
    channel = Channel()
    dest = json.loads(channel.read())["dest"]  # type: ignore[arg-type]
    try:
        channel.say(json.dumps(held(dest)))
    except Unusable as why:
        channel.say(json.dumps({"error": why.text}))


def held(dest: str) -> dict[str, Any]:
    """What can be had from here; empty where nothing was published."""
    if not os.path.isdir(dest):
        return {}
    try:
        record = read_record(open_own(open_dest(dest), dest, make=False))
    except FileNotFoundError:
        return {}
    if not record:
        return {}
    kept = {
        path: {k: file[k] for k in ("size", "digests", "lengths") if k in file}
        for path, file in record["files"].items()
    }
    manifest = {
        "schema": "fairlead.weights-manifest/1",
        "algorithm": record["algorithm"],
        "piece_bytes": record["chunk_bytes"],
        "files": kept,
    }
    return {"manifest": manifest, "tags": {path: file["tag"] for path, file in record["files"].items()}}

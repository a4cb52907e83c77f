"""Reads what was published on a node and compares it with its record. Python 3.9.

A file that is not what was published loses its place in the record, so that the next spread fetches it anew.
"""

from __future__ import annotations

import json
import os

from fairlead.base.trust import beneath
from fairlead.cluster.channel import Channel
from fairlead.weights.onnode.place import DIGEST_BYTES, Unusable, hasher, open_dest, open_own, read_record, write_record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SHOWN = 100


def check_files() -> None:
    """One order, one answer."""
    channel = Channel()
    dest = json.loads(channel.read())["dest"]  # type: ignore[arg-type]
    try:
        channel.say(json.dumps(checked(channel, dest)))
    except ImportError:
        channel.say(json.dumps({"error": "the record is of BLAKE3, which this Python has not: pip install blake3"}))
    except Unusable as why:
        channel.say(json.dumps({"error": why.text}))


def checked(channel: Channel, dest: str) -> dict[str, Any]:
    """Files, bytes, and which are not what was published."""
    if not os.path.isdir(dest):
        return {"record": False}
    top = open_dest(dest)
    try:
        own = open_own(top, dest, make=False)
    except FileNotFoundError:
        return {"record": False}
    record = read_record(own)
    if not record:
        return {"record": False}
    digest_of, size = hasher(record["algorithm"]), int(record["chunk_bytes"])
    damaged, total = [], 0
    for path, file in sorted(record["files"].items()):
        channel.beat(path[:100])
        found = file_digests(top, path, lengths_of(file, size), digest_of)
        if found is None or found.hex() != file["digests"]:
            damaged.append(path)
        total += file["size"]
    if damaged:
        for path in damaged:
            del record["files"][path]
        write_record(own, record)
    num = len(record["files"]) + len(damaged)
    return {"record": True, "files": num, "bytes": total, "num_damaged": len(damaged), "damaged": damaged[:SHOWN],
            "root": record["root"]}  # fmt: skip


def lengths_of(file: dict[str, Any], chunk_bytes: int) -> list[int]:
    """How long the chunks of a file of the record are."""
    size = file["size"]
    return file.get("lengths") or [min(chunk_bytes, size - at) for at in range(0, size, chunk_bytes)]


def file_digests(top: int, path: str, lengths: list[int], digest_of: Any) -> bytes | None:
    """The digests of a file's chunks; None where it is no longer there, or of another length."""
    try:
        with beneath(top, path) as (folder, name):
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except (OSError, ValueError):
        return None
    out, buffer = [], memoryview(bytearray(max(lengths, default=0)))
    with open(fd, "rb", buffering=0) as file:
        if os.fstat(fd).st_size != sum(lengths):
            return None
        for want in lengths:
            got = 0
            while got < want:
                num = file.readinto(buffer[got:want])
                if not num:
                    return None
                got += num
            out.append(digest_of(buffer[:want]))
    assert all(len(d) == DIGEST_BYTES for d in out)
    return b"".join(out)

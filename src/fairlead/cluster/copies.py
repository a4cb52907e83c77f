"""One file to a node, one file from a node: whole and checked, or not at all. The asking side."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from fairlead.base.files import disk_errors
from fairlead.cluster.outputs import Gathered
from fairlead.cluster.protocol import Result, State
from fairlead.cluster.talk import Talk
from fairlead.errors import UsageError
from fairlead.records.border import Breach

_CHUNK = 1 << 18


async def push_one(talk: Talk, source: Path, target: str, mode: int) -> Result:
    """Copy a local file to a node. Raises UsageError where the local file cannot be read."""
    size = file_size(source)
    gathered = Gathered(talk.node)
    job = {"do": "receive", "target": target, "size": size, "mode": mode}
    return gathered.result(await talk.hold(job, _content(source, size), gathered.on_frame))


async def fetch_one(talk: Talk, source: str, path: Path, max_bytes: int) -> Result:
    """Copy a node's file to a local path. Raises DiskFull or NotPermitted where it cannot be written here."""
    part = path.with_name(f".{path.name[:200]}.{os.urandom(8).hex()}")
    gathered = Gathered(talk.node)
    digest = hashlib.sha256()
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        file = os.fdopen(os.open(part, flags, 0o666), "wb")

    num_bytes = 0

    def on_frame(kind: bytes, rank: int, payload: bytes) -> None:
        nonlocal num_bytes
        if kind != b"d":
            gathered.on_frame(kind, rank, payload)
            return
        num_bytes += len(payload)
        if num_bytes > max_bytes:  # the node should have seen to that; here it counts
            raise Breach(f"more of {source} than the {max_bytes} bytes allowed")
        digest.update(payload)
        with disk_errors(path):
            file.write(payload)

    try:
        with file:
            job = {"do": "send", "source": source, "max_bytes": max_bytes}
            result = gathered.result(await talk.hold(job, None, on_frame))
            if not result.ok:
                return result
            if gathered.exit is None or gathered.exit.sha256 != digest.hexdigest():
                return Result(node=talk.node, state=State.FAILED, error=f"{source}: It did not arrive whole")
            with disk_errors(path):
                file.flush()
                os.fsync(file.fileno())
        part.rename(path)
        return result
    finally:
        part.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            path.parent.rmdir()  # only where nothing ever came


@contextlib.contextmanager
def readable(source: Path) -> Iterator[None]:
    """Say what cannot be read of a local file or folder, as one that goes meanwhile. Raises UsageError."""
    try:
        yield
    except OSError as error:
        where = error.filename or source
        raise UsageError("cluster/no-file", f"{where}: {error.strerror}", hint=f"ls -l {where}") from error


def file_size(source: Path) -> int:
    """The size of a local regular file. Raises UsageError."""
    if not source.is_file():
        raise UsageError("cluster/no-file", f"{source} is not a file", hint=f"ls -l {source}")
    with readable(source):
        return source.stat().st_size


def whole_path(path: str) -> None:
    """Refuse what is not the whole path of a file on a node."""
    if not path.startswith("/") or path.endswith("/"):
        raise UsageError(
            "cluster/path",
            f"`{path}` is not the whole path of a file on a node",
            hint="begin it with / and end it with the file's name",
        )


async def _content(source: Path, size: int) -> AsyncIterator[bytes]:
    """The file as it is now, then its digest; a file that shrinks meanwhile ends short, and the node keeps nothing."""
    digest, left = hashlib.sha256(), size
    with readable(source), source.open("rb") as file:
        while left:
            data = file.read(min(left, _CHUNK))
            if not data:
                raise UsageError(
                    "cluster/no-file", f"{source} became shorter while it was copied", hint="copy it again"
                )
            digest.update(data)
            left -= len(data)
            yield data
    yield digest.hexdigest().encode()

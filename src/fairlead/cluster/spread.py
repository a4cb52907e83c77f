"""A push that fans out: the asking side of relay.py. It sends the bytes once, and nodes hand them on to each other.

Nodes stand in a tree in the order in which they are ready, so that nobody waits for one that is late: node i takes from
node (i - 1) div CHILDREN, and from that one's own source if it is lost, and so on up to the first. Every source is an
earlier node, so no loss can make a circle. Who has no source left is sent the rest from here, as the first one is.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import msgspec

from fairlead.base.nodeset import NodeSet
from fairlead.base.program import Program
from fairlead.cluster.channel import MAX_FRAME_BYTES
from fairlead.cluster.copies import readable
from fairlead.cluster.group import Group
from fairlead.cluster.protocol import Result, State
from fairlead.cluster.relay import CHUNK_BYTES, chained, digest_of
from fairlead.errors import UsageError
from fairlead.records.border import Border, Breach, Count, PortOrNone, Text

RELAY = ("fairlead-relay", "fairlead.cluster.channel", "fairlead.cluster.relay")
"""The name and the parts of the program on the nodes."""
CHILDREN = 2
"""With two, a push takes twice what a node's link needs for it, however many nodes there are; more take longer."""
MAX_SOURCES = 12
_GOODBYE_S = 3.0
_MOST = {"ready": 1, "need": 2, "whole": 2, "source": 2 * MAX_SOURCES, "done": 1, "failed": 1}
"""How often a node says each: a chunk that an earlier node had wrong begins the copy once more."""


class Told(msgspec.Struct, kw_only=True):
    """What a node reports of its part of a push; see relay.py."""

    do: Literal["ready", "need", "whole", "source", "done", "failed"]
    port: PortOrNone = 0
    chunk: Count = 0
    error: Text = ""


_told = Border(Told, "a report of a push", max_bytes=1 << 15)


@dataclass(frozen=True, slots=True)
class Source:
    """A local file, or the files of a folder one after the other."""

    entries: tuple[tuple[Any, ...], ...]
    """(path on the node, bytes, mode), with a link's target behind it; see relay.py."""
    paths: tuple[Path, ...]
    is_folder: bool

    @property
    def size(self) -> int:
        """Bytes in all."""
        return sum(entry[1] for entry in self.entries)

    @property
    def num_chunks(self) -> int:
        """Chunks in all."""
        return -(-self.size // CHUNK_BYTES)

    def chunk(self, number: int) -> bytes:
        """One chunk. Raises UsageError where a file is shorter than it was, or gone."""
        at, end = number * CHUNK_BYTES, min(self.size, (number + 1) * CHUNK_BYTES)
        parts, start = [], 0
        for path, (_, size, *_rest) in zip(self.paths, self.entries, strict=True):
            low, high = max(at, start), min(end, start + size)
            if low < high:
                with readable(path), path.open("rb") as file:
                    data = os.pread(file.fileno(), high - low, low - start)
                if len(data) < high - low:
                    raise UsageError(
                        "cluster/no-file", f"{path} became shorter while it was copied", hint="copy it again"
                    )
                parts.append(data)
            start += size
            if start >= end:
                break
        return b"".join(parts)


def source_of(path: Path, mode: int) -> Source:
    """What lies at a path. Raises UsageError `cluster/no-file`."""
    with readable(path):
        return _source_of(path, mode)


def _source_of(path: Path, mode: int) -> Source:
    if path.is_file():
        return Source((("", path.stat().st_size, mode),), (path,), is_folder=False)
    if not path.is_dir():
        raise UsageError("cluster/no-file", f"{path} is neither a file nor a folder", hint=f"ls -l {path}")
    entries: list[tuple[Any, ...]] = []
    paths: list[Path] = []
    for here in sorted(path.rglob("*")):
        name, stat = here.relative_to(path).as_posix(), here.lstat()
        if here.is_symlink():
            entries.append((name, 0, 0, str(here.readlink())))
        elif here.is_dir():
            entries.append((f"{name}/", 0, stat.st_mode & 0o7777))
        elif here.is_file():
            entries.append((name, stat.st_size, stat.st_mode & 0o7777))
        else:
            raise UsageError("cluster/no-file", f"{here} is no regular file", hint=f"ls -l {here}")
        paths.append(here)
    return Source(tuple(entries), tuple(paths), is_folder=True)


def ancestors(index: int) -> list[int]:
    """Whom the index-th node asks, one after the other.

    >>> ancestors(0), ancestors(1), ancestors(6), ancestors(13)
    ([], [0], [2, 0, 1], [6, 2, 0, 1])
    """
    above, at = [], index
    while at:
        at = (at - 1) // CHILDREN
        above.append(at)
    spare = [i for i in range(min(index, 2)) if i not in above]  # where even the first is lost
    return [*above, *spare][:MAX_SOURCES]


@dataclass
class Spread:
    """One push under way."""

    group: Group
    source: Source
    target: str
    addresses: Mapping[str, str]
    """Node -> where the others reach it; a node without one only takes."""
    fanout: int
    limit_s: float = 3600.0
    """How long the nodes have for it."""
    servers: list[tuple[str, str, int]] = field(default_factory=list)
    """(node, address, port) in the order in which they were ready."""
    done: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    heard: Counter[tuple[str, str]] = field(default_factory=Counter)

    async def run(self, nodes: NodeSet) -> list[Result]:
        """To the end; one result a node."""
        group = self.group
        self._slots = asyncio.Semaphore(self.fanout)
        chain = asyncio.create_task(asyncio.to_thread(self._chain))
        packed = zlib.compress(json.dumps(self.source.entries).encode(), 1)
        frames = [packed[at : at + MAX_FRAME_BYTES] for at in range(0, len(packed), MAX_FRAME_BYTES)]
        order = {
            "target": self.target,
            "token": secrets.token_hex(32),
            "is_folder": self.source.is_folder,
            "num_frames": len(frames),
            "limit_s": self.limit_s,
        }
        try:
            for node in nodes:
                group.send(json.dumps({**order, "address": self.addresses.get(node, "")}), to=node)
            for frame in frames:
                await group.room()
                group.send(frame)
            over = (self.done, self.failed)
            while any(all(node not in o for o in over) and (node, None) not in group.heard.ended for node in nodes):
                for line in await group.read_all(1.0):
                    if line.stream == "stdout" and line.text.startswith("{") and line.node not in self.failed:
                        try:
                            self._hear(line.node, _told(line.text), chain)
                        except Breach as breach:
                            self.failed[line.node] = f"it sent {breach}"
                for task in [task for task in self.tasks if task.done()]:
                    self.tasks.discard(task)
                    task.result()
            group.send("bye")
        finally:
            chain.cancel()
            for task in self.tasks:
                task.cancel()
        return [self._result(result) for result in await group.close(_GOODBYE_S)]

    def _hear(self, node: str, said: Told, chain: asyncio.Task[str]) -> None:
        """Raises Breach."""
        self.heard[node, said.do] += 1
        if self.heard[node, said.do] > _MOST[said.do] or said.chunk > self.source.num_chunks:
            raise Breach("a report of a push that cannot be", str(said))
        match said.do:
            case "ready":
                index = len(self.servers)
                sources = [self.servers[i] for i in ancestors(index) if i < index]
                if said.port and node in self.addresses:
                    self.servers.append((node, self.addresses[node], said.port))
                self.group.send(json.dumps(sources), to=node)
            case "need":
                self._begin(self._feed(node, said.chunk))
            case "whole":
                self._begin(self._tell(node, chain))
            case "done":
                self.done.add(node)
            case "failed":
                self.failed[node] = said.error

    def _begin(self, work: Any) -> None:
        self.tasks.add(asyncio.create_task(work))

    async def _feed(self, node: str, chunk: int) -> None:
        """The rest from here."""
        async with self._slots:
            for number in range(chunk, self.source.num_chunks):
                await self.group.room(node)
                if (node, None) in self.group.heard.ended:
                    return
                data = await asyncio.to_thread(self.source.chunk, number)
                self.group.send(digest_of(data) + data, to=node)

    async def _tell(self, node: str, chain: asyncio.Task[str]) -> None:
        self.group.send(await asyncio.shield(chain), to=node)

    def _chain(self) -> str:
        whole = b""
        for number in range(self.source.num_chunks):
            whole = chained(whole, digest_of(self.source.chunk(number)))
        return whole.hex()

    def _result(self, result: Result) -> Result:
        if result.node in self.done:
            return replace(result, state=State.DONE, rc=0, error="", hint="")
        if result.node in self.failed:
            return replace(result, state=State.FAILED, rc=1, error=self.failed[result.node])
        return result


def relay_program() -> Program:
    """The program on the nodes."""
    return Program.of(*RELAY)

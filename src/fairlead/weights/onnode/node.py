"""A node of a spread: carries out what the control side orders, and tells how far it is. Python 3.9.

    orders   setup (files behind it), open, lease, ask, return, take, survey, compare, publish, drop, end: lines of JSON
    tells    here, hello, open, fetched, refused, returned, survey, look, lost, bad, ready, whole, compared, reader,
             dropped, done, failed

A node that lacks nothing looks, says so and publishes. What moves chunks is compiled (`later`) if any node lacks one.

Threads do one thing each: some ask the origin, one or more read from each node this one takes from, one or more send to
each that takes from this one, one has the disk written for good. They meet in `Node`, under one lock, for a few
microseconds a chunk. A chunk is verified when it comes, passed on from memory, and written; it counts when it is on
disk.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import resource
import threading
import time
import zlib

from fairlead.base.later import later
from fairlead.cluster.channel import Channel
from fairlead.weights.onnode.adopt import adopt
from fairlead.weights.onnode.buffers import Buffers
from fairlead.weights.onnode.disk import MAX_UNSYNCED, Disk
from fairlead.weights.onnode.edges import Edge
from fairlead.weights.onnode.fetching import Fetching
from fairlead.weights.onnode.gate import Gate
from fairlead.weights.onnode.giving import Giving
from fairlead.weights.onnode.layout import cut, runs, to_bits
from fairlead.weights.onnode.mrc import mrc_of
from fairlead.weights.onnode.place import Unusable, has_blake3
from fairlead.weights.onnode.present import present
from fairlead.weights.onnode.reader import Reader
from fairlead.weights.onnode.streams import Tcp, Transport
from fairlead.weights.onnode.taking import Taking

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MEMORY_BYTES = 256 << 20
LEAST_BUFFERS = 24
LOOK_S, SYNC_S, TELL_S = 1.0, 0.25, 0.05
MAX_ODD = 100
"""Files told of that no loader would take."""
COMPARING = 8
"""Files that a node reads at a time to compare them with the store's digests."""


class Node:
    """What this node has, who takes from it, and what it was told."""

    def __init__(
        self,
        channel: Channel,
        setup: dict[str, Any],
        files: list[dict[str, Any]],
        leave: Callable[[int], None],
        carrier: Transport | None,
    ) -> None:
        self.leave, self.carrier = leave, carrier
        self.channel, self.me, self.key = channel, setup["me"], bytes.fromhex(setup["key"])
        self.peers: list[tuple[str, int]] = []
        self.streams, self.is_dry = setup["streams"], setup["dry"]
        lengths = {n: file["lengths"] for n, file in enumerate(files) if "lengths" in file}
        chunks = cut([file["size"] for file in files], setup["chunk_bytes"], lengths)
        self.disk = Disk(setup["dest"], files, chunks, setup["chunk_bytes"], setup["stage"], setup["algorithm"])
        self.early, self.chunks, self.files = setup["early"], chunks, files
        count = max(LEAST_BUFFERS, MEMORY_BYTES // setup["chunk_bytes"])
        self.buffers = Buffers(min(count, len(chunks) + LEAST_BUFFERS), setup["chunk_bytes"])
        self.lock = threading.Condition()
        has = present(self.disk)
        is_again = any(file.get("again") for file in files)
        adopted = 0 if is_again else adopt(self.disk, has, is_dry=self.is_dry, alive=lambda: self.tell("here"))
        self.shared = has
        """Chunks that can be passed on."""
        self.has = bytearray(a | b for a, b in zip(has, self.disk.skips))
        self.count = sum(self.has)
        self.hops: dict[int, tuple[int, int]] = {}
        self.edges: dict[int, Edge] = {}
        self.subs: dict[int, str] = {}
        self.sent: dict[int, int] = {}
        self.takings: dict[int, Taking] = {}
        self.runs: list[tuple[int, int]] = []
        self.urls: dict[int, str] = {}
        self.gate, self.connections = Gate(setup["at_once"], setup["rate"]), setup["connections"]
        self.pins, self.headers, self.give_up_s = setup["pins"], setup["headers"], setup["give_up_s"]
        self.told: list[int] = []
        self.said: dict[int, str] = {}
        """File -> the digest that its store gives, of those not yet told."""
        self.holds, self.has_md5_tags = setup["holds"], setup["md5_tags"]
        """Files get no names before the control side says so."""
        self.over = self.complete = self.waits = False
        self.counts = {
            "origin_bytes": 0,
            "origin_requests": 0,
            "retries": 0,
            "peer_bytes": 0,
            "sent_bytes": 0,
            "doubles": 0,
            "adopted_bytes": adopted,
        }
        self.by = setup["transport"]
        self.transport: Any = carrier
        """How others are reached; nothing before `open`."""
        self.reader = None
        if setup["reader"] and not self.is_dry:
            later()
            self.reader = Reader(self.disk, setup["reader"])

    def open(self, order: dict[str, Any]) -> None:
        """Be there for others, and say where; from now on chunks are fetched. Raises Unusable."""
        later()
        if self.carrier is None and self.by == "tcp":
            self.transport = Tcp(order["address"], order["also"], ahead_bytes=self.disk.chunk_bytes // 2)
        elif self.carrier is None:
            self.transport = mrc_of(order["address"], order["place"], self.key)  # the first compiles for half a minute
        self.start(Giving(self).serve)
        for _ in range(self.connections):
            self.start(Fetching(self, self.headers, self.give_up_s, has_md5_tags=self.has_md5_tags).run)
        self.tell("open", port=self.transport.port)

    # ---- what all threads share --------------------------------------------------------------------------------------

    def tell(self, do: str, **what: Any) -> None:
        """One message to the control side."""
        self.channel.say(json.dumps({"do": do, **what}, separators=(",", ":")))

    def got(self, number: int, buffer: Any, length: int, digest: bytes, parts: Any, hops: int, first: int) -> None:
        """A verified chunk: passed on, then written."""
        with self.lock:
            if self.has[number] or self.over:
                self.counts["doubles"] += 1
                self.buffers.give(buffer)
                return
            self.has[number] = self.shared[number] = 1
            self.disk.digests[number] = digest
            self.buffers.keep(number, buffer, length)
            self.hops[number] = (hops, first)
            for edge in self.edges.values():
                edge.offer(number, hops, first)
            if not hops:
                self.told.append(number)
            takings = list(self.takings.values()) if not hops else []
            self.lock.notify_all()
        for taking in takings:
            taking.have([number])
        try:
            self.disk.write(number, memoryview(buffer)[:length], digest, parts)
        finally:
            self.buffers.let_go(number)

    def fail(self, error: BaseException) -> None:
        """This node cannot go on: said once, then it ends."""
        if isinstance(error, Unusable):
            self.tell("failed", code=error.code, text=error.text, hint=error.hint)
        else:
            self.tell("failed", code="weights/node-fault", text=f"{type(error).__name__}: {error}", hint="")
        self.stop()
        self.leave(3)

    def stop(self) -> None:
        """Every thread comes to its end."""
        with self.lock:
            self.over = True
            self.lock.notify_all()
        if self.reader is not None:
            self.reader.kill()

    def start(self, work: Any, *args: Any) -> threading.Thread:
        """A thread whose fault is this node's."""

        def run() -> None:
            try:
                work(*args)
            except BaseException as error:
                if not self.over:
                    self.fail(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    # ---- the main thread ---------------------------------------------------------------------------------------------

    def keep(self) -> None:
        """Have the disk written for good, count, publish, tell."""
        told = 0.0
        while not self.over:
            time.sleep(TELL_S)
            now = time.monotonic()
            with self.lock:
                fetched, self.told = self.told, []
                said, self.said = self.said, {}
            if fetched or said:
                self.tell("fetched", chunks=fetched, digests=said)
            if now - told >= SYNC_S or self.is_whole() or self.disk.unsynced_bytes > MAX_UNSYNCED // 2:
                told = now
                self.count += len(self.disk.sync())
                for number in range(self.early):
                    if self.disk.publish(number):
                        self.tell("ready", file=number)
                if self.count == len(self.chunks) and not self.complete and not self.said:
                    self.finish()

    def look_on(self) -> None:
        """Say how far this node is, also while the disk takes its time."""
        while not self.over:
            self.look()
            time.sleep(LOOK_S)

    def is_whole(self) -> bool:
        """Everything has come, though it may not be on the disk."""
        return not self.complete and all(self.has)

    def finish(self) -> None:
        """Everything is on the disk: the files get their names."""
        if self.holds:
            if not self.waits:
                self.waits = True
                self.look()
                self.tell("whole")
            return
        self.complete = True
        for number in range(len(self.files)):
            self.disk.publish(number)
        root = self.disk.finish()
        self.look()
        paths = {file["path"] for file in self.files}
        odd = ((n, self.disk.odd(n, paths)) for n in range(len(self.files)))
        if self.reader is not None:
            self.reader.over.wait()
        self.tell("done", root=root, odd=list(itertools.islice(([n, why] for n, why in odd if why), MAX_ODD)))

    def feed(self, reader: Reader) -> None:
        """Have the command read, as soon as files may have their names."""
        reader.run(lambda: not self.holds, lambda: self.over)
        if reader.why:
            self.tell("reader", text=reader.why)

    def compare(self, files: dict[int, str]) -> None:
        """Read these files and say which digest they have, several at a time: hashing leaves other threads alone."""

        def read(file: int) -> None:
            self.tell("compared", file=file, found=self.disk.stored_digest(file, files[file]))

        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(COMPARING) as pool:
            for _ in pool.map(read, files):
                pass

    def drop(self, files: list[int]) -> None:
        """What came of these files is not what was uploaded: the next run fetches them anew."""
        self.disk.drop({chunk for file in files for chunk in self.disk.of_file[file]})
        self.tell("dropped")

    def look(self) -> None:
        """How far this node is."""
        with self.lock:
            backlog = {peer: edge.backlog for peer, edge in self.edges.items()}
            sent, busy = dict(self.sent), self.gate.num_busy
            counts = dict(self.counts)
        used = resource.getrusage(resource.RUSAGE_SELF)
        rss = used.ru_maxrss << 10
        what = {
            "has": self.count,
            "came": sum(self.has),
            "rss_bytes": rss,
            "cpu_s": round(used.ru_utime + used.ru_stime, 3),
        }
        self.tell("look", backlog=backlog, sent=sent, busy=busy, counts=counts, **what)

    def obey(self, order: dict[str, Any]) -> bool:
        """One order; False for the last one."""
        do = order["do"]
        if do == "lease":
            with self.lock:
                self.urls.update((int(n), url) for n, url in order["urls"].items())
                self.runs += runs(self.chunks, order["chunks"], order["request_bytes"])
                self.lock.notify_all()
        elif do == "ask":
            self.gate.allow(order["at_once"])
        elif do == "open":
            self.start(self.open, order)
        elif do == "take":
            self.take(order)
        elif do == "return":
            with self.lock:
                left = [first + i for first, count in self.runs for i in range(count)]
                self.runs = []
            self.tell("returned", chunks=left)
        elif do == "survey":
            with self.lock:
                self.tell("survey", has=to_bits(self.shared))
        elif do == "compare":
            self.start(self.compare, {int(file): said for file, said in order["files"].items()})
        elif do == "publish":
            self.holds = False
        elif do == "drop":
            self.start(self.drop, order["files"])
        elif do == "end":
            return False
        return True

    def take(self, order: dict[str, Any]) -> None:
        """Take from these nodes from now on."""
        wanted = {source["node"]: source for source in order["sources"]}
        with self.lock:
            gone = [
                self.takings.pop(n) for n in list(self.takings) if n not in wanted or self.takings[n].differs(wanted[n])
            ]
            new = [Taking(self, source, order["width"]) for n, source in wanted.items() if n not in self.takings]
            self.takings.update((taking.peer, taking) for taking in new)
        for taking in gone:
            taking.stop()
        for taking in new:
            taking.begin()

    def run(self) -> None:
        """Until the control side says it is over, or is gone."""
        self.start(self.keep)
        self.start(self.look_on)
        if self.reader is not None:
            self.start(self.feed, self.reader)
        while True:
            order = self.channel.read()
            if not self.obey(json.loads(order)):  # type: ignore[arg-type]
                break
        self.stop()
        if self.is_dry:
            self.disk.leave()
        self.leave(0)


def main() -> None:
    """A process of its own on a node."""
    take_part(Channel(), os._exit, None)
    os._exit(1)


def take_part(channel: Channel, leave: Callable[[int], None], carrier: Transport | None) -> None:
    """The setup and the files come first; then orders. `leave` is called when it is over, or this node cannot go on;
    `carrier` is the transport, where whoever started this brings it. Returns where the control side is gone, or the
    node never took part.
    """
    channel.say(json.dumps({"do": "here", "blake3": has_blake3()}))
    setup = json.loads(channel.read())  # type: ignore[arg-type]
    try:
        packed = b"".join(channel.read() for _ in range(setup["num_frames"]))  # type: ignore[misc]
        node = Node(channel, setup, json.loads(zlib.decompress(packed)), leave, carrier)
        need, free = node.disk.needed_bytes(node.has), node.disk.free_bytes()
    except Unusable as why:
        channel.say(json.dumps({"do": "failed", "code": why.code, "text": why.text, "hint": why.hint}))
        leave(0)
        return
    node.tell("hello", need_bytes=need, free_bytes=free, has=to_bits(node.shared), skips=to_bits(node.disk.skips))
    with contextlib.suppress(EOFError):
        node.run()
    node.stop()

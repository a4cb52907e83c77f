"""A node that another one takes from: its connections, and what comes by them. Python 3.9."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections import deque

from fairlead.weights.onnode.layout import bytes_of, to_bits, to_flags
from fairlead.weights.onnode.streams import Broken
from fairlead.weights.onnode.wire import CHUNK, HAVE, LACK, STILL, Link, greet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from fairlead.weights.onnode.node import Node

AGAIN_S = 0.3
"""Between two tries to reach a node."""
MOST_AGAIN_S = 5.0
"""The same for a lane that does not carry, after some tries."""


class Taking:
    """One node that this one takes from, over several connections."""

    def __init__(self, node: Node, source: dict[str, Any], width: int) -> None:
        self.node, self.source, self.width = node, source, width
        self.peer, self.kind = source["node"], source["kind"]
        self.sub, self.links, self.stopped = "", {}, False  # type: ignore[var-annotated]
        self.lock = threading.Lock()

    def differs(self, source: dict[str, Any]) -> bool:
        """Whether it is asked for otherwise now."""
        return bool(source != self.source)

    def begin(self) -> None:
        """Start its threads: the first connection says what this node has, the others join it."""
        self.node.start(self.hold)

    def stop(self) -> None:
        """No longer."""
        self.stopped = True
        for link in list(self.links.values()):
            link.close()

    def hold(self) -> None:
        """Connect, take, and connect again when that breaks, as long as it is wanted.

        As many connections over each rail that the two have in common. The first of them is tried by one after the
        other, and then by whatever way the kernel has.
        """
        firsts = deque([*self.source["lanes"], ()])
        while not self.stopped and not self.node.over:
            self.sub = os.urandom(8).hex()
            with self.node.lock:
                has = to_bits(self.node.has)
            hello = {
                "me": self.node.me,
                "sub": self.sub,
                "kind": self.kind,
                "width": self.width,
                "has": has,
                "joins": 0,
            }
            try:
                link = self.greeting(hello, firsts[0])
            except (Broken, OSError) as error:
                self.node.tell("lost", peer=self.peer, why=str(error))
                firsts.rotate(-1)
                time.sleep(AGAIN_S)
                continue
            with self.node.lock:
                came = [
                    n for n, flag in enumerate(to_flags(has, len(self.node.chunks))) if self.node.has[n] and not flag
                ]
            links, ended = {0: link}, threading.Event()
            self.links = links
            self.have(came)
            rails = [rail for rail in firsts if rail] or [()]  # that of the first connection stands first
            width = len(rails) * -(-self.node.streams // len(rails))
            for i in range(1, width):
                self.node.start(self.more, i, hello, rails[i % len(rails)], links, ended)
            why = self.read(link)
            ended.set()
            for left in list(links.values()):
                left.close()
            if not self.stopped and not self.node.over:
                self.node.tell("lost", peer=self.peer, why=why)
                firsts.rotate(-1)
                time.sleep(AGAIN_S)

    def greeting(self, hello: dict[str, Any], lane: Sequence[str] = ()) -> Link:
        """One connection, from an address to one where a lane is named. Raises Broken or OSError."""
        here, there = lane or ("", self.source["address"])
        return greet(self.node.transport.connect(there, self.source["port"], here), self.node.key, hello)

    def more(
        self, number: int, hello: dict[str, Any], lane: Sequence[str], links: dict[int, Link], ended: threading.Event
    ) -> None:
        """One more connection beside the first, as long as that one is there. A lane that does not carry is tried
        again; every third time the kernel's own way is, as several ports in one subnet may have none of their own.
        """
        wait_s = AGAIN_S
        for tries in itertools.count(1):
            if ended.is_set():
                return
            with contextlib.suppress(Broken, OSError):
                link = self.greeting({**hello, "has": "", "joins": 1}, lane if tries % 3 else ())
                links[number] = link
                if not ended.is_set():
                    self.read(link)
                link.close()
            ended.wait(wait_s)
            wait_s = min(2 * wait_s, MOST_AGAIN_S)

    def read(self, link: Link) -> str:
        """Take chunks until it ends; returns why."""
        node = self.node
        try:
            while not self.stopped and not node.over:
                kind, number, hops, first, length, digest = link.receive()
                if kind != CHUNK:
                    link.notice(length, digest)
                    with self.lock:
                        link.send(STILL)
                    continue
                if number >= len(node.chunks) or length != bytes_of(node.chunks[number]):
                    return "it sent a chunk that there is not"
                (buffer,) = node.buffers.take()
                try:
                    view = memoryview(buffer)[:length]
                    link.read(view)
                    found, parts = node.disk.digest_chunk(number, view)
                    view.release()
                    if found != digest or not node.disk.is_right(number, found):
                        node.tell("bad", peer=self.peer, chunk=number)
                        with self.lock:
                            link.send(LACK, number.to_bytes(4, "big"))
                        node.buffers.give(buffer)
                        continue
                except BaseException:
                    node.buffers.give(buffer)
                    raise
                with node.lock:
                    node.counts["peer_bytes"] += length
                node.got(number, buffer, length, digest, parts, hops, first)
        except (Broken, OSError) as why:
            return str(why)
        return ""

    def have(self, numbers: list[int]) -> None:
        """Tell that these came otherwise: they need not be sent."""
        link = self.links.get(0)
        if link is None or not numbers:
            return
        try:
            with self.lock:
                for at in range(0, len(numbers), 4096):
                    link.send(HAVE, b"".join(n.to_bytes(4, "big") for n in numbers[at : at + 4096]))
        except (Broken, OSError):
            link.close()

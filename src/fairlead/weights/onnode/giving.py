"""What a node sends to those that take from it: who connects and knows the key is sent what it lacks. Python 3.9."""

from __future__ import annotations

import threading
import time

from fairlead.weights.onnode.edges import KINDS, Edge
from fairlead.weights.onnode.layout import bytes_of, to_flags
from fairlead.weights.onnode.place import Unusable
from fairlead.weights.onnode.streams import QUIET_S, Broken
from fairlead.weights.onnode.wire import CHUNK, HAVE, LACK, STILL, Link, greeted

JOIN_S = 2.0
"""How long a further connection waits for the first one."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fairlead.weights.onnode.node import Node


class Giving:
    """All connections of those that take from this node."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def serve(self) -> None:
        """Whoever connects and knows the key is sent what it lacks."""
        node = self.node
        while not node.over:
            knock = node.transport.accept()
            threading.Thread(target=self.give, args=(knock,), daemon=True).start()

    def give(self, knock: Any) -> None:
        """One connection, to its end."""
        node = self.node
        try:
            stream = node.transport.answer(knock)
        except (Broken, OSError):
            return
        try:
            link, hello = greeted(stream, node.key)
        except (Broken, OSError, ValueError):
            stream.close()
            return
        peer, sub = -1, ""
        try:
            self.admit(int(hello["me"]), str(hello["sub"]), hello)
            peer, sub = int(hello["me"]), str(hello["sub"])
            threading.Thread(target=self.listen, args=(link, peer, sub), daemon=True).start()
            self.send(link, peer, sub)
        except (Broken, OSError, KeyError, ValueError, TypeError):
            pass
        except BaseException as error:
            if not node.over:
                node.fail(error)
        finally:
            link.close()
            with node.lock:  # who comes again says anew what it has; for who does not, nothing waits
                if node.subs.get(peer) == sub:
                    del node.subs[peer], node.edges[peer]
                node.lock.notify_all()

    def admit(self, peer: int, sub: str, hello: dict[str, Any]) -> None:
        """A node takes from this one, by one connection or several. Raises ValueError for what cannot be."""
        node = self.node
        with node.lock:
            if hello["joins"]:
                # the thread of the first connection may come to this later than that of the second
                if not node.lock.wait_for(lambda: node.over or node.subs.get(peer) == sub, JOIN_S):
                    raise ValueError  # what it belonged to has ended
                return
            if hello["kind"] not in KINDS:
                raise ValueError
            edge = Edge(hello["kind"], node.me, peer, int(hello["width"]), to_flags(hello["has"], len(node.chunks)))
            for number, flag in enumerate(node.shared):
                if flag:
                    hops, first = node.hops.get(number, (1, -1))
                    edge.offer(number, hops, first)
            node.edges[peer], node.subs[peer] = edge, sub
            node.sent.setdefault(peer, 0)
            node.lock.notify_all()

    def send(self, link: Link, peer: int, sub: str) -> None:
        """Chunk after chunk, those of the ring before those of whoever hangs at it."""
        node = self.node
        while True:
            with node.lock:
                number, until = -1, time.monotonic() + QUIET_S / 4
                while not node.over and node.subs.get(peer) == sub and time.monotonic() < until:
                    edge = node.edges[peer]
                    ring_waits = not edge.is_main and any(e.is_main and e.backlog > 2 for e in node.edges.values())
                    number = -1 if ring_waits else edge.next()
                    if number >= 0:
                        break
                    node.lock.wait(0.05 if ring_waits else until - time.monotonic())
                if node.over or node.subs.get(peer) != sub:
                    return
                hops, first = node.hops.get(number, (1, -1))
                if number >= 0:
                    node.sent[peer] += 1
            if number < 0:
                link.send(STILL)
                continue
            view = node.buffers.pin(number)
            try:
                data = view if view is not None else self.from_disk(number)
                link.send(CHUNK, data, chunk=number, hops=hops + 1, first=first, digest=node.disk.digests[number])
            finally:
                if view is not None:
                    view.release()
                    node.buffers.let_go(number)
            with node.lock:
                node.counts["sent_bytes"] += bytes_of(node.chunks[number])
                node.lock.notify_all()  # there may be room to fetch more

    def from_disk(self, number: int) -> memoryview:
        """A chunk that is no longer in memory. Raises Unusable where the disk gives back other bytes than were
        written.
        """
        node = self.node
        data = memoryview(bytearray(bytes_of(node.chunks[number])))
        node.disk.read(number, data)
        if node.disk.digest_chunk(number, data)[0] != node.disk.digests[number]:
            path = node.files[node.chunks[number][0][0]]["path"]
            raise Unusable(
                "weights/rotten", f"the disk gives back other bytes of {path} than were written", "dmesg | tail"
            )
        return data

    def listen(self, link: Link, peer: int, sub: str) -> None:
        """What a node that takes says: what it got otherwise, and what did not come whole."""
        node = self.node
        try:
            while not node.over and node.subs.get(peer) == sub:
                # it has nothing to say while chunks come; whether it lives, sending finds out
                if not link.has_news(1.0):
                    continue
                kind, _, _, _, length, digest = link.receive()
                data = link.notice(length, digest)
                numbers = [int.from_bytes(data[i : i + 4], "big") for i in range(0, len(data), 4)]
                if kind == STILL:
                    continue
                if any(n >= len(node.chunks) for n in numbers):
                    raise Broken("a chunk that there is not")  # noqa: TRY301
                with node.lock:
                    if node.subs.get(peer) != sub:
                        return
                    if kind == HAVE:
                        node.edges[peer].peer_has(numbers)
                    elif kind == LACK:
                        for n in numbers:
                            node.edges[peer].peer_lacks(n, *node.hops.get(n, (1, -1)))
                    node.lock.notify_all()
        except (Broken, OSError):
            link.close()

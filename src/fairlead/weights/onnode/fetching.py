"""What a node fetches from the origin: the chunks that it is leased, by ranges, verified where a manifest says what
they are. Python 3.9.
"""

from __future__ import annotations

from fairlead.weights.onnode.edges import may_fetch
from fairlead.weights.onnode.layout import bytes_of
from fairlead.weights.onnode.origin import Origin, Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fairlead.weights.onnode.node import Node


class Fetching:
    """One thread's way from the origin into the node."""

    def __init__(self, node: Node, headers: dict[str, str], give_up_s: float, *, has_md5_tags: bool) -> None:
        self.node = node
        self.origin = Origin(
            node.gate, headers, give_up_s=give_up_s, stopped=lambda: node.over, has_md5_tags=has_md5_tags
        )

    def run(self) -> None:
        """Ask the origin for what is leased, as long as the spread goes on."""
        node, origin = self.node, self.origin
        while True:
            with node.lock:
                while not node.over and not (node.runs and may_fetch(node.edges.values())):
                    node.lock.wait()
                if node.over:
                    return
                first, count = node.runs.pop(0)
            numbers = [first + i for i in range(count)]
            asked, retried = origin.asked, origin.retried
            try:
                self.fetch(numbers)
            except Refused as why:
                left = [n for n in numbers if not node.has[n]]
                what = {"final": why.final, "stale": why.stale, "kind": why.kind, "of": why.file}
                node.tell("refused", chunks=left, why=str(why), **what)
            with node.lock:
                node.counts["origin_requests"] += origin.asked - asked
                node.counts["retries"] += origin.retried - retried

    def fetch(self, numbers: list[int]) -> None:
        """Neighbouring chunks of one file by one request, or one packed chunk by a request for each file."""
        node = self.node
        if all(node.has[n] for n in numbers):
            with node.lock:
                node.told += numbers
            return
        taken = node.buffers.take(len(numbers))
        passed = 0

        def full(index: int) -> None:
            nonlocal passed
            self.fetched(numbers[index], taken[index], bytes_of(node.chunks[numbers[index]]))
            passed += 1

        try:
            if len(node.chunks[numbers[0]]) > 1:
                at = 0
                for file, offset, length in node.chunks[numbers[0]]:
                    view = memoryview(taken[0])[at : at + length]
                    self.ask(file, offset, [view], lambda _: None)
                    at += length
                full(0)
            else:
                file, start, _ = node.chunks[numbers[0]][0]
                views = [memoryview(b)[: node.chunks[n][0][2]] for n, b in zip(numbers, taken)]
                self.ask(file, start, views, full)
        finally:
            for buffer in taken[passed:]:
                node.buffers.give(buffer)

    def ask(self, file: int, start: int, views: list[memoryview], full: Any) -> None:
        """Bytes of one file."""
        node, what = self.node, self.node.files[file]
        try:
            self.origin.read(node.urls[file], what["size"], what["tag"] if node.pins else "", start, views, full)
        except Refused as why:
            why.file = file
            raise
        if node.holds and self.origin.digest:
            with node.lock:
                node.said[file] = self.origin.digest

    def fetched(self, number: int, buffer: Any, length: int) -> None:
        """It came from the origin. Raises Refused where a manifest says that it is something else."""
        node = self.node
        digest, parts = node.disk.digest_chunk(number, memoryview(buffer)[:length])
        if not node.disk.is_right(number, digest):
            raise Refused("its bytes are not what the manifest beside it says", final=True, kind="manifest")
        with node.lock:
            node.counts["origin_bytes"] += length
        node.got(number, buffer, length, digest, parts, 0, node.me)

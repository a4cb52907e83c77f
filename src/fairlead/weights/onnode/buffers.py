"""The memory of a node in a spread: a fixed number of chunks, however large the model. Python 3.9."""

from __future__ import annotations

import itertools
import mmap
import threading
from collections import OrderedDict


class Buffers:
    """A fixed number of chunks in memory: those under way, and of the others the latest, to be passed on without a
    read.
    """

    def __init__(self, count: int, size: int) -> None:
        self.size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        self.free = [mmap.mmap(-1, self.size) for _ in range(count)]
        self.kept: OrderedDict[int, tuple[mmap.mmap, int]] = OrderedDict()
        self.pins: dict[int, int] = {}
        self.moved = threading.Condition()

    def take(self, count: int = 1) -> list[mmap.mmap]:
        """So many empty ones, all or none: two that hold some and wait for more would wait for each other. Of what is
        kept the oldest go. Waits while too many are under way.
        """
        with self.moved:
            while True:
                lacks = max(0, count - len(self.free))
                oldest = list(itertools.islice((c for c in self.kept if not self.pins.get(c)), lacks))
                if len(oldest) == lacks:
                    self.free += [self.kept.pop(c)[0] for c in oldest]
                    return [self.free.pop() for _ in range(count)]
                self.moved.wait()

    def keep(self, chunk: int, buffer: mmap.mmap, length: int) -> None:
        """It holds this chunk now, and stays at least until it is let go."""
        with self.moved:
            self.kept[chunk] = (buffer, length)
            self.pins[chunk] = self.pins.get(chunk, 0) + 1

    def pin(self, chunk: int) -> memoryview | None:
        """The bytes of a chunk that is kept; to be let go."""
        with self.moved:
            found = self.kept.get(chunk)
            if found is None:
                return None
            self.kept.move_to_end(chunk)
            self.pins[chunk] = self.pins.get(chunk, 0) + 1
            return memoryview(found[0])[: found[1]]

    def let_go(self, chunk: int) -> None:
        """Nobody of ours looks at it any more."""
        with self.moved:
            self.pins[chunk] -= 1
            if not self.pins[chunk]:
                del self.pins[chunk]
                self.moved.notify_all()

    def give(self, buffer: mmap.mmap) -> None:
        """It is empty again."""
        with self.moved:
            self.free.append(buffer)
            self.moved.notify_all()

"""What all groups of live processes share: the ways to them, what waits to be taken, reading, the end.

Must not know how processes are started: live.py and tasks.py do.
"""

from __future__ import annotations

import abc
import asyncio
import time
from collections import deque
from collections.abc import Callable

from fairlead.cluster.heard import Heard
from fairlead.cluster.onnode.guard import STUCK_S
from fairlead.cluster.protocol import Line, Message, Result

MAX_UNSENT_BYTES = 4 << 20
"""What may wait for one way to take it; then `send` waits, and a way that takes nothing for STUCK_S is stopped."""


class Outbox:
    """What waits to be taken by one way."""

    def __init__(self) -> None:
        self._waiting: deque[bytes] = deque()
        self._num_bytes = 0
        self._moved = asyncio.Event()
        self.moved_s = time.monotonic()
        """When something was last taken, or nothing waited."""

    @property
    def is_full(self) -> bool:
        """Whether more should wait."""
        return self._num_bytes >= MAX_UNSENT_BYTES

    def put(self, data: bytes) -> None:
        """Behind all that waits."""
        if not self._waiting:
            self.moved_s = time.monotonic()
        self._waiting.append(data)
        self._num_bytes += len(data)
        self._moved.set()

    async def take(self) -> bytes:
        """The next."""
        while not self._waiting:
            self._moved.clear()
            await self._moved.wait()
        data = self._waiting.popleft()
        self._num_bytes -= len(data)
        self.moved_s = time.monotonic()
        return data


class Group(abc.ABC):
    """What all kinds share: who takes part, what they have said, and who has ended."""

    kind = "processes"
    """`tasks` where a scheduler runs them."""
    knows_places = True
    """Whether `node` of what they say is sure, also where a scheduler chose it."""

    def __init__(self, heard: Heard, record: Callable[[list[Result]], None]) -> None:
        """`record` is told the results at the end."""
        self.heard, self._record = heard, record

    @property
    @abc.abstractmethod
    def num_running(self) -> int:
        """Conversations that still go on."""

    @property
    @abc.abstractmethod
    def num_starting(self) -> int:
        """Nodes that have not been reached yet, and not been given up."""

    @abc.abstractmethod
    def has(self, to: str | int) -> bool:
        """Whether a node, or a rank, takes part."""

    @abc.abstractmethod
    def ways(self, to: str | int | None) -> list[Outbox]:
        """Where a message to a node, to a rank or to all goes. Those that have ended have none."""

    @abc.abstractmethod
    def address(self, message: Message, to: str | int | None) -> list[bytes]:
        """The message as it goes over each of these ways."""

    @abc.abstractmethod
    def stop_way(self, way: Outbox) -> None:
        """End what is behind a way that takes nothing any more."""

    def give_up(self, node: str) -> None:  # noqa: B027 - where all share one fate, nothing
        """Cut a node off at once, without hearing what it has to say."""

    def send(self, message: Message, to: str | int | None = None) -> None:
        """A line (str) or a frame (bytes), to all or to a node or a rank. Never waits; see `room`."""
        ways = self.ways(to)
        for data in self.address(message, to) if ways else ():
            for way in ways:
                way.put(data)

    def is_full(self, to: str | int | None = None) -> bool:
        """Whether so much waits already that one should wait for `room` before sending more."""
        return any(way.is_full for way in self.ways(to))

    async def room(self, to: str | int | None = None) -> None:
        """Until more can be sent. A way that takes nothing is stopped, so this ends."""
        while full := [way for way in self.ways(to) if way.is_full]:
            for way in full:
                if time.monotonic() - way.moved_s > 2 * STUCK_S:
                    self.stop_way(way)
            await asyncio.sleep(0.01)

    async def read(self, timeout_s: float) -> Line | None:
        """The next line or frame; None if none came in time, if a process ended, or if all have."""
        if not self.heard.has_unread and self.num_running:
            await self.heard.news(timeout_s)
        return next(iter(self.heard.take(1)), None)

    async def read_all(self, timeout_s: float) -> list[Line]:
        """All that waits to be read, after waiting for the first as `read` does."""
        if not self.heard.has_unread and self.num_running:
            await self.heard.news(timeout_s)
        return self.heard.take()

    async def close(self, grace_s: float = 0.0) -> list[Result]:
        """Wait `grace_s` for them to end, stop those that have not, and return a result for each, in order."""
        results = await self.stop(grace_s)
        self._record(results)
        return results

    @abc.abstractmethod
    async def stop(self, grace_s: float) -> list[Result]:
        """As `close`, without telling anybody."""

"""What a group of processes has said and not been asked for yet, and who lives: bounded, fair to all who speak. No I/O.

Each way to a process, or to all of a node's, is a Source. A source that is ahead of the reader is not read on before
the reader has caught up, so one that talks without end fills its own share and nobody else's.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from fairlead.cluster.protocol import Line, Result

Key = tuple[str, int | None]
"""A node, and the rank there; None where a node runs one process."""

MAX_UNREAD_BYTES = 64 << 20
"""Of all sources together."""
MIN_SHARE_BYTES = 64 << 10
"""Of one source, however many there are."""
LINE_COST_BYTES = 200
"""What a line in memory weighs beside its text."""


class Beat(NamedTuple):
    """The last sign of life of a process."""

    at_s: float
    """By time.monotonic()."""
    text: str
    """What it says it is doing."""


@dataclass(eq=False)
class Source:
    """One way that lines come; `wanted` is clear while no more of them are."""

    share_bytes: int
    wanted: asyncio.Event = field(default_factory=asyncio.Event)
    unread_bytes: int = 0

    def __post_init__(self) -> None:
        self.wanted.set()


class Heard:
    """Lines that wait to be read, who has ended, who was alive when."""

    def __init__(self, num_sources: int) -> None:
        self._share = max(MIN_SHARE_BYTES, MAX_UNREAD_BYTES // max(1, num_sources))
        self._lines: deque[tuple[Source, Line]] = deque()
        self._news = asyncio.Event()
        self._new_ends: list[tuple[Key, Result]] = []
        self._has_new_end = False
        self.ended: dict[Key, Result] = {}
        self.beats: dict[Key, Beat] = {}
        self.begun: dict[str, float] = {}
        self.alive: dict[str, float] = {}

    def source(self) -> Source:
        """A new one."""
        return Source(self._share)

    def hear(self, source: Source, line: Line) -> None:
        """One line, or frame."""
        self._lines.append((source, line))
        source.unread_bytes += _cost(line)
        if source.unread_bytes >= source.share_bytes:
            source.wanted.clear()
        self._news.set()

    def end(self, key: Key, result: Result) -> None:
        """One has ended."""
        self.ended[key] = result
        self._new_ends.append((key, result))
        self._has_new_end = True
        self._news.set()

    def wake(self) -> None:
        """Let whoever waits for news look again."""
        self._news.set()

    @property
    def has_unread(self) -> bool:
        """Whether something that was said has not been read."""
        return bool(self._lines)

    def take(self, most: int = 1 << 30) -> list[Line]:
        """The next lines, at most so many."""
        taken: list[Line] = []
        while self._lines and len(taken) < most:
            source, line = self._lines.popleft()
            source.unread_bytes -= _cost(line)
            if source.unread_bytes <= source.share_bytes // 2:
                source.wanted.set()
            taken.append(line)
        return taken

    def take_ended(self) -> list[tuple[Key, Result]]:
        """Those that ended since this was last asked."""
        taken, self._new_ends = self._new_ends, []
        return taken

    async def news(self, timeout_s: float) -> None:
        """Until a line waits, or one has ended since the last time, or the time is over."""
        if not self._lines and not self._has_new_end:
            self._news.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._news.wait()
        self._has_new_end = False


def _cost(line: Line) -> int:
    return len(line.text) + len(line.data) + LINE_COST_BYTES

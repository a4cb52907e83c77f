"""How many questions the engine has at once, how many wait, and for how long."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator

from fairlead.serve.endpoint.asked import Refused


class Admission:
    """`running` at once, `waiting` in a queue, first come first served, at most `wait_s` seconds."""

    def __init__(self, *, running: int, waiting: int, wait_s: float) -> None:
        self._places = asyncio.Semaphore(running)
        self._most = running + waiting
        self._wait_s = wait_s
        self.running = 0
        self.present = 0
        """Running, waiting and still sending their body."""
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def waiting(self) -> int:
        """Those that have no place yet."""
        return self.present - self.running

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """For the whole of a request. Raises Refused (429)."""
        if self.present >= self._most:
            raise Refused(429, "rate_limit_exceeded", "too many requests at once; try again", again_s=1)
        self.present += 1
        self._empty.clear()
        try:
            yield
        finally:
            self.present -= 1
            if not self.present:
                self._empty.set()

    @contextlib.asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """For the time at the engine. Raises Refused (503)."""
        try:
            async with asyncio.timeout(self._wait_s):
                await self._places.acquire()
        except TimeoutError:
            text = f"no place was free for {self._wait_s:g} s; try again"
            raise Refused(503, "overloaded", text, again_s=5) from None
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1
            self._places.release()

    async def empty(self) -> None:
        """Once nobody is here."""
        await self._empty.wait()

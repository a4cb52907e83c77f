"""The limit of one call. It stands still while the call waits for others of its own rank, and while the rank does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable


class Clock:
    """Stands until it is started; all in one event loop."""

    def __init__(self, limit_s: float) -> None:
        """`limit_s` 0: no limit."""
        self._limit_s = limit_s
        self._end: float | None = None  # by the loop's time
        self._timeout: asyncio.Timeout | None = None

    async def limit(self, job: Awaitable[None]) -> None:
        """Do it. Raises TimeoutError when the time is over."""
        try:
            async with asyncio.timeout_at(self._end) as self._timeout:
                await job
        finally:
            self._timeout = None

    def start(self) -> None:
        """From now on the time runs; once."""
        if self._end is None and self._limit_s:
            self._set(asyncio.get_running_loop().time() + self._limit_s)

    def put_off(self, by_s: float) -> None:
        """So long this rank stood still."""
        if self._end is not None:
            self._set(self._end + by_s)

    def _set(self, end: float) -> None:
        self._end = end
        if self._timeout is not None and not self._timeout.expired():
            self._timeout.reschedule(end)

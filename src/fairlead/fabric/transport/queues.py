"""Completion queues one can wait on: a descriptor that becomes readable, a call that waits, an awaitable."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import select
import threading
import time
from collections.abc import Iterator

from fairlead.fabric.mrc import completion
from fairlead.fabric.mrc.completion import Completion


class _Held(threading.local):
    queues: list[CompletionQueue] | None = None


_held = _Held()


@contextlib.contextmanager
def told_at_the_end() -> Iterator[None]:
    """Wake who waits at the queues that this thread fills when it is through, without a lock that they ask for next.

    Each wake-up lets another thread of Python run, and a thread that is woken amid the work of this one stops it.
    """
    queues = _held.queues = []
    try:
        yield
    finally:
        _held.queues = None
        for queue in queues:
            queue.tell()


class CompletionQueue(completion.CompletionQueue):
    """A completion queue of the core, filled by the context's thread and emptied by the application's."""

    def __init__(self, depth: int) -> None:
        """Room for so many requests that are posted or done and not yet polled."""
        super().__init__(depth)
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        """A descriptor that is readable when something may have been added since the last wait."""
        return self._fd

    def add(self, completion: Completion) -> None:
        """Enter finished work, and wake who waits, now or at the end of `told_at_the_end`."""
        super().add(completion)
        if len(self) > 1:  # where others wait before it the descriptor is readable, or will be
            return
        if _held.queues is None:
            self.tell()
        else:
            _held.queues.append(self)

    def tell(self) -> None:
        """Wake who waits."""
        if self._fd >= 0:
            os.eventfd_write(self._fd, 1)

    def wait(self, timeout_s: float | None = None, num_entries: int = 16) -> list[Completion]:
        """Completions, as soon as there is one; none if the time is over first, or the queue is closed."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while not (found := self._taken(num_entries)):
            left = None if end is None else end - time.monotonic()
            if self._fd < 0 or (left is not None and left <= 0):
                return []
            poll = select.poll()  # select() ends at descriptor 1023
            poll.register(self._fd, select.POLLIN)
            poll.poll(None if left is None else math.ceil(left * 1000))
        return found

    async def wait_async(self, num_entries: int = 16) -> list[Completion]:
        """The same for asyncio; one task may wait at a time."""
        loop = asyncio.get_running_loop()
        while not (found := self._taken(num_entries)):
            came = asyncio.Event()
            loop.add_reader(self._fd, came.set)
            try:
                await came.wait()
            finally:
                loop.remove_reader(self._fd)
        return found

    def _taken(self, num_entries: int) -> list[Completion]:
        """What there is; the descriptor is readable afterwards only if something was added since, or was left."""
        if self._fd < 0:
            return self.poll(num_entries)
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._fd)  # before looking: what is added meanwhile makes it readable again
        found = self.poll(num_entries)
        if len(self):
            os.eventfd_write(self._fd, 1)
        return found

    def close(self) -> None:
        """Close the descriptor; what is in the queue can still be polled."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

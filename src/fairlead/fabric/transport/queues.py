"""Completion queues one can wait on: a descriptor that becomes readable, a call that waits, an awaitable.

The descriptor is closed by whoever uses it last: a thread that polled one whose number the process has given to
something else meanwhile would wait for that.
"""

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
        self._lock = threading.Lock()
        """Held while the descriptor is read, written or closed; never while somebody waits."""
        self._is_closed = False
        self._num_waiting = 0

    def fileno(self) -> int:
        """A descriptor that is readable when something may have been added since the last wait."""
        return self._fd

    def add(self, completion: Completion) -> None:
        """Enter finished work, and wake who waits, now or at the end of `told_at_the_end`."""
        super().add(completion)
        if len(self) > 1:  # where others wait before it the descriptor is readable, or will be again
            return
        if _held.queues is None:
            self.tell()
        else:
            _held.queues.append(self)

    def tell(self) -> None:
        """Wake who waits."""
        with self._lock:
            if self._fd >= 0:
                os.eventfd_write(self._fd, 1)

    def wait(self, timeout_s: float | None = None, num_entries: int = 16) -> list[Completion]:
        """Completions, as soon as there is one; none if the time is over first, or the queue is closed."""
        if found := self._taken(num_entries):
            return found
        end = None if timeout_s is None else time.monotonic() + timeout_s
        with self._waiting() as fd:
            while not (found := self._taken(num_entries)):
                left = None if end is None else end - time.monotonic()
                if self._is_closed or (left is not None and left <= 0):
                    return []
                poll = select.poll()  # select() ends at descriptor 1023
                poll.register(fd, select.POLLIN)
                poll.poll(None if left is None else math.ceil(left * 1000))
        return found

    async def wait_async(self, num_entries: int = 16) -> list[Completion]:
        """The same for asyncio, without a limit; one task may wait at a time."""
        loop = asyncio.get_running_loop()
        with self._waiting() as fd:
            while not (found := self._taken(num_entries)):
                if self._is_closed:
                    return []
                came = asyncio.Event()
                loop.add_reader(fd, came.set)
                try:
                    await came.wait()
                finally:
                    loop.remove_reader(fd)
        return found

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[int]:
        """The descriptor, which stays open meanwhile; -1 if it is closed already."""
        with self._lock:
            self._num_waiting += 1
        try:
            yield self._fd
        finally:
            with self._lock:
                self._num_waiting -= 1
                self._close_unused()

    def _taken(self, num_entries: int) -> list[Completion]:
        """What there is; the descriptor is readable afterwards only if something was added since, or was left."""
        with self._lock:
            if self._is_closed:  # it stays readable, for all that wait
                return self.poll(num_entries)
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._fd)  # before looking: what is added meanwhile makes it readable again
            found = self.poll(num_entries)
            if len(self):
                os.eventfd_write(self._fd, 1)
        return found

    def close(self) -> None:
        """End all waits, now and later; what is in the queue can still be polled."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                os.eventfd_write(self._fd, 1)
            self._close_unused()

    def _close_unused(self) -> None:
        if self._is_closed and not self._num_waiting and self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

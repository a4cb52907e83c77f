"""A collective under way, as torch wants to see it: waited for, asked for its future, asked for its error."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.futures import Future

from fairlead.errors import FabricError


class Work(dist.Work):
    """Ends once, by `finish`, in another thread."""

    def __init__(self, result: list[Any], on_wait: Callable[[], object] | None = None) -> None:
        """`on_wait` is called whenever somebody begins to wait."""
        super().__init__()
        self._result = result
        self._on_wait = on_wait
        self._error: BaseException | None = None
        self._ended = threading.Event()
        self._begun: Future[None] = Future()
        # a callback that raises is the one way to a future that C++ takes for failed
        self._future = self._begun.then(self._outcome)

    def _outcome(self, _: object) -> list[Any]:
        if self._error is not None:
            raise self._error
        return self._result

    def finish(self, error: BaseException | None = None) -> None:
        """All is done, or this is why not."""
        self._error = error
        self._ended.set()
        self._begun.set_result(None)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Block until it has ended; raises its error. Zero: as long as the group's own limit."""
        if self._on_wait is not None and not self._ended.is_set():
            self._on_wait()
        if not self._ended.wait(timeout.total_seconds() or None):
            raise FabricError(
                "fabric/collective-timeout",
                f"not done after {timeout.total_seconds():g} s",
                hint="give it more time, or see which rank does not take part",
            )
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        """Whether it has ended, well or not."""
        return self._ended.is_set()

    def is_success(self) -> bool:
        """Whether it has ended well."""
        return self._ended.is_set() and self._error is None

    def exception(self) -> BaseException | None:
        """Its error."""
        return self._error

    def result(self) -> list[Any]:
        """What it has filled."""
        return self._result

    def synchronize(self) -> None:
        """Wait."""
        self.wait()

    def get_future(self) -> Any:
        """Its future; the value is the tensors it has filled."""
        return self._future

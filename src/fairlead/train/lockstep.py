"""Several forwards in lock step: each runs until it meets a decoder layer, then the layer is computed for all of them.

The forward of a model is one function that calls its layers; to visit each layer once for all micro-batches, that
function runs once per micro-batch, each in a thread, and exactly one of them runs at a time. The order is fixed, so a
step is the same each time. One forward alone needs no thread.

Must not know: what a layer is.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
Meet = Callable[[Any], Any]
"""Called by a forward with what it brings to a meeting; returns what the meeting gave it."""
_LOOKS_S = 1.0
"""How often who waits looks by itself whether another one failed: an interrupt may cost the word."""


class Abandoned(Exception):
    """Another forward failed."""


def run(
    forwards: Sequence[Callable[[Meet], T]], together: Callable[[list[Any]], list[Any]], enter: Callable[[], None]
) -> list[T]:
    """What each forward returns. `together` gets what all bring to one meeting, in their order, and answers each."""
    if len(forwards) == 1:
        return [forwards[0](lambda item: together([item])[0])]
    return _Baton(len(forwards), together, enter).run(forwards)


class _Baton:
    def __init__(self, num: int, together: Callable[[list[Any]], list[Any]], enter: Callable[[], None]) -> None:
        self.num = num
        self.together = together
        self.enter = enter
        self.turn = 0
        self.computing: int | None = None
        """Who has begun with its turn."""
        self.failed: BaseException | None = None
        self.brought: list[Any] = [None] * num
        self.given: list[Any] = [None] * num
        self.results: list[Any] = [None] * num
        self.changed = threading.Condition()

    def run(self, forwards: Sequence[Callable[[Meet], T]]) -> list[T]:
        threads = [  # none holds up the end of the program, whenever an interrupt comes to this one
            threading.Thread(target=self._one, args=(k, forward), name=f"micro-batch-{k}", daemon=True)
            for k, forward in enumerate(forwards)
        ]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        except BaseException as exc:
            self.failed = self.failed or exc  # no call before this: an interrupt comes at a call, or at a jump back
            self._end()
            raise
        if self.failed is not None:
            raise self.failed
        return self.results

    def _end(self) -> None:
        """Return when no forward computes, however often interrupted; those that wait or have yet to begin, end."""
        is_over = False
        while not is_over:
            with contextlib.suppress(KeyboardInterrupt), self.changed:
                self.changed.notify_all()
                self.changed.wait_for(lambda: self.computing is None)
                is_over = True

    def _one(self, k: int, forward: Callable[[Meet], Any]) -> None:
        try:
            self.enter()
            self._wait(k)
            self.results[k] = forward(lambda item: self._meet(k, item))
            self._pass(k)
        except Abandoned:
            pass
        except BaseException as exc:  # noqa: BLE001 - raised again by run
            with self.changed:
                self.failed = self.failed or exc
                self.computing = None if self.computing == k else self.computing
                self.changed.notify_all()

    def _meet(self, k: int, item: Any) -> Any:
        self.brought[k] = item
        if k == self.num - 1:  # the last to come
            self.given = self.together(self.brought)
            self.brought = [None] * self.num
        self._pass(k)
        self._wait(k)
        given, self.given[k] = self.given[k], None
        return given

    def _pass(self, k: int) -> None:
        with self.changed:
            self.turn, self.computing = (k + 1) % self.num, None
            self.changed.notify_all()

    def _wait(self, k: int) -> None:
        with self.changed:
            while not (self.turn == k or self.failed is not None):
                self.changed.wait(_LOOKS_S)
            if self.failed is not None:
                raise Abandoned
            self.computing = k

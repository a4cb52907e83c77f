"""Signals that ask a long run to end: the first one between two steps, a second one at once.

Must not know: what a step is.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

_ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
"""The last is what schedulers send some time before they kill, if they are asked to."""


class Stop:
    """While it is entered, such a signal is an interrupt; while `waits_for` names something, it is a request first."""

    def __init__(self, note: Callable[[str], object]) -> None:
        self.by = ""
        """Who asked, in words; empty: nobody yet."""
        self.waits_for = ""
        self._note = note
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in _ASKING:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._asked)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _asked(self, number: int, _frame: FrameType | None) -> None:
        who = "interrupted" if number == signal.SIGINT else f"stopped by {signal.Signals(number).name}"
        if self.by or not self.waits_for:
            raise KeyboardInterrupt(who)
        self.by = who
        with contextlib.suppress(RuntimeError):  # a line was being written when the signal came
            self._note(f"{who}: ends after {self.waits_for}; once more: at once")

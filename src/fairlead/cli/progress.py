"""How far we are, on stderr: one live line on a terminal, as wide as it is; elsewhere a line now and then.

Must not know: verbs.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence
from typing import TextIO

from fairlead.base.table import printable

_GAP = "  "
_BAR_MIN, _BAR_MAX = 10, 40
"""Columns inside a bar; where there is less room, there is none."""


def live(what: str, done: int, total: int, parts: Sequence[str], room: int) -> str:
    """A line of at most `room` columns: as many parts as fit, the most important first, and a bar beside all of them.

    >>> live("steps", 3, 8, ["loss 2.3", "disk-bound 92%"], 60)
    'steps 3/8  [=======              ]  loss 2.3  disk-bound 92%'
    >>> live("steps", 3, 8, ["loss 2.3", "disk-bound 92%"], 30)
    'steps 3/8  loss 2.3'
    """
    words = [f"{what} {done}/{total}", *parts]
    fit = next((num for num in range(len(words), 0, -1) if len(_GAP.join(words[:num])) <= room), 0)
    if fit < min(2, len(words)):  # a part that is cut says more than none
        return _GAP.join(words[:2])[:room]
    width = min(room - len(_GAP.join([*words, "[]"])), _BAR_MAX)
    if width >= _BAR_MIN:
        words.insert(1, f"[{'=' * (width * min(done, total) // max(total, 1)):{width}}]")
        fit += 1
    return _GAP.join(words[:fit])


class Progress:
    """One thing being counted."""

    def __init__(self, what: str, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self.what, self.stream, self.clock = what, stream, clock
        self.is_tty = stream.isatty() and os.environ.get("TERM", "") != "dumb"
        self.started = clock()
        self.last_shown = float("-inf")

    def show(self, done: int, total: int, details: Sequence[str] = ()) -> None:
        """Note a state; whether it is drawn depends on the stream and on when the last one was."""
        now = self.clock()
        if now - self.last_shown < (0.1 if self.is_tty else 30.0) and done < total:
            return
        self.last_shown = now
        said, elapsed = [printable(part) for part in details if part], f"{now - self.started:.1f} s"
        if self.is_tty:
            room = self._columns() - 1  # a line that wraps could not be taken back
            self.stream.write("\r\x1b[2K" + live(self.what, done, total, [*said, elapsed], room))
        else:
            line = f"{self.what:12} {done:>6} of {total}  {elapsed:>8}  {', '.join(said)}"
            self.stream.write(line.rstrip() + "\n")
        self.stream.flush()

    def end(self) -> None:
        """Leave the cursor on a fresh line."""
        if self.is_tty:
            self.stream.write("\r\x1b[2K")
            self.stream.flush()

    def _columns(self) -> int:
        """Of this stream's terminal, as stdout may be a file; `COLUMNS` has the first word."""
        try:
            there = os.get_terminal_size(self.stream.fileno())
        except OSError:
            there = os.terminal_size((0, 0))
        return shutil.get_terminal_size(there if there.columns else (80, 24)).columns

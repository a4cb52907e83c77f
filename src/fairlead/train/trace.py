"""What happened in a step, and when: a row for what computes, one for weights that come in, one for updates.

Chrome's trace format (docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU), which
https://ui.perfetto.dev and chrome://tracing draw. On a GPU times are those of its streams, by events; updates of the
CPU are by the clock.

Must not know: what is computed.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from fairlead.base.files import write_atomic
from fairlead.train.lanes import Lanes
from fairlead.train.pictures import happened

ROWS = ("computing", "weights in", "updates")


class Trace:
    """Spans of one engine, from the moment it is made."""

    def __init__(self, lanes: Lanes) -> None:
        self.lanes = lanes
        lanes.settle()
        self._zero = self._event() if lanes.cuda else None
        self._begin = time.perf_counter()
        self._spans: list[tuple[str, str, Any, Any]] = []

    def now(self, row: str) -> Any:
        """A moment in the current stream, or by the clock."""
        return self._event() if self.lanes.cuda and row != "updates" else time.perf_counter()

    def add(self, row: str, name: str, begin: Any) -> None:
        """What began then ends now."""
        self._spans.append((row, name, begin, self.now(row)))

    @contextlib.contextmanager
    def span(self, row: str, name: str) -> Iterator[None]:
        """What is done inside; nothing is added where it fails."""
        begin = self.now(row)
        yield
        self.add(row, name, begin)

    def spans(self) -> list[tuple[str, str, float, float]]:
        """All so far: row, name, begin and end in seconds."""
        self.lanes.settle()
        found = [(row, name, self._us(begin) / 1e6, self._us(end) / 1e6) for row, name, begin, end in [*self._spans]]
        return sorted(found, key=lambda span: (ROWS.index(span[0]), span[2]))

    def write(self, path: Path) -> None:
        """All spans so far; a picture of them where the file's name ends with .svg."""
        if path.suffix == ".svg":
            write_atomic(path, happened(self.spans()).svg())
            return
        self.lanes.settle()
        rows = [
            {"ph": "M", "name": "thread_name", "pid": 0, "tid": tid, "args": {"name": row}}
            for tid, row in enumerate(ROWS)
        ]
        spans = [
            {
                "ph": "X",
                "name": name,
                "pid": 0,
                "tid": ROWS.index(row),
                "ts": self._us(begin),
                "dur": self._us(end) - self._us(begin),
            }
            for row, name, begin, end in [*self._spans]
        ]
        write_atomic(path, json.dumps({"traceEvents": [*rows, *spans], "displayTimeUnit": "ms"}) + "\n")

    def _event(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _us(self, moment: Any) -> float:
        if isinstance(moment, float):
            return (moment - self._begin) * 1e6
        assert self._zero is not None
        return float(self._zero.elapsed_time(moment)) * 1e3

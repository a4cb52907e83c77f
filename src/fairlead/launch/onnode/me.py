"""A rank by itself: its number, how it speaks and hears. The first part of every program of ranks.

What it says is one JSON object a line, with `say`; a long one comes in pieces, `~number i n text`, as srun cuts lines
of more than 1,024 bytes. What it hears comes on standard input, a JSON object a line: first its settings.
"""

from __future__ import annotations

import json
import math
import os
import select
import threading
import time

from fairlead.cluster.channel import Channel, Place

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_LINE = 900


class InputEnded(Exception):
    """Whoever started this rank is gone."""


class CannotStart(Exception):
    """Why a rank cannot even start; `why` is a word of launch/starts.py."""

    def __init__(self, why: str, text: str) -> None:
        super().__init__(text)
        self.why = why


class Lines:
    """JSON objects, one a line, from a file that may bring half of one."""

    def __init__(self, fd: int) -> None:
        self.fd, self.rest, self.is_over = fd, b"", False

    @property
    def has_one(self) -> bool:
        """Whether a whole one is there."""
        return b"\n" in self.rest

    def more(self) -> None:
        """Read what comes; waits for something."""
        data = os.read(self.fd, 1 << 16)
        self.rest += data
        self.is_over = not data

    def next(self) -> dict[str, Any]:
        """The next one; waits for it. Raises InputEnded."""
        while not self.has_one:
            if self.is_over:
                raise InputEnded
            self.more()
        line, _, self.rest = self.rest.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found


def as_json(said: dict[str, Any]) -> str:
    """One line. JSON has no word for NaN and infinity, which a broken GPU computes: they become null."""
    try:
        return json.dumps(said, separators=(",", ":"), allow_nan=False)
    except ValueError:
        return json.dumps(finite(said), separators=(",", ":"))


def finite(value: Any) -> Any:
    """The same with None where a number is none."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(own) for key, own in value.items()}
    return [finite(own) for own in value] if isinstance(value, (list, tuple)) else value


class Me:
    """This rank, by what started it and what it was told."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.settings: dict[str, Any] = config.get("settings", {})
        """What the stage that launched it wants."""
        # as tasks of a scheduler its word counts: a job's script may have exported RANK or WORLD_SIZE for itself
        place = Place()
        self.rank, self.local, self.world, self.node = place.rank, place.local, place.world, place.node
        self.phase, self.began = "start", time.monotonic()
        self.lines = Lines(0)
        self.channel = Channel()
        self.lock = threading.Lock()
        self.num_long = 0

    def say(self, what: str, **fields: Any) -> None:
        """One line, written whole."""
        line = as_json({"say": what, "rank": self.rank, "node": self.node, **fields})
        with self.lock:
            if len(line) <= MAX_LINE:
                os.write(1, line.encode() + b"\n")
                return
            self.num_long += 1
            cuts = range(0, len(line), MAX_LINE)
            for i, at in enumerate(cuts):  # a task and its body share the way out: the number is this process's own
                piece = line[at : at + MAX_LINE]
                os.write(1, f"~{os.getpid():x}.{self.num_long} {i} {len(cuts)} {piece}\n".encode())

    def enter(self, phase: str, **fields: Any) -> None:
        """What it is about to do."""
        self.phase, self.began = phase, time.monotonic()
        self.say("phase", phase=phase, **fields)

    def beat(self, state: str) -> None:
        """A sign of life: there are many, and only the last one of each rank is passed on."""
        self.channel.beat(state)

    def failed(self, why: str, error: BaseException | None = None, text: str = "", **fields: Any) -> None:
        """It cannot even start, and why: a word from the list in launch/starts.py."""
        words = " ".join((text or str(error or "")).split())[:500]
        self.say("failed", why=why, kind=type(error).__name__ if error else "", text=words, **fields)

    def hear(self, what: str, limit_s: float) -> dict[str, Any] | None:
        """The next line of that kind from the control side; None if none comes in time. Others are passed over."""
        until = time.monotonic() + limit_s
        while True:
            while self.lines.has_one:
                found = self.lines.next()
                if found.get("do") == what:
                    return found
            left_s = until - time.monotonic()
            if left_s < 0 or not select.select([self.lines.fd], [], [], left_s)[0]:
                return None
            self.lines.more()
            if self.lines.is_over:
                raise InputEnded

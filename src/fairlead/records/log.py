"""What fairlead does, told while it does it: standard `logging`, every record an Event.

    log = logging.getLogger("fairlead.weights")

    tell(log, "shard is there", node="n3", bytes=1 << 30)
    with doing(log, "spread", nodes=str(nodes)) as told:     # two events: it begins, it ended and how long it took
        told["shards"] = 12

Whoever runs fairlead says where events go: the command line into the run folder's `log.jsonl`, and with `-v` to stderr.
A library that uses fairlead adds handlers of its own to the logger `fairlead`. Where nobody listens nothing is built.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

from fairlead.records.codec import builtins, to_json
from fairlead.records.event import Event, Severity

ROOT = logging.getLogger("fairlead")
"""The parent of every logger of fairlead."""
ROOT.addHandler(logging.NullHandler())  # without it, Python prints warnings of a library by itself

_DATA = "event_data"
_NODE = "event_node"


def tell(log: logging.Logger, what: str, *, level: int = logging.INFO, node: str = "", **data: Any) -> None:
    """One event. `data` holds what JSON can hold; a unit stands at the end of its name."""
    if log.isEnabledFor(level):
        log.log(level, "%s", what, extra={_NODE: node, _DATA: data})


@contextlib.contextmanager
def doing(log: logging.Logger, what: str, *, level: int = logging.INFO, **data: Any) -> Iterator[dict[str, Any]]:
    """Tell that something begins, and how it ended; what is put into the dict is told at the end."""
    tell(log, f"{what} begins", level=level, **data)
    started, told = time.monotonic(), dict[str, Any]()
    try:
        yield told
    except BaseException as error:
        took_ms = round((time.monotonic() - started) * 1000)
        why = f"{type(error).__name__}: {error}"
        tell(log, f"{what} stopped: {why}", level=logging.WARNING, **{**data, **told, "took_ms": took_ms, "error": why})
        raise
    took_ms = round((time.monotonic() - started) * 1000)
    tell(log, f"{what} ended", level=level, **{**data, **told, "took_ms": took_ms})


def event_of(record: logging.LogRecord) -> Event:
    """What a record of `logging` says, whoever made it."""
    what = record.getMessage()
    if record.exc_info and record.exc_info[1] is not None:
        what += f": {type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
    return Event(
        time_ns=int(record.created * 1e9),
        node=getattr(record, _NODE, ""),
        source=record.name,
        severity=_severity(record.levelno),
        what=what,
        data=_plain(getattr(record, _DATA, {})),
    )


class Events(logging.Handler):
    """Hands every record on as an Event. Telling must never be a second failure: what the taker raises is dropped."""

    def __init__(self, take: Callable[[Event], object]) -> None:
        super().__init__()
        self._take = take

    def emit(self, record: logging.LogRecord) -> None:
        """One record."""
        with contextlib.suppress(Exception):
            self._take(event_of(record))


def line_of(event: Event) -> str:
    """An event for people: `14:02:07.123  cluster  n3  ran true  rc=0`."""
    clock = time.strftime("%H:%M:%S", time.localtime(event.time_ns // 10**9))
    head = f"{clock}.{event.time_ns // 10**6 % 1000:03}  {event.source.removeprefix('fairlead.')}"
    flag = "" if event.severity in (Severity.INFO, Severity.DEBUG) else event.severity.upper()
    data = " ".join(f"{name}={_word(value)}" for name, value in event.data.items())
    return "  ".join(part for part in (head, flag, event.node, event.what, data) if part)


def _severity(level: int) -> Severity:
    steps = ((logging.CRITICAL, Severity.FATAL), (logging.ERROR, Severity.ERROR), (logging.WARNING, Severity.WARN))
    known = (*steps, (logging.INFO, Severity.INFO))
    return next((severity for least, severity in known if level >= least), Severity.DEBUG)


def _plain(data: Any) -> dict[str, Any]:
    """Data as JSON can hold it; what it cannot hold, as Python writes it."""
    try:
        found: dict[str, Any] = builtins(data)
    except (TypeError, ValueError):
        return {
            str(name): value if isinstance(value, str | int | float) else repr(value) for name, value in data.items()
        }
    return found


def _word(value: Any) -> str:
    text = value if isinstance(value, str) else to_json(value, indent=0)
    return to_json(text, indent=0) if isinstance(value, str) and (not text or " " in text) else text

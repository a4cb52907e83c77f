"""An Event: something that happened, when and where, and who tells of it: a line of a log, whoever wrote the log."""

from __future__ import annotations

import enum
from typing import Any

import msgspec


class Severity(enum.StrEnum):
    """How much it matters, in the words of OpenTelemetry's logs data model."""

    DEBUG = "debug"
    INFO = "info"
    WARN = "warn"
    ERROR = "error"
    FATAL = "fatal"


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that happened."""

    time_ns: int
    """UTC, by the clock of whoever tells of it: nanoseconds since 1970."""
    node: str = ""
    """The node it is about, by the cluster file's name; empty for the machine that runs fairlead, or for no node."""
    source: str
    """Who tells of it: a part of fairlead such as `fairlead.cluster`, or a log of the node such as `slurmd`."""
    severity: Severity
    what: str
    """One line for people."""
    data: dict[str, Any] = {}
    """The same for machines, and more: numbers with their unit at the end of the name."""

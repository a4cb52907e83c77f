"""What a proof writes down: the setup it was given, and what it saw. Judged by judge.py, today or later."""

from __future__ import annotations

import msgspec

from fairlead.serve.proof.asking import Asked


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be proven."""

    command: tuple[str, ...]
    allowed: tuple[str, ...] = ()
    """Patterns of destinations that may be reached, as attempts name them."""
    url: str
    patience_s: float
    watch_s: float
    """How long it is watched after the questions, for calls that come late."""
    grace_s: float
    """How long it may take to end when asked to."""
    log: str
    """The file for what the server prints."""
    scratch: str
    """A folder that is there, for files that stand in place of /etc/resolv.conf and /etc/hosts."""
    parent: int
    """The process that asks; without it, everything ends."""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of one process to one destination."""

    how: str
    """`connect`, `sendto`, `sendmsg`, `sendmmsg`; `query` for a name."""
    to: str
    """`10.1.2.3:443/tcp`, `unix:/run/proxy.sock`, `dns:huggingface.co`."""
    pid: int
    process: str
    """Its command line, or its name."""
    thread: str = ""
    """The name of the thread, where that is not the process's own."""
    at_s: float
    """Since the server was started."""
    num: int = 1


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen."""

    attempts: tuple[Attempt, ...] = ()
    """In the order of their first."""
    left_out: int = 0
    """Attempts beyond what is kept."""
    model: str = ""
    """What the server calls the first model it serves; empty where it never was ready."""
    ready_s: float = 0.0
    asked: tuple[Asked, ...] = ()
    watched_s: float = 0.0
    status: int | None = None
    """With what the server ended by itself; negative for a signal. None where it ran to the end."""
    no_route: int = 0
    """What the kernel counted in that namespace: packets without a route (OutNoRoutes, of both versions of IP)."""


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """Why there is no record."""

    step: str
    why: str

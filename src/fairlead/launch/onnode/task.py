"""A task: what a scheduler started as a rank. It has a body that does the work, and is the body's heart and ear.

The task imports nothing, so it beats while the body is deep in an import or in a library that lets nobody else run; it
sees at once when the body is stopped. It hears what comes on standard input, and ends as its body ends.

    start     who and where this rank is: see place.py
    phase     what it is about to do: start, import, rendezvous, join, the stage's own, done
    beat      it is alive; with a state where the body is stopped (T) or stuck in the kernel (D)
    failed    why it cannot even start
    store     rank 0: where the others find it
    here      it has reached the rendezvous
    missing   rank 0: who is not there
    torch     what torch is, and the device
    joined    the group stands
    error     the exception that ended it
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time

from fairlead.launch.onnode.me import InputEnded, Lines, Me
from fairlead.launch.onnode.place import tell_start
from fairlead.launch.onnode.share import INPUT_ENDED, NO_BODY, NO_START, Forked, Shared, has_device

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

MAX_PENDING = 1 << 20
"""Bytes a body may leave unread before it counts as stuck."""


def start(body: Callable[[Me], int]) -> None:
    """Be a task: tell, make a body, keep it; never returns."""
    lines = Lines(0)
    try:
        config = {**lines.next(), **lines.next()}  # what all are told, then what this node is
    except InputEnded:
        os._exit(INPUT_ENDED)
    for name, value in config.get("defaults", {}).items():
        os.environ.setdefault(name, value)
    os.environ.update(config.get("env", {}))
    me = Me(config)
    interface = tell_start(me)
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        if interface:
            os.environ.setdefault(name, interface)
    if me.rank < 0 or me.world < 1:
        me.failed("no-rank", text="neither RANK nor SLURM_PROCID is set")
        os._exit(NO_START)
    me.enter("import")
    end_like(Heart(me, lines, body).keep())


def make_body(me: Me, body: Callable[[Me], int]) -> Forked | Shared:
    """One that shares its import with the node's other ranks, where that is possible."""
    asked = me.config.get("device", "any")
    if asked == "cpu" or (asked == "any" and not has_device()):
        with contextlib.suppress(OSError, ValueError):
            return Shared(me, body)
    return Forked(me, body)


class Heart:
    """Beats for a body, passes on what comes for it, and notices its end."""

    def __init__(self, me: Me, lines: Lines, work: Callable[[Me], int]) -> None:
        self.me, self.lines, self.work = me, lines, work
        self.pending = b""
        self.take(make_body(me, work))

    def take(self, body: Forked | Shared) -> None:
        """Have this body."""
        self.body = body
        os.set_blocking(body.input, False)

    def keep(self) -> int:
        """Until the body has ended; its exit status."""
        every_s = self.me.config["beat_s"]
        due = time.monotonic() + every_s
        while True:
            self.hear()
            wait_s = max(0.0, due - time.monotonic())
            writable = [self.body.input] if self.pending else []
            readable, _, _ = select.select([0, self.body.ended], writable, [], wait_s)
            if self.body.ended in readable:
                status = self.body.heard()
                if status == NO_BODY and not self.body.pid:  # turned away at the door
                    self.take(Forked(self.me, self.work))
                elif status is not None:
                    if self.body.failed:
                        self.me.say("failed", why="no-torch", **self.body.failed)
                    return status
            if 0 in readable:
                self.lines.more()
            if time.monotonic() >= due:
                due = time.monotonic() + every_s
                self.beat()

    def hear(self) -> None:
        """Pass on to the body what has come for it; end where the group is to stop, or whoever asked is gone."""
        while self.lines.has_one:
            said = self.lines.next()
            if said.get("do") == "stop":
                os._exit(INPUT_ENDED)
            self.pending += json.dumps(said).encode() + b"\n"
        if self.pending:
            with contextlib.suppress(BlockingIOError, BrokenPipeError):
                self.pending = self.pending[os.write(self.body.input, self.pending) :]
        if self.lines.is_over or len(self.pending) > MAX_PENDING:
            os._exit(INPUT_ENDED)

    def beat(self) -> None:
        """A sign of life, with the body's state where it does not run."""
        state = state_of(self.body.pid)
        self.me.beat(state if state not in "RSI" else "")


def state_of(pid: int) -> str:
    """The kernel's letter for a process: R, S, D, T, t, Z; empty where it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0].decode()
    except (OSError, IndexError):
        return ""


def end_like(status: int) -> None:
    """End as the body did, also by a signal."""
    if status < 0:
        number = signal.Signals(-status)
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        time.sleep(1)
    os._exit(status if status >= 0 else 1)

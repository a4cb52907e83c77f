"""The program fairlead runs on a node: one file, standard library, Python 3.9; piped there, gone with the connection.

It runs commands, receives a file or sends one. It knows nothing of how it was reached. channel.py and its neighbours
here are joined to it: frames.py says what goes over the wire.

Three rules make it a guard. It adopts everything its commands start (PR_SET_CHILD_SUBREAPER), also what double-forks.
It stops that whole tree when its own standard input ends, for then whoever asked is gone. And it enforces the time
limit itself, for a lost network ends nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from queue import SimpleQueue

from fairlead.cluster.channel import IS_BEAT, MARK, SEGMENT
from fairlead.cluster.onnode.copying import copy
from fairlead.cluster.onnode.frames import CHUNK, MAGIC, MAX_LIMIT_S, Kept, Out
from fairlead.cluster.onnode.processes import (
    GIVE_UP_S,
    PR_SET_CHILD_SUBREAPER,
    descendants,
    die_with_parent,
    has_children,
    kill_below,
    prctl,
    signal_all,
    spawn,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, BinaryIO

GRACE_S = 0.4
"""Between SIGTERM and SIGKILL, where the job names no `grace_s` of its own."""
DRAIN_S = 0.5
"""How long an ended command's output may still trickle in, where something out of reach holds its pipe open."""
WINDOW_BYTES = 1 << 20
"""Of a live job's input so much may be on its way, or wait for a command to take it."""
ACK_BYTES = 1 << 16
STUCK_S = 10.0
"""A command that leaves half of that unread, and takes nothing for so long, is killed: the others wait for it."""
TICK_S = 1.0


class Rank:
    """One started command, what it has still to read, what is kept of its output."""

    def __init__(self, number: int, process: subprocess.Popen[bytes], keep_bytes: int) -> None:
        self.number, self.process = number, process
        self.kept = {b"o": Kept(keep_bytes), b"e": Kept(keep_bytes)}
        self.pumps: list[threading.Thread] = []
        self.inbox: SimpleQueue[bytes] = SimpleQueue()
        """What goes to its standard input, in order; nothing (b"") ends it."""
        self.num_put = self.num_taken = 0
        """Bytes of its input."""
        self.moved = time.monotonic()


class Run:
    """Commands in sessions of their own, watched until the last has ended or they are told to stop."""

    def __init__(self, job: dict[str, Any], stdin: BinaryIO, out: Out) -> None:
        self.job, self.stdin, self.out = job, stdin, out
        self.started = time.monotonic()
        self.stopped = ""
        self.is_live = bool(job["live"])
        self.lock = threading.Lock()
        self.num_in = self.num_acked = 0
        """Bytes of a live job's input that came, and that whoever asked knows to be taken."""
        self.beats: dict[int, str] = {}
        self.alive: dict[int, Rank] = {}
        self.spared_until = 0.0

    def main(self) -> None:
        """Start everything, wait for everything."""
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        self.out.lost = lambda: spawn(self.stop, "disconnected")
        for asked in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(asked, lambda *_: spawn(self.stop, "signal"))
        payload = self.stdin.read(self.job["stdin_bytes"])
        if len(payload) < self.job["stdin_bytes"]:
            return
        for number, env in enumerate(self.job["env"]):
            self.start(number, env, has_input=bool(payload) or self.is_live)
        for rank in self.alive.values():  # threads only now: no process is forked beside a running thread
            self.attend(rank, payload)
        spawn(self.watch_input)
        spawn(self.watch_clock)
        if self.is_live:
            spawn(self.tick)
        finishing = []
        while self.alive:
            # adopted orphans end here too; an ended rank keeps its process group's number until it is reaped
            pid = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT).si_pid  # type: ignore[union-attr]
            ended = self.alive.get(pid)
            if ended:
                while time.monotonic() < self.spared_until and descendants(os.getpid()):
                    time.sleep(0.02)
                with contextlib.suppress(OSError):
                    os.killpg(pid, signal.SIGKILL)
                del self.alive[pid]
            status = os.waitpid(pid, 0)[1]
            if ended:
                finishing.append(spawn(self.finish, ended, status, self.stopped, not self.alive))
        for thread in finishing:
            thread.join()

    def start(self, number: int, env: dict[str, str], *, has_input: bool) -> None:
        """Start one rank, or tell why it cannot be."""
        argv, cwd = self.job["argv"], self.job["cwd"] or None
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE if has_input else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=dict(os.environ, **env),
                cwd=cwd,
                start_new_session=True,
                preexec_fn=die_with_parent,  # noqa: PLW1509
            )
        except (OSError, ValueError, subprocess.SubprocessError) as exc:
            self.out.end(number, **could_not_start(exc, argv[0], cwd))
        else:
            self.alive[process.pid] = Rank(number, process, self.job["keep_bytes"])

    def attend(self, rank: Rank, payload: bytes) -> None:
        """Read what a rank writes, write what it reads."""
        process = rank.process
        for kind, stream in ((b"o", process.stdout), (b"e", process.stderr)):
            assert stream is not None
            rank.pumps.append(spawn(self.pump, rank, kind, stream.fileno()))
        if process.stdin:
            if payload:
                rank.inbox.put(payload)
            if not self.is_live:
                rank.inbox.put(b"")
            spawn(self.feed, process.stdin, rank, len(payload))

    def pump(self, rank: Rank, kind: bytes, fd: int) -> None:
        """Pass one stream on, no faster than it is taken."""
        while True:
            data = os.read(fd, CHUNK)
            if not data:
                return
            if self.is_live and data.startswith(MARK) and self.keep_beat(rank, data):
                continue
            head = rank.kept[kind].feed(data)
            if head:
                self.out.send(kind, head, rank.number)

    def finish(self, rank: Rank, status: int, stopped: str, is_last: bool) -> None:  # noqa: FBT001
        """Stop what an ended rank left behind, send the rest of its output, tell how it ended."""
        took_s = time.monotonic() - self.started
        if is_last and has_children() and (stopped or not self.job.get("may_leave")):
            kill_below(os.getpid())
        deadline = time.monotonic() + DRAIN_S
        for pump in rank.pumps:
            pump.join(max(0.0, deadline - time.monotonic()))
        for kind, kept in rank.kept.items():
            tail = kept.tail()
            if tail:
                self.out.send(kind.upper(), tail, rank.number)
        self.out.end(
            rank.number,
            rc=os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status),
            stopped=stopped,
            took_s=round(took_s, 6),
            out=rank.kept[b"o"].num_bytes,
            err=rank.kept[b"e"].num_bytes,
        )

    def watch_input(self) -> None:
        """Pass on what comes for the commands, until whoever asked goes away; never waits for a command to read."""
        while True:
            data = self.stdin.read1(CHUNK)  # type: ignore[attr-defined]
            if not data:
                return self.stop("disconnected")
            self.num_in += len(data)
            for rank in list(self.alive.values()):
                rank.num_put = self.num_in
                rank.inbox.put(data)

    def feed(self, pipe: BinaryIO, rank: Rank, spare: int) -> None:
        """Give a command its input; one that does not want it all is no fault. `spare` bytes of it are not counted."""
        data = rank.inbox.get()
        while data:
            rank.moved = time.monotonic()
            with contextlib.suppress(OSError):
                pipe.write(data)
                pipe.flush()
            rank.num_taken += len(data)
            if rank.num_taken - spare - self.num_acked >= ACK_BYTES:
                self.ack(spare)
            data = rank.inbox.get()
        with contextlib.suppress(OSError):
            pipe.close()

    def ack(self, spare: int) -> None:
        """Tell how much of the input all commands have taken."""
        with self.lock:
            taken = min((rank.num_taken - spare for rank in self.alive.values()), default=self.num_in)
            if taken - self.num_acked < ACK_BYTES:
                return
            self.num_acked = taken
        self.out.send(b"a", struct.pack(">Q", taken))

    def keep_beat(self, rank: Rank, data: bytes) -> bool:
        """Whether this is one sign of life and nothing else; then only the last of a second is passed on."""
        _, flags, _, length = SEGMENT.unpack_from(data.ljust(SEGMENT.size, b"\0"))
        if not flags & IS_BEAT or len(data) != SEGMENT.size + length + 1:
            return False
        self.beats[rank.number] = data[SEGMENT.size : -1].decode("utf-8", "replace")
        return True

    def tick(self) -> None:
        """Of a live job, once a second: be alive, pass the commands' signs of life on, end what holds the others up."""
        spare = self.job["stdin_bytes"]
        while True:
            time.sleep(TICK_S)
            beats, self.beats = self.beats, {}
            self.out.send(b"b", json.dumps(beats).encode())
            now = time.monotonic()
            for pid, rank in list(self.alive.items()):
                unread = rank.num_put + spare - rank.num_taken
                if unread > WINDOW_BYTES // 2 and now - rank.moved > STUCK_S:
                    signal_all([pid], signal.SIGKILL)
            self.ack(spare)

    def watch_clock(self) -> None:
        """Wait for the limit."""
        time.sleep(min(self.job["limit_s"], MAX_LIMIT_S))
        self.stop("limit")

    def stop(self, why: str) -> None:
        """Stop every process below this one: ask, wait, kill, give up. The first reason is the one told."""
        with self.lock:
            if self.stopped:
                return
            self.stopped = why
        below = sorted({*descendants(os.getpid()), *self.alive})
        if "grace_s" in self.job:  # what runs below a wrapper that ends at once has its time, too
            self.spared_until = time.monotonic() + self.job["grace_s"]
        signal_all(below, signal.SIGTERM)
        signal_all(below, signal.SIGCONT)
        deadline = time.monotonic() + self.job.get("grace_s", GRACE_S)
        while time.monotonic() < deadline and self.alive:
            time.sleep(0.02)
        for pid in list(self.alive):  # what they leave goes when the last of them has ended
            with contextlib.suppress(OSError):
                os.killpg(pid, signal.SIGKILL)
        time.sleep(GIVE_UP_S)
        os._exit(1)


def could_not_start(exc: Exception, program: str, cwd: str | None) -> dict[str, object]:
    """Status and sentence, the status as a shell gives it."""
    if isinstance(exc, OSError) and cwd and exc.filename == cwd:
        return {"rc": 126, "error": f"cannot start in {cwd}: {exc.strerror}"}
    if isinstance(exc, FileNotFoundError):
        return {"rc": 127, "error": f"there is no program `{program}`"}
    return {"rc": 126, "error": f"cannot run `{program}`: {getattr(exc, 'strerror', None) or exc}"}


def main(stdin: BinaryIO) -> None:
    """Do the one job that standard input names."""
    line = stdin.readline()
    if not line.endswith(b"\n"):
        sys.exit(1)
    job = json.loads(line)
    os.write(1, MAGIC)
    out = Out(1)
    out.send(b"H")
    if job["do"] == "run":
        Run(job, stdin, out).main()
    else:
        copy(job, stdin, out)
    out.send(b"z")
    os._exit(0)  # threads may sleep in a read that never returns


if __name__ == "__main__":
    main(sys.stdin.buffer)

"""Keeps one service alive on a node: a file of its own there, standard library, Python 3.9; not joined to anything.

    python3 -I -S supervisor.py DIR          start the service, restart it with growing pauses, until told to stop
    python3 -I -S supervisor.py DIR exec     become the service: for systemd, which supervises by itself

DIR is private to its user and holds spec.json (what to run), lease.json (until when), state.json (how it is: written
here), and `log`, the last output. SIGHUP: read spec and lease again; another digest replaces the service, with no gap
but a restart. SIGTERM: stop. The lease is a promise to go: if nobody renews it, service and supervisor end.

It sleeps while nothing happens: on a node that computes, a wake-up is noise.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 60.0
CALM_S = 60.0
"""A service that lived so long is not one that fails at once: its next pause is the first again."""
GRACE_S = 5.0
"""Between SIGTERM and SIGKILL."""
LOG_BYTES = 1 << 20
"""When `log` is longer, its first half goes."""


def now_s() -> float:
    """Seconds since boot, also those asleep: the same for every process of the node, and never set back."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    """Which boot of the machine this is."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def start_ticks(pid: int) -> int:
    """When a process began, which with its number is an identity; -1 if it is gone, or a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return -1
    return -1 if fields[0] in (b"Z", b"X") else int(fields[19])


def read_json(path: str) -> dict[str, Any]:
    """A file of DIR; empty where it is not there or not whole."""
    try:
        with open(path) as file:
            found = json.load(file)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write_json(path: str, value: dict[str, Any]) -> None:
    """Whole or not at all."""
    with open(path + ".new", "w") as file:
        json.dump(value, file)
    os.replace(path + ".new", path)


def marked(folder: str) -> list[int]:
    """Every process that has this service's mark in its environment: itself, and all it ever started."""
    mark = b"FAIRLEAD_SERVICE=" + folder.encode() + b"\0"
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:
                if mark in file.read():
                    found.append(int(name))
    return found


def end_marked(folder: str, grace_s: float = GRACE_S) -> None:
    """Ask every process of the service to end, then make it."""
    for number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 2.0)):
        deadline = time.monotonic() + wait_s
        pids = marked(folder)
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, number)
                os.kill(pid, signal.SIGCONT)
        while pids and time.monotonic() < deadline:
            reap()
            pids = [pid for pid in pids if start_ticks(pid) >= 0]
            time.sleep(0.01 if pids else 0)


def reap() -> dict[int, int]:
    """Children that have ended, and their wait status."""
    ended = {}
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            ended[pid] = status
    return ended


def command_of(folder: str, spec: dict[str, Any]) -> tuple[list[str], dict[str, str]]:
    """(words, environment) of the service."""
    env = {**os.environ, **spec["env"], "FAIRLEAD_SERVICE": folder}
    return [spec["python"], "-u", os.path.join(folder, spec["program"]), *spec["args"]], env


def with_parent() -> None:
    """In a new child: end when the supervisor is killed. Nobody else would ever end it."""
    with contextlib.suppress(Exception):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


class Log:
    """The last output, never longer than it may be."""

    def __init__(self, path: str) -> None:
        self.path = path

    def write(self, data: bytes) -> None:
        """Add; a full disk loses output, not the service."""
        with contextlib.suppress(OSError):
            with open(self.path, "ab") as file:
                file.write(data)
                size = file.tell()
            if size > LOG_BYTES:
                with open(self.path, "rb") as old:
                    old.seek(size - LOG_BYTES // 2)
                    kept = old.read()
                with open(self.path + ".new", "wb") as new:
                    new.write(kept)
                os.replace(self.path + ".new", self.path)


class Supervisor:
    """One service."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.log = Log(os.path.join(folder, "log"))
        self.spec = self.read("spec")
        self.digest = self.spec["supervisor"]
        """Of this program, which an upgrade of the service does not change."""
        self.lease = self.read("lease")
        self.child: subprocess.Popen[bytes] | None = None
        self.output = -1
        self.began = self.pause_s = self.start_at = 0.0
        self.restarts, self.last_exit = 0, ""
        self.asked: set[int] = set()
        """Signals that have come."""

    def read(self, name: str) -> dict[str, Any]:
        """A file of the folder."""
        return read_json(os.path.join(self.folder, name + ".json"))

    def run(self) -> None:
        """Until told to stop, or the lease ends."""
        wake, tick = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(tick, False)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, lambda number, _: self.asked.add(number))
        signal.set_wakeup_fd(tick)
        with contextlib.suppress(Exception):
            ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        end_marked(self.folder)  # what a killed supervisor left
        while True:
            if self.child is None and now_s() >= self.start_at:
                self.start()
            self.wait(wake)
            self.see_ends()
            if signal.SIGTERM in self.asked:
                return self.stop("stopped")
            if signal.SIGHUP in self.asked:
                self.asked.discard(signal.SIGHUP)
                self.renew()
            if now_s() >= self.lease["until"]:
                return self.stop("its lease ended, as nobody renewed it")

    def start(self) -> None:
        """Start the service."""
        words, env = command_of(self.folder, self.spec)
        reader, writer = os.pipe()
        try:
            self.child = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=writer,
                stderr=writer,
                env=env,
                cwd=self.folder,
                start_new_session=True,
                preexec_fn=with_parent,  # noqa: PLW1509
            )
        except (OSError, subprocess.SubprocessError) as error:
            os.close(reader)
            self.later(f"cannot start {words[0]}: {error}")
        else:
            os.set_blocking(reader, False)
            self.output, self.began = reader, now_s()
            self.tell("running")
        os.close(writer)

    def later(self, why: str) -> None:
        """It has ended, or would not start: try again after a pause, each longer than the one before."""
        calm = self.began and now_s() - self.began > CALM_S
        self.pause_s = FIRST_PAUSE_S if calm or not self.pause_s else min(2 * self.pause_s, LONGEST_PAUSE_S)
        self.restarts, self.last_exit = self.restarts + 1, why
        self.start_at = now_s() + self.pause_s
        self.log.write(f"[fairlead] {why}; again in {self.pause_s:g} s\n".encode())
        self.tell("waiting")

    def wait(self, wake: int) -> None:
        """Until something happens, or something is due; takes the service's output."""
        due = min(self.lease["until"], self.start_at if self.child is None else float("inf"))
        watched = [wake] + ([self.output] if self.output >= 0 else [])
        readable = select.select(watched, [], [], max(0.0, min(due - now_s(), 1e6)))[0]
        if wake in readable:
            with contextlib.suppress(BlockingIOError):
                os.read(wake, 4096)
        if self.output in readable:
            self.take()

    def take(self) -> None:
        """Output that waits."""
        with contextlib.suppress(BlockingIOError):
            while self.output >= 0:
                data = os.read(self.output, 1 << 16)
                if not data:
                    os.close(self.output)
                    self.output = -1
                    return
                self.log.write(data)

    def see_ends(self) -> None:
        """Reap; where the service itself has ended, end what it left and plan its next start."""
        status = None
        for pid, how in reap().items():
            if self.child is not None and pid == self.child.pid:
                status = how
        if status is None or self.child is None:
            return
        self.drop_child()
        rc = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
        self.later(f"exit status {rc}" if rc >= 0 else f"killed by {signal.Signals(-rc).name}")

    def drop_child(self) -> None:
        """It is gone: end what it left, keep its last words."""
        end_marked(self.folder)
        if self.child is not None:
            self.child.returncode = 0  # reaped here, not by subprocess
        self.child = None
        if self.output >= 0:
            self.take()
        if self.output >= 0:
            os.close(self.output)
            self.output = -1

    def renew(self) -> None:
        """Read what is wanted again."""
        self.lease = self.read("lease") or self.lease
        spec = self.read("spec") or self.spec
        if spec["digest"] != self.spec["digest"]:
            self.drop_child()
            self.spec, self.pause_s, self.start_at, self.restarts, self.last_exit = spec, 0.0, 0.0, 0, ""
        self.tell("running" if self.child else "waiting")

    def stop(self, why: str) -> None:
        """End the service and say so."""
        self.drop_child()
        self.last_exit = why
        self.tell("ended")

    def tell(self, phase: str) -> None:
        """How it is, for whoever looks."""
        child = self.child.pid if self.child else 0
        state = {
            "phase": phase,
            "pid": os.getpid(),
            "start": start_ticks(os.getpid()),
            "child": child,
            "child_start": start_ticks(child) if child else -1,
            "boot": boot_id(),
            "digest": self.spec["digest"],
            "supervisor": self.digest,
            "began": self.began,
            "restarts": self.restarts,
            "last_exit": self.last_exit,
        }
        with contextlib.suppress(OSError):  # a full disk ends no service
            write_json(os.path.join(self.folder, "state.json"), state)


def main() -> None:
    """Supervise, or become the service: the last line of the file on the node calls this."""
    folder = sys.argv[1]
    os.umask(0o077)
    if sys.argv[2:] == ["exec"]:
        words, env = command_of(folder, read_json(os.path.join(folder, "spec.json")))
        os.chdir(folder)
        os.execvpe(words[0], words, env)  # noqa: S606
    Supervisor(folder).run()

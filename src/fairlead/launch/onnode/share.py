"""One import of torch for all ranks of a node.

Importing torch costs seconds of CPU and is the same for every rank. Where ranks use CPUs, a child of the first rank to
come imports it once and forks the others' bodies: each task stays the process its scheduler started, hands its standard
streams, environment and CPUs to its body, and ends as that ends; with a task goes its body. Where there are GPUs every
task forks a body that imports by itself, as a scheduler may give each its own devices.

They meet at a socket without a file. Each end asks the kernel who the other is, and has nothing to do with another
user's process; who comes and says nothing is not waited for.
"""

# ruff: noqa: BLE001

from __future__ import annotations

import array
import contextlib
import ctypes
import gc
import json
import os
import signal
import socket
import struct
import threading
import time
import traceback

from fairlead.launch.onnode.me import CannotStart, Me

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

    Asked = tuple[socket.socket, dict[str, Any], array.array[int]]
    """A rank that waits for a body: its link, its environment, its standard streams."""

PR_SET_PDEATHSIG = 1
IDLE_S = 2.0
"""How long the importing process waits for a rank that has not come."""
HELLO_S = 1.0
"""How long a new link may take, and who is at its other end for the first word."""
NO_BODY, INPUT_ENDED, NO_START = 70, 75, 78
"""Exit statuses of a task whose body was lost, of one whose caller is gone, and of one that could not start."""


def has_device() -> bool:
    """Whether a GPU could be used from here: a driver library that programs load, or AMD's device file."""
    if os.access("/dev/kfd", os.F_OK):
        return True
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def import_torch() -> Any:
    """Import with the garbage collector off: it finds nothing among modules, and takes a tenth of the time."""
    gc.disable()
    import torch
    import torch._dynamo.utils  # what DistributedDataParallel would import when the first one is made
    import torch.distributed

    gc.enable()
    gc.freeze()
    return torch


def trouble(error: BaseException) -> dict[str, str]:
    """An import that failed, as it is told: what it was, and where."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return {"kind": type(error).__name__, "text": str(error), "at": f"{last.filename}:{last.lineno}"}


def die_with_parent() -> None:
    """In a fresh fork: end when its parent does."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def is_mine(link: socket.socket) -> bool:
    """Whether the other end is a process of the same user."""
    _, uid, _ = struct.unpack("3i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return bool(uid == os.geteuid())


# ---- a task's side ---------------------------------------------------------------------------------------------------


class Forked:
    """A body that this task forked, and that imports torch by itself."""

    def __init__(self, me: Me, body: Callable[[Me], int]) -> None:
        reader, self.input = os.pipe()
        self.ended, tick = os.pipe()
        os.set_blocking(self.ended, False)
        os.set_blocking(tick, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        before = signal.set_wakeup_fd(tick)
        self.pid = os.fork()
        if self.pid == 0:
            signal.set_wakeup_fd(before)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            die_with_parent()
            os.dup2(reader, 0)
            os.close(self.input)
            os._exit(begin(me.config, body))
        os.close(reader)
        self.failed: dict[str, str] = {}

    def heard(self) -> int | None:
        """Asked when `ended` has something to read: its exit status (negative: a signal), None if it goes on."""
        os.read(self.ended, 64)
        done, status = os.waitpid(self.pid, os.WNOHANG)
        return exit_status(status) if done else None


class Shared:
    """A body that the importing process of this node forks for this task."""

    def __init__(self, me: Me, body: Callable[[Me], int]) -> None:
        """Raises OSError where the importing process cannot be had, or is not ours."""
        name = f"\0fairlead-{me.config['run']}-{me.node}"
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with contextlib.suppress(OSError):  # somebody of this node was first
            listener.bind(name)
            listener.listen(1024)
            if os.fork() == 0:
                os.setsid()  # it serves the other ranks of the node too, and must not end with the one that came first
                importer(listener, me.config, body)
        listener.close()
        self.link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        self.link.settimeout(HELLO_S)
        try:
            self.link.connect(name)
            if not is_mine(self.link):
                raise PermissionError("another user's process holds the name")
        except OSError:
            self.link.close()
            raise
        reader, self.input = os.pipe()
        job = {
            "env": dict(os.environ),
            "cpus": sorted(os.sched_getaffinity(0)),
            "cwd": os.getcwd(),
            "pids": os.readlink("/proc/self/ns/pid"),
        }
        streams = array.array("i", [reader, 1, 2])
        self.link.sendmsg([json.dumps(job).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)])
        os.close(reader)
        self.link.settimeout(None)
        self.ended = self.link.fileno()
        self.pid = 0
        """Of the importing process once that has taken us in, then of the body."""
        self.failed: dict[str, str] = {}

    def heard(self) -> int | None:
        """The same, from the importing process; `failed` says why there will be no body."""
        message = self.link.recv(1 << 16)
        if not message:
            return NO_BODY
        said = json.loads(message)
        self.pid, self.failed = said.get("pid", self.pid), said.get("failed", self.failed)
        return NO_START if self.failed else said.get("rc")


def exit_status(status: int) -> int:
    """As Popen says it."""
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)


# ---- the importing process -------------------------------------------------------------------------------------------


def importer(listener: socket.socket, config: dict[str, Any], body: Callable[[Me], int]) -> NoReturn:
    """Import torch, then fork a body for each rank that asks, and tell each how its body ended.

    Ends when every rank of the node has been served, or when none is left and none comes, also in mid-import.
    """
    asked: list[Asked] = []
    has_torch, links = threading.Event(), dict[int, socket.socket]()
    door = threading.Thread(target=keep_door, args=(listener, asked, has_torch), daemon=True)
    door.start()
    failed: dict[str, str] = {}
    try:
        import_torch()
    except BaseException as error:
        failed = trouble(error)
    has_torch.set()
    door.join()
    served, idle_since = 0, time.monotonic()
    while links or asked or (served < config["per_node"] and time.monotonic() - idle_since < IDLE_S):
        listener.settimeout(0.02 if links or asked else 0.2)
        accept(listener, asked)
        for link, job, fds in asked:
            served += 1
            if failed:
                tell(link, failed=failed)
                continue
            pid = os.fork()
            if pid == 0:  # no body may hold what belongs to another
                for other in (listener, *links.values(), *(a[0] for a in asked)):
                    other.close()
                become(job, fds, config, body)
            tell(link, pid=pid)
            links[pid] = link
        for _, _, fds in asked:
            for fd in fds:
                os.close(fd)
        asked.clear()
        for pid, link in list(links.items()):
            if serve(pid, link):
                del links[pid]
                idle_since = time.monotonic()
    os._exit(0)


def accept(listener: socket.socket, asked: list[Asked]) -> None:
    """Take the next rank that asks, if one does in time. Another user's process, or a silent one, is let go."""
    try:
        link, _ = listener.accept()
    except OSError:
        return
    fds = array.array("i")
    with contextlib.suppress(OSError, ValueError, KeyError, IndexError):
        link.settimeout(HELLO_S)
        if is_mine(link):
            message, ancillary, _, _ = link.recvmsg(1 << 20, socket.CMSG_SPACE(12))
            fds, job = array.array("i", ancillary[0][2]), json.loads(message)
            # in another container numbers of processes are others
            if job["pids"] == os.readlink("/proc/self/ns/pid"):
                link.settimeout(None)
                tell(link, pid=os.getpid())
                asked.append((link, job, fds))
                return
    for fd in fds:
        os.close(fd)
    link.close()


def keep_door(listener: socket.socket, asked: list[Asked], has_torch: threading.Event) -> None:
    """While torch is imported: take in those who ask; end the process when all of them are gone."""
    listener.settimeout(0.2)
    last = time.monotonic()
    while not has_torch.is_set():
        accept(listener, asked)
        asked[:] = [a for a in asked if not is_gone(a[0])]
        if asked:
            last = time.monotonic()
        elif time.monotonic() - last > IDLE_S:
            os._exit(0)


def tell(link: socket.socket, **what: Any) -> None:
    """One message to a task; one that is gone does not matter."""
    with contextlib.suppress(OSError):
        link.send(json.dumps(what).encode())


def is_gone(link: socket.socket) -> bool:
    """Whether the other end has closed."""
    try:
        return not link.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True


def serve(pid: int, link: socket.socket) -> bool:
    """Whether a body has ended, which its task is then told. A task that is gone takes its body along."""
    if is_gone(link):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    done, status = os.waitpid(pid, os.WNOHANG)
    if not done:
        return False
    tell(link, rc=exit_status(status))
    return True


def become(job: dict[str, Any], fds: array.array[int], config: dict[str, Any], body: Callable[[Me], int]) -> NoReturn:
    """In a fresh fork: take over the task's streams, environment and CPUs, and never return."""
    status = 1
    try:
        die_with_parent()
        for target, fd in enumerate(fds):
            os.dup2(fd, target)
        os.environ.clear()
        os.environ.update(job["env"])
        with contextlib.suppress(OSError):  # a scheduler may keep the tasks of a node apart
            os.sched_setaffinity(0, job["cpus"])
        with contextlib.suppress(OSError):
            os.chdir(job["cwd"])
        status = begin(config, body)
    finally:
        os._exit(status)


# ---- a body ----------------------------------------------------------------------------------------------------------


def begin(config: dict[str, Any], body: Callable[[Me], int]) -> int:
    """In the body: import torch, unless it is there, then do what the stage wants; returns the exit status."""
    me = Me(config)
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as file:
        file.write(f"fl-rank-{me.rank}")
    try:
        import_torch()
    except BaseException as error:
        me.failed("no-torch", error, at=trouble(error)["at"])
        return NO_START
    try:
        status = body(me)
    except CannotStart as error:
        me.failed(error.why, error)
        return NO_START
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        text = " ".join(str(error).split())[:500]
        me.say("error", phase=me.phase, kind=type(error).__name__, text=text, at=f"{last.name}:{last.lineno}")
        return 1
    if status == 0:
        me.enter("done")
    return status

"""One import of torch for all ranks of a node.

Importing torch costs seconds of CPU and is the same for every rank. Where ranks use CPUs, a child of the first rank to
come imports it once and forks the others' bodies: each task stays the process its scheduler started, hands its standard
streams, environment and CPUs to its body, and ends as that ends; with a task goes its body. Where there are GPUs every
task imports by itself, as a scheduler may give each its own devices.
"""

# ruff: noqa: PTH109

from __future__ import annotations

import array
import contextlib
import ctypes
import gc
import json
import os
import signal
import socket
import threading
import time

from fairlead.preflight.onnode.place import Me, config

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

    Asked = tuple[socket.socket, dict[str, Any], array.array[int]]
    """A rank that waits for a body: its link, its environment, its standard streams."""

PR_SET_PDEATHSIG = 1
IDLE_S = 2.0
"""How long the importing process waits for a rank that has not come."""
NO_IMPORTER, INPUT_ENDED = 70, 75
"""Exit statuses of a task whose body could not be had, and of one whose caller is gone."""


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


def watch_input() -> None:
    """End at the first word on standard input, or at its end: whoever started this rank wants no more of it."""

    def watch() -> None:
        os.read(0, 4096)
        os._exit(INPUT_ENDED)

    threading.Thread(target=watch, daemon=True).start()


def die_with_parent() -> None:
    """In a fresh fork: end when its parent does."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def run_shared(me: Me, body: Callable[[Me], int]) -> int:
    """Run `body` in a process that need not import torch itself; its exit status (negative: a signal)."""
    name = f"\0fairlead-ranks-{config().get('run', '')}-{me.node}"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with contextlib.suppress(OSError):  # somebody of this node was first
        listener.bind(name)
        listener.listen(1024)
        if os.fork() == 0:
            os.setsid()  # it serves the other ranks of the node too, and must not end with the one that came first
            importer(listener, body)
    watch_input()
    listener.close()
    link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    link.connect(name)
    job = {"env": dict(os.environ), "cpus": sorted(os.sched_getaffinity(0)), "cwd": os.getcwd()}
    link.sendmsg([json.dumps(job).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))])
    answer = link.recv(64)
    return int(answer) if answer else NO_IMPORTER


def importer(listener: socket.socket, body: Callable[[Me], int]) -> NoReturn:
    """Import torch, then fork a body for each rank that asks, and tell each how its body ended.

    Ends when every rank of the node has been served, or when none is left and none comes, also in mid-import.
    """
    asked: list[Asked] = []
    has_torch, links = threading.Event(), dict[int, socket.socket]()
    door = threading.Thread(target=keep_door, args=(listener, asked, has_torch), daemon=True)
    door.start()
    import_torch()
    has_torch.set()
    door.join()
    served, idle_since = 0, time.monotonic()
    while links or asked or (served < config()["per_node"] and time.monotonic() - idle_since < IDLE_S):
        listener.settimeout(0.02 if links or asked else 0.2)
        accept(listener, asked)
        for link, job, fds in asked:
            pid = os.fork()
            if pid == 0:
                listener.close()
                become(job, fds, body)
            for fd in fds:
                os.close(fd)
            links[pid], served = link, served + 1
        asked.clear()
        for pid, link in list(links.items()):
            if serve(pid, link):
                del links[pid]
                idle_since = time.monotonic()
    os._exit(0)


def accept(listener: socket.socket, asked: list[Asked]) -> None:
    """Take the next rank that asks, if one does in time."""
    with contextlib.suppress(socket.timeout):
        link, _ = listener.accept()
        message, ancillary, _, _ = link.recvmsg(1 << 20, socket.CMSG_SPACE(12))
        if message:
            asked.append((link, json.loads(message), array.array("i", ancillary[0][2])))


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
    rc = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
    with contextlib.suppress(OSError):
        link.send(b"%d" % rc)
    return True


def become(job: dict[str, Any], fds: array.array[int], body: Callable[[Me], int]) -> NoReturn:
    """In a fresh fork: take over the task's streams, environment and CPUs, and never return."""
    status = 1
    try:
        die_with_parent()
        for target, fd in enumerate(fds):
            os.dup2(fd, target)
        os.environ.clear()
        os.environ.update(job["env"])
        os.sched_setaffinity(0, job["cpus"])
        with contextlib.suppress(OSError):
            os.chdir(job["cwd"])
        status = body(Me())
    finally:
        os._exit(status)

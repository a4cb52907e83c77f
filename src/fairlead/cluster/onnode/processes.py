"""The processes below a guard: found by the parents that /proc names, stopped as a tree."""

# pathlib would cost 8 ms a node
# ruff: noqa: PTH115, PTH123, PTH208

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

GIVE_UP_S = 2.0
"""After SIGKILL: what has not ended by then sleeps in the kernel."""
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def descendants(root: int) -> list[int]:
    """Every live process below `root`, by the parents that /proc names; none where /proc is another world's."""
    children: dict[int, list[int]] = {}
    try:
        if os.readlink("/proc/self") != str(os.getpid()):
            return []
        names = os.listdir("/proc")
    except OSError:
        return []
    for name in names:
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]
                if state not in (b"Z", b"X"):
                    children.setdefault(int(parent), []).append(int(name))
    found: list[int] = []
    queue = [root]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def has_children() -> bool:
    """Whether anything is left below: whoever adopts orphans has them all as children. Reaps those that have ended."""
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return True
        except ChildProcessError:
            return False


def signal_all(pids: list[int], number: int) -> None:
    """Send a signal to each; who is gone already or not ours does not matter."""
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def kill_below(root: int) -> None:
    """SIGKILL for everything below a process, again until nothing new appears."""
    deadline = time.monotonic() + GIVE_UP_S
    while time.monotonic() < deadline:
        below = descendants(root)
        if not below:
            return
        signal_all(below, signal.SIGKILL)
        time.sleep(0.005)


def prctl(option: int, value: int) -> None:
    """Set one attribute of this process; a Python built without ctypes goes without."""
    with contextlib.suppress(Exception):
        import ctypes

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def die_with_parent() -> None:
    """In a new child: end when the guard is killed."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def spawn(target: Callable[..., object], *args: object) -> threading.Thread:
    """A thread that does not keep the program alive."""
    thread = threading.Thread(target=target, args=args, daemon=True)
    thread.start()
    return thread

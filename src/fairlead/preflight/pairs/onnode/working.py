"""A fixed amount of arithmetic on one core, and for how long other programs kept it from a processor.

A node whose quota or processor is small is slow for any job; one whose processors others use just now is only busy. The
kernel tells them apart: a thread's second number in /proc/thread-self/schedstat is the time it was ready to run and did
not (Documentation/scheduler/sched-stats.rst), and cpu.stat of its cgroups says how much of that was a quota's doing
(Documentation/admin-guide/cgroup-v2.rst).
"""

# ruff: noqa: PTH123

from __future__ import annotations

import contextlib
import hashlib
import os
import time


def fixed_work(blocks: int) -> dict[str, int]:
    """Hash that many blocks of 64 KiB. Nanoseconds: `wall_ns`, `cpu_ns`, and `others_ns` waited for other programs."""
    waited, held = waited_ns(), throttled_ns()
    wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
    block = bytes(1 << 16)
    for _ in range(blocks):
        hashlib.sha256(block).digest()
    took = {"wall_ns": time.perf_counter_ns() - wall, "cpu_ns": time.thread_time_ns() - cpu}
    others_ns = (waited_ns() - waited) - (throttled_ns() - held)
    return {**took, "others_ns": max(0, min(others_ns, took["wall_ns"] - took["cpu_ns"]))}


def waited_ns(path: str = "/proc/thread-self/schedstat") -> int:
    """How long this thread was ready to run and did not; 0 where the kernel does not count it."""
    with contextlib.suppress(OSError, ValueError, IndexError), open(path) as file:
        return int(file.read().split()[1])
    return 0


def throttled_ns(own: str = "/proc/self/cgroup", root: str = "/sys/fs/cgroup") -> int:
    """How long a CPU quota held this process's cgroups back, the longest of its cgroup and those above it."""
    longest = 0
    with contextlib.suppress(OSError), open(own) as file:
        for line in file:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            if controllers and "cpu" not in controllers.split(","):
                continue
            for tree in (root, root + "/unified") if not controllers else (root + "/" + controllers, root + "/cpu"):
                place = path
                while True:
                    longest = max(longest, _throttled(tree + place + "/cpu.stat"))
                    if place in ("", "/"):
                        break
                    place = os.path.dirname(place)  # noqa: PTH120
    return longest


def _throttled(path: str) -> int:
    with contextlib.suppress(OSError, ValueError), open(path) as file:
        for line in file:
            name, _, number = line.partition(" ")
            if name == "throttled_usec":  # cgroup v2
                return int(number) * 1000
            if name == "throttled_time":  # cgroup v1, ns
                return int(number)
    return 0

"""The kernel's messages, bounded: warnings and worse, and everything from the drivers a job depends on."""

from __future__ import annotations

import os
import re
from typing import Any

from fairlead.probe.readers.tree import Hole, Tree

MAX_LINES = 1000
MAX_ALIKE = 120
"""A driver that repeats itself must not push everything else out: so many lines are kept that begin alike."""

MAX_READ = 8 << 20
SUBJECTS = re.compile(
    r"NVRM|nvidia|mlx[45]_|mana|amdgpu|hv_netvsc|Data path|infiniband|nvme|EXT4-fs|XFS|I/O error|soft lockup|hung_task"
    r"|blocked for more|Out of memory|oom-kill|Hardware Error|mce:|EDAC|link becomes ready|Lustre"
    r"|AER:"  # codespell:ignore aer
)


def read_kernel_log(tree: Tree) -> dict[str, Any]:
    """`lines`: [seconds since boot, level, text], oldest first; the newest MAX_LINES that are kept."""
    tree.source((), "/dev/kmsg")
    kept, raw, num_read, first_s = [], [], 0, None
    alike: dict[str, int] = {}
    newest = ""
    for record in _live_records() if tree.live else tree.read_bytes("/dev/kmsg", MAX_READ).split(b"\n"):
        # linux Documentation/ABI/testing/dev-kmsg: `6,339,5140900,-;NET: Registered protocol family 10`
        head, mark, text = record.decode("utf-8", "backslashreplace").partition(";")
        fields = head.split(",")
        if not mark or len(fields) < 3 or not fields[0].isdigit() or not fields[2].isdigit():
            continue
        num_read += 1
        level, seconds = int(fields[0]) & 7, int(fields[2]) / 1e6
        if first_s is None:
            first_s = round(seconds, 3)
        line = text.split("\n")[0]
        alike[line[:48]] = alike.get(line[:48], 0) + 1
        if (level <= 4 or SUBJECTS.search(line)) and alike[line[:48]] <= MAX_ALIKE:
            kept.append([round(seconds, 3), level, line[:400]])
            raw.append(head + ";" + line)
        newest = head + ";" + line
    if tree.kept is not None:
        # the newest record shows that the log could be read, also where no line of it is a fact
        tree.kept["/dev/kmsg"] = "\n".join(raw if newest in raw[-1:] else [*raw, newest])
    if not num_read:
        raise Hole("holds no message", "/dev/kmsg")
    return {
        "lines": kept[-MAX_LINES:],
        "num_read": num_read,
        "num_left_out": max(0, len(kept) - MAX_LINES),
        "first_s": first_s,
    }


def _live_records() -> list[bytes]:
    """Every record the kernel still holds. A read gives one; without O_NONBLOCK the last one would wait for news."""
    try:
        handle = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise Hole(os.strerror(error.errno or 0).lower(), "/dev/kmsg") from None
    records: list[bytes] = []
    size = 0
    try:
        while size < MAX_READ:
            try:
                records.append(os.read(handle, 8192))
            except BrokenPipeError:
                continue  # the oldest record was overwritten while we read; the next read goes on
            size += len(records[-1])
    except BlockingIOError:
        pass
    except OSError as error:
        if not records:
            raise Hole(os.strerror(error.errno or 0).lower(), "/dev/kmsg") from None
    finally:
        os.close(handle)
    return records

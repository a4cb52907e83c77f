"""What the collective library (NCCL, RCCL) writes about the network it chose, taken in on the node and shortened.

A communicator of a thousand nodes prints hundreds of lines a rank, and most differ only in numbers of channels. So the
library writes into a pipe of this process; a thread keeps each distinct statement once, with a count. Warnings pass on
to standard error as they come. Nothing is judged here.
"""

# ruff: noqa: PTH123

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import threading
from collections import Counter

from fairlead.launch.onnode.me import Me

F_SETPIPE_SZ = 1031
PIPE_BYTES = 1 << 20
"""As much as any user may have (/proc/sys/fs/pipe-max-size): the library must never wait for the thread."""
MAX_KEPT, MAX_CHARS, MAX_WARNINGS = 96, 400, 40
_PREFIX = re.compile(r"^.*?(?:NCCL|RCCL) (INFO|WARN) ")
_KEEP = re.compile(
    r"NET/|Using network|NET plugin| via |[NR]CCL version|GPU Direct|DMA-BUF|MNNVL|NVLS multicast|SHARP|Collnet|COLLNET"
    r"|set by environment to|NCCL_IB_HCA set to|No device found|nccl.conf"
)
_CHANNEL = re.compile(r"^.*?(\[(?:send|receive)\] )?(via )")
_NUMBERS = re.compile(r"\s+comm 0x.*$")
"""RCCL ends a channel's line with its communicator."""
_PROXY = re.compile(r"\(\d+\)")


def digest(line: str) -> str:
    """What a line says about the network, without process, channel and rank numbers; empty: nothing.

    >>> digest("n0:523:564 [0] NCCL INFO Channel 08/0 : 9[1] -> 0[0] [receive] via NET/IB/0/GDRDMA")
    '[receive] via NET/IB/0/GDRDMA'
    """
    found = _PREFIX.match(line)
    if not found and not re.match(r"[NR]CCL version", line):
        return ""
    text = line[found.end() :].strip() if found else line.strip()
    if found and found[1] == "WARN":
        return ("WARN " + text)[:MAX_CHARS]
    if not _KEEP.search(text):
        return ""
    if " via " in text or text.startswith("via "):
        text = _PROXY.sub("(proxy)", _NUMBERS.sub("", text))
        text = _CHANNEL.sub(lambda m: (m[1] or "") + m[2], text)
    return text[:MAX_CHARS]


class NcclLog:
    """Listens to the library in this process."""

    def __init__(self) -> None:
        self.lines: Counter[str] = Counter()
        self.lock = threading.Lock()
        self.warnings = 0
        self.read_fd, self.write_fd = os.pipe()
        with contextlib.suppress(OSError):
            fcntl.fcntl(self.write_fd, F_SETPIPE_SZ, PIPE_BYTES)
        # the job's own NCCL_DEBUG would hide the proof; this process is not the job
        os.environ.update(
            NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,NET,ENV", NCCL_DEBUG_FILE=f"/proc/self/fd/{self.write_fd}"
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with open(self.read_fd, errors="replace") as file:
            for line in file:
                self.take(line.rstrip("\n"))

    def take(self, line: str) -> None:
        """One line of the library."""
        text = digest(line)
        if not text:
            return
        with self.lock:
            if text in self.lines or len(self.lines) < MAX_KEPT:
                self.lines[text] += 1
            is_loud = text.startswith("WARN ") and self.warnings < MAX_WARNINGS
            self.warnings += is_loud
        if is_loud:
            os.write(2, (line[:2000] + "\n").encode(errors="replace"))

    def tell(self, me: Me) -> None:
        """Say what has come since the last time."""
        with self.lock:
            found, self.lines = dict(self.lines), Counter()
        if found:
            me.say("nccl", lines=found)

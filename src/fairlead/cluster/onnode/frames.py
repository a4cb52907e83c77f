"""What the program on a node and whoever asked it say to each other: frames, and what is kept of an output.

Input:  one line of JSON (the job), the bytes the job announces, then nothing until the end of file; for a `live` job,
        whatever follows goes to the commands as it comes.
Output: MAGIC, then frames: kind, rank, length (FRAME), payload, END.
    H   here: the program runs
    o e a piece of standard output, standard error
    O E its last part, sent at the end where the middle was left out
    d   a piece of a file
    a   how many bytes of a live job's input all its commands have taken: 8 bytes, after every ACK_BYTES
    b   once a second, as this program's own sign of life: those of a live job's commands, the last one of each, as JSON
    x   one rank or copy has ended: JSON
    z   all have ended; nothing follows
"""

from __future__ import annotations

import json
import os
import struct
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

MAGIC = b"\x00fairlead/1\n"
FRAME = struct.Struct(">cHI")
END = b"\n"
"""srun passes on whole lines only, so every frame ends one."""
CHUNK = 1 << 16
MAX_LIMIT_S = 10**6


class Kept:
    """At most `keep` bytes of a stream: its first half as it comes, its last half at the end."""

    def __init__(self, keep: int) -> None:
        self.half = keep // 2
        self.head_size = self.num_bytes = 0
        self.rest = bytearray()

    def feed(self, data: bytes) -> bytes:
        """Take more of the stream; returns the part of it that belongs to the head."""
        self.num_bytes += len(data)
        head = data[: self.half - self.head_size]
        self.head_size += len(head)
        self.rest += data[len(head) :]
        if len(self.rest) > 2 * self.half:  # seldom: every cut copies
            self.tail()
        return head

    def tail(self) -> bytes:
        """The last half, as far as it lies behind the head."""
        del self.rest[: max(0, len(self.rest) - self.half)]
        return bytes(self.rest)


class Out:
    """Frames to standard output, from any thread."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.lock = threading.Lock()
        self.lost: Callable[[], object] = lambda: None
        """Called when nobody reads any more."""

    def send(self, kind: bytes, payload: bytes = b"", rank: int = 0) -> None:
        """One frame, whole; blocks while the reader is slow."""
        data = memoryview(FRAME.pack(kind, rank, len(payload)) + payload + END)
        try:
            with self.lock:
                while data:
                    data = data[os.write(self.fd, data) :]
        except OSError:
            self.lost()

    def end(self, rank: int = 0, **how: object) -> None:
        """How one rank or copy ended."""
        self.send(b"x", json.dumps(how).encode(), rank)

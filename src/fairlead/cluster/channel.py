"""Messages between a program on a node and whoever started it: lines of text and frames of bytes, both ways.

This is the one part a program includes to read and write them: standard library, Python 3.9. The asking side imports it
too.

    channel = Channel()
    config = channel.read()            # str: a line; bytes: a frame; None: nothing within the time given
    channel.say("up")                  # a line
    channel.send(b"...")               # a frame, at most MAX_FRAME_BYTES
    channel.beat("reduce")             # "I am alive": many of them cost nobody anything, only the last one counts

On the wire a line is a line. A frame, a beat, and whatever is for one rank alone, is cut into segments: MARK, what it
is and whom it is for, its length, the payload, a line end. A segment is written at once and no longer than what a pipe
takes whole (pipe(7), PIPE_BUF), so that a library that prints to the same pipe cannot tear it. Where the way passes
only short lines of text (srun cuts and labels them), FAIRLEAD_WIRE is `lines`, and a segment is a line of base64.
"""

from __future__ import annotations

import os
import select
import struct
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Union

    Message = Union[str, bytes]  # noqa: UP007 - read by Python 3.9, too

MAX_FRAME_BYTES = 1 << 20
MAX_LINE_BYTES = 1 << 20
"""A longer line comes in several."""
MAX_BEAT_BYTES = 200
MARK = b"\x00fl\x01"
SEGMENT = struct.Struct(">4sBiI")
"""MARK, flags, the rank it is for (EVERYONE: all), length."""
LAST, IS_TEXT, IS_BEAT = 1, 2, 4
EVERYONE = -1
OUT_BYTES = 4096 - SEGMENT.size - 1
IN_BYTES = 1 << 16
PIECE = b"~fl1 "
PIECE_BYTES = 660
"""Of a segment sent as a line of text: 880 characters of base64. srun cuts lines of more than 1,024 bytes."""
LONGEST_LINE = 900
A_LINE, A_FRAME, A_BEAT = "line", "frame", "beat"


def segments(payload: bytes, kind: int = 0, to: int = EVERYONE, size: int = IN_BYTES) -> Iterator[bytes]:
    """A payload as it goes over a pipe."""
    for start in range(0, max(1, len(payload)), size):
        piece = payload[start : start + size]
        flags = kind | (LAST if start + size >= len(payload) else 0)
        yield SEGMENT.pack(MARK, flags, to, len(piece)) + piece + b"\n"


def encoded(message: Message, to: int = EVERYONE) -> bytes:
    """A message as the asking side writes it: a plain line, where it is text for everyone."""
    if isinstance(message, bytes):
        assert len(message) <= MAX_FRAME_BYTES, f"a frame holds at most {MAX_FRAME_BYTES} bytes: send several"
        return b"".join(segments(message, to=to))
    if to == EVERYONE:
        return message.encode() + b"\n"
    return b"".join(segments(message.encode(), IS_TEXT, to))


class Incoming:
    """Bytes in, messages out: (A_LINE, A_FRAME or A_BEAT, payload). What is for another rank is left out."""

    def __init__(self, me: int = EVERYONE) -> None:
        self.me = me
        self.rest = bytearray()
        """A line without its end, or a segment that is not whole."""
        self.need = 0
        """How long `rest` must be before anything can come of it; 0: until a line ends or a segment begins."""
        self.before = b""
        """The beginning of a line that a segment cut in two."""
        self.parts: list[bytes] = []
        """Of a frame that is not whole."""
        self.size = 0

    def feed(self, data: bytes) -> list[tuple[str, bytes]]:
        """The messages that `data` completes."""
        out: list[tuple[str, bytes]] = []
        if self.rest:  # what comes byte by byte must not be gone through anew with each
            self.rest += data
            tail = len(self.rest) - len(data) - len(MARK)
            is_open = b"\n" not in data and self.rest.find(MARK, max(0, tail)) < 0 and len(self.rest) <= MAX_LINE_BYTES
            if len(self.rest) < self.need if self.need else is_open:
                return out
            data = bytes(self.rest)
        at = self.need = 0
        while True:
            mark = data.find(MARK, at)
            *lines, rest = (data[at:] if mark < 0 else data[at:mark]).split(b"\n")
            for line in lines:
                self.line(self.before + line if self.before else line, out)
                self.before = b""
            if mark < 0:
                break
            self.before += rest
            if len(self.before) > MAX_LINE_BYTES:
                self.line(self.before, out)
                self.before = b""
            end = self.segment(data, mark, out)
            if end < 0:
                rest = data[mark:]
                self.need = SEGMENT.size if len(rest) < SEGMENT.size else -end
                break
            at = end
        if mark < 0 and len(rest) > MAX_LINE_BYTES:
            self.line(self.before + rest, out)
            self.before = rest = b""
        self.rest = bytearray(rest)
        return out

    def end(self) -> list[tuple[str, bytes]]:
        """Nothing more comes: a last line without its end is a line too."""
        out: list[tuple[str, bytes]] = []
        if self.before or self.rest:
            self.line(self.before + bytes(self.rest), out)
        self.before, self.rest, self.need = b"", bytearray(), 0
        return out

    def segment(self, data: bytes, at: int, out: list[tuple[str, bytes]]) -> int:
        """Take the segment that begins at `at`; returns where it ends. While it is not whole: minus what it needs."""
        if len(data) < at + SEGMENT.size:
            return -SEGMENT.size
        _, flags, to, length = SEGMENT.unpack_from(data, at)
        end: int = at + SEGMENT.size + length
        if length > MAX_FRAME_BYTES or data[end : end + 1] not in (b"", b"\n"):
            self.before += data[at : at + len(MARK)]  # somebody's own bytes
            return at + len(MARK)
        if len(data) <= end:
            return at - end - 1
        if to in (EVERYONE, self.me) or self.me == EVERYONE:
            self.payload(flags, data[at + SEGMENT.size : end], out)
        return end + 1

    def payload(self, flags: int, piece: bytes, out: list[tuple[str, bytes]]) -> None:
        """A piece of a message; the last one completes it. One that grows beyond all bounds is dropped."""
        if flags & IS_BEAT:
            out.append((A_BEAT, piece))
            return
        self.size += len(piece)
        if self.size <= MAX_FRAME_BYTES:
            self.parts.append(piece)
        if flags & LAST:
            if self.size <= MAX_FRAME_BYTES:
                out.append((A_LINE if flags & IS_TEXT else A_FRAME, b"".join(self.parts)))
            self.parts, self.size = [], 0

    def line(self, line: bytes, out: list[tuple[str, bytes]]) -> None:
        """A line, or a segment that came as one."""
        if not line.startswith(PIECE):
            out.append((A_LINE, line))
            return
        import binascii

        try:
            flags, piece = int(line[5:6]), binascii.a2b_base64(line[7:])
        except ValueError:
            out.append((A_LINE, line))
        else:
            self.payload(flags, piece, out)


class Place:
    """Who this process is in its group, by what started it; `rank` is -1 where it is not one of several."""

    def __init__(self) -> None:
        first = number_of("FAIRLEAD_FIRST_RANK")
        # what a scheduler says counts where the ranks are its tasks; elsewhere it speaks of the guard around them
        self.rank = number_of("RANK") if first < 0 else first + number_of("SLURM_PROCID")
        self.local = number_of("LOCAL_RANK") if first < 0 else number_of("SLURM_LOCALID")
        self.world = number_of("WORLD_SIZE") if first < 0 else number_of("FAIRLEAD_WORLD")
        self.node = os.environ.get("FAIRLEAD_NODE") or os.environ.get("SLURMD_NODENAME") or os.uname().nodename


def number_of(*names: str) -> int:
    """The first of several variables that holds a number; -1 if none does."""
    return next((int(os.environ[n]) for n in names if os.environ.get(n, "").isdigit()), -1)


class Channel:
    """The node's end. Any thread may write; one reads."""

    def __init__(self, fd_in: int = 0, fd_out: int = 1) -> None:
        self.fd_in, self.fd_out = fd_in, fd_out
        self.by_lines = os.environ.get("FAIRLEAD_WIRE") == "lines"
        self.incoming = Incoming(Place().rank)
        self.waiting: list[Message] = []
        self.has_ended = False
        self.lock = threading.Lock()

    def read(self, timeout_s: float | None = None) -> Message | None:
        """The next message; None if none came in time. Raises EOFError once whoever asked is gone."""
        while not self.waiting:
            if self.has_ended:
                raise EOFError
            if timeout_s is not None and not select.select([self.fd_in], [], [], timeout_s)[0]:
                return None
            self.take(os.read(self.fd_in, IN_BYTES))
        return self.waiting.pop(0)

    def take(self, data: bytes) -> list[Message]:
        """What has been read, for a program with a loop of its own: adds to `waiting`, and returns it."""
        self.has_ended = not data
        for kind, payload in self.incoming.feed(data):
            self.waiting.append(payload if kind == A_FRAME else payload.decode("utf-8", "backslashreplace"))
        return self.waiting

    def say(self, text: str) -> None:
        """One line."""
        line = text.encode("utf-8", "backslashreplace")
        if self.by_lines and len(line) > LONGEST_LINE:
            self.put(line, IS_TEXT)
        else:
            with self.lock:
                self.write(line + b"\n")

    def send(self, data: bytes) -> None:
        """One frame; waits while nobody takes it."""
        assert len(data) <= MAX_FRAME_BYTES, f"a frame holds at most {MAX_FRAME_BYTES} bytes: send several"
        self.put(data, 0)

    def beat(self, text: str) -> None:
        """A sign of life, and in a few words what is being done."""
        self.put(text.encode()[:MAX_BEAT_BYTES], IS_BEAT)

    def put(self, payload: bytes, kind: int) -> None:
        """All segments of one message, one after the other."""
        with self.lock:
            if not self.by_lines:
                for segment in segments(payload, kind, size=OUT_BYTES):
                    self.write(segment)
                return
            import binascii

            for start in range(0, max(1, len(payload)), PIECE_BYTES):
                flags = kind | (LAST if start + PIECE_BYTES >= len(payload) else 0)
                piece = binascii.b2a_base64(payload[start : start + PIECE_BYTES])
                self.write(PIECE + b"%d " % flags + piece)

    def write(self, data: bytes) -> None:
        """Bytes, all of them."""
        view = memoryview(data)
        while view:
            view = view[os.write(self.fd_out, view) :]

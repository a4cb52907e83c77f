"""A command on this node that is given the files while they still come: a tar archive (POSIX pax) on its standard
input, in the order of the plan. Python 3.9.

Each byte was verified before and is read back from the disk, or from the page cache. Who reads slowly makes nobody wait
but itself: this node is done when the command has ended. Where the run fails, the command is killed.

Must not know: where chunks come from.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from typing import Any, Callable

    from fairlead.weights.onnode.disk import Disk

READER_LOG = "reader.log"
"""What the command says, below DEST/.fairlead."""
STEP_BYTES, TAR_BLOCK = 1 << 20, 512
POLL_READER_S = 0.02
LAST_LINE_BYTES = 200


class Reader:
    """The command, and a thread that feeds it."""

    def __init__(self, disk: Disk, command: str) -> None:
        """Nothing is started."""
        self.disk, self.command = disk, command
        self.child: subprocess.Popen[bytes] | None = None
        self.over = threading.Event()
        self.why = ""
        """How the command failed; empty where it did not."""

    def run(self, may_begin: Callable[[], bool], stopped: Callable[[], bool]) -> None:
        """Start it, feed it, wait for it. Raises Unusable where the disk cannot be read."""
        try:
            if self._waited(may_begin, stopped):
                self._feed(stopped)
        finally:
            self.over.set()

    def kill(self) -> None:
        """It and what it started, if it still runs."""
        child = self.child
        if child is not None and child.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)

    def _feed(self, stopped: Callable[[], bool]) -> None:
        import subprocess

        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        log = os.open(READER_LOG, flags, 0o600, dir_fd=self.disk.own)
        num_bytes, is_cut = 0, False
        try:
            self.child = child = subprocess.Popen(
                ["/bin/sh", "-c", self.command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                bufsize=0,
                start_new_session=True,
                env={**os.environ, "FAIRLEAD_DEST": self.disk.dest},
            )
            pipe: Any = child.stdin
            try:
                for piece in self._archive(stopped):
                    left = memoryview(piece)
                    while left:
                        num = pipe.write(left)
                        num_bytes, left = num_bytes + num, left[num:]
                pipe.close()
            except BrokenPipeError:
                is_cut = True
            if stopped():
                self.kill()
            status = child.wait()
            if status or is_cut:
                how = f"exit {status}" if status >= 0 else f"signal {-status}"
                when = f" after {num_bytes} bytes, before the end" if is_cut else ""
                said = os.pread(log, 1 << 16, max(0, os.fstat(log).st_size - (1 << 16))).decode(
                    "utf-8", "backslashreplace"
                )
                last = (said.strip().splitlines() or [""])[-1][:LAST_LINE_BYTES]
                self.why = f"it ended{when} with {how}" + (f": {last}" if last else "")
        finally:
            os.close(log)

    def _archive(self, stopped: Callable[[], bool]) -> Iterator[Any]:
        """The archive in pieces, each as soon as it is there; it ends early where the run does."""
        import tarfile

        buffer = memoryview(bytearray(STEP_BYTES))
        for number, file in enumerate(self.disk.files):
            head = tarfile.TarInfo(file["path"])
            head.size, head.mode = file["size"], 0o644
            yield head.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
            for chunk in self.disk.of_file[number]:
                if not self._waited(lambda chunk=chunk: bool(self.disk.here[chunk]), stopped):  # type: ignore[misc]
                    return
                for of, at, length in self.disk.chunks[chunk]:
                    for start in range(at, at + length, STEP_BYTES) if of == number else ():
                        view = buffer[: min(STEP_BYTES, at + length - start)]
                        self.disk.read_piece(number, start, view)
                        yield view
            yield bytes(-file["size"] % TAR_BLOCK)
        yield bytes(2 * TAR_BLOCK)

    @staticmethod
    def _waited(is_so: Callable[[], bool], stopped: Callable[[], bool]) -> bool:
        """Wait; False where the run ended first."""
        while not is_so():
            if stopped():
                return False
            time.sleep(POLL_READER_S)
        return True

"""The control side of a spread by MPI: a cluster of ranks, which it speaks to through the rank it was started by."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import socket
import threading
import time
from multiprocessing.connection import Connection
from typing import Self

from fairlead.base.program import Program
from fairlead.cluster.heard import Key
from fairlead.cluster.protocol import Line, Message, Result, State
from fairlead.errors import UsageError
from fairlead.weights.mpi.rank import EVERYBODY, FD, HEAD


class Ranks:
    """Nodes as Spread wants them: started already, by mpirun."""

    num_starting = 0

    def __init__(self) -> None:
        """Raises UsageError where no rank started this."""
        descriptor = os.environ.get(FD, "")
        if not descriptor.isdigit():
            raise UsageError("weights/no-ranks", "no rank started this", hint="mpirun fairlead weights spread ...")
        self.way = Connection(int(descriptor))
        self.names: list[str] = json.loads(self.way.recv_bytes())
        self._lines: queue.SimpleQueue[Line | None] = queue.SimpleQueue()
        self._ended: list[tuple[Key, Result]] = []
        self._hearing = threading.Thread(target=self._hear, daemon=True)
        self._hearing.start()

    def start(self, program: Program, nodes: object, *, limit_s: float) -> Self:
        """Nothing: every rank is a node that waits."""
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, message: Message, to: str | None = None) -> None:
        """To a node, or to all."""
        rank = EVERYBODY if to is None else self.names.index(to)
        data = message.encode() if isinstance(message, str) else message
        self.way.send_bytes(HEAD.pack(rank, isinstance(message, str)) + data)

    def read_all(self, timeout_s: float) -> list[Line]:
        """What nodes said, after waiting for the first."""
        found: list[Line] = []
        try:
            line = self._lines.get(timeout=timeout_s)
            while line is not None:
                found.append(line)
                line = self._lines.get_nowait()
        except queue.Empty:
            return found
        self._end()
        return found

    @property
    def has_unread(self) -> bool:
        """Whether nodes have said more."""
        return not self._lines.empty()

    def take_ended(self) -> list[tuple[Key, Result]]:
        """Nodes that have ended since this was last asked: with MPI, all or none."""
        ended, self._ended = self._ended, []
        return ended

    def close(self, grace_s: float = 0.0) -> None:
        """Nothing more is said."""
        deadline = time.monotonic() + grace_s
        while time.monotonic() < deadline and self.has_unread:
            self.read_all(0.0)
        if self.way.closed:
            return
        # a descriptor that is closed while a thread reads from it stays open, and its number may be another file's soon
        with socket.socket(fileno=os.dup(self.way.fileno())) as way, contextlib.suppress(OSError):
            way.shutdown(socket.SHUT_RDWR)
        self._hearing.join()
        self.way.close()

    def _hear(self) -> None:
        try:
            while True:
                said = self.way.recv_bytes()
                rank, _ = HEAD.unpack_from(said)
                self._lines.put(Line(self.names[rank], None, "stdout", said[HEAD.size :].decode()))
        except (EOFError, OSError, UnicodeDecodeError):
            self._lines.put(None)

    def _end(self) -> None:
        why = "MPI has ended the job"
        self._ended += [((n, None), Result(node=n, state=State.FAILED, error=why)) for n in self.names]

"""What every rank does that mpirun or srun starts: it is a node of the spread. Beside rank 0 runs the control side.

The control side is the same command once more, as a child of rank 0 without MPI: it prints what the spread prints, and
its end is everybody's. What it says to nodes, and they to it, goes through rank 0 (`Relay`).
"""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import NoReturn

from fairlead.cluster.channel import Channel
from fairlead.cluster.protocol import Message
from fairlead.weights.mpi.carry import CONTROL, DATA, END, Mpi, tag_of
from fairlead.weights.mpi.post import Post
from fairlead.weights.onnode.node import take_part

FD = "FAIRLEAD_WEIGHTS_RANKS"
"""The environment variable by which the control side knows its descriptor."""
HEAD = struct.Struct(">i?")
"""A rank (EVERYBODY: all), and whether it is text."""
EVERYBODY = -1
LEAVE_S = 30.0
"""How long ranks may take to end MPI together, once the control side has ended: milliseconds where all live."""
WORD, OVER = tag_of(CONTROL, DATA, opener=False), tag_of(CONTROL, END, opener=False)


class RankChannel(Channel):
    """What a node knows as its channel: here messages of MPI."""

    def __init__(self) -> None:
        self.words: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self.say_to: Relay | Post | None = None

    def read(self, timeout_s: float | None = None) -> Message | None:
        """The next message from the control side. Raises EOFError at its end."""
        try:
            word = self.words.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if word is None:
            raise EOFError
        return word

    def say(self, text: str) -> None:
        """A line for the control side."""
        if isinstance(self.say_to, Relay):
            self.say_to.told(0, text.encode())
        elif self.say_to is not None:
            self.say_to.send(0, WORD, b"t" + text.encode())

    def heard(self, data: bytes) -> None:
        """What the control side says."""
        self.words.put(data[1:].decode() if data[:1] == b"t" else data[1:])


class Relay:
    """Beside rank 0: from the control side to ranks, and back."""

    def __init__(self, post: Post, channel: RankChannel, argv: Sequence[str]) -> None:
        mine, its = socket.socketpair()
        self.post, self.channel, self.way = post, channel, Connection(mine.detach())
        self.lock = threading.Lock()
        self.child = subprocess.Popen(
            [sys.executable, "-m", "fairlead", *argv],
            env={**os.environ, FD: str(its.fileno())},
            pass_fds=[its.fileno()],
        )
        its.close()
        self.way.send_bytes(json.dumps(post.names).encode())

    def told(self, rank: int, line: bytes) -> None:
        """A rank says something."""
        try:
            with self.lock:
                self.way.send_bytes(HEAD.pack(rank, True) + line)
        except OSError:
            return  # the control side has ended: everybody hears of that

    def carry(self) -> int:
        """Until the control side has ended; its exit status."""
        try:
            while True:
                said = self.way.recv_bytes()
                rank, is_text = HEAD.unpack_from(said)
                data = (b"t" if is_text else b"f") + said[HEAD.size :]
                for to in range(self.post.size) if rank == EVERYBODY else (rank,):
                    if to:
                        self.post.send(to, WORD, data)
                    else:
                        self.channel.heard(data)
        except (EOFError, OSError):
            pass
        status = self.child.wait()
        for rank in range(1, self.post.size):
            self.post.send(rank, OVER, b"")
        return status if status >= 0 else 1


def be_a_rank(argv: Sequence[str]) -> NoReturn:
    """This process is a node until the control side has ended. Raises MissingTool or UsageError before it is one."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # mpirun ends all ranks so; what is to be said, the control side says
    post, channel, carrier, over = Post(), RankChannel(), Mpi(), threading.Event()
    carrier.begin(post)
    relay = Relay(post, channel, argv) if post.me == 0 else None
    channel.say_to = relay or post

    def heard(source: int, tag: int, data: memoryview) -> None:
        if tag == OVER:
            channel.words.put(None)
            over.set()
        elif tag != WORD:
            carrier.heard(source, tag, data)
        elif relay is not None:
            relay.told(source, bytes(data[1:]))
        else:
            channel.heard(bytes(data))

    def leave(_: int) -> None:
        """A node that has failed stays a rank: MPI would end all others with it."""
        threading.Event().wait()

    def take() -> None:
        """A fault of the node is said: its process goes on, so nobody would hear of its end."""
        try:
            take_part(channel, leave, carrier)
        except EOFError:
            pass  # the control side has ended before this node began
        except BaseException as error:  # noqa: BLE001
            text = f"{type(error).__name__}: {error}"
            channel.say(json.dumps({"do": "failed", "code": "weights/node-fault", "text": text, "hint": ""}))

    post.begin(heard)
    threading.Thread(target=take, daemon=True).start()
    status = 0
    if relay is not None:
        status = relay.carry()
    else:
        over.wait()
    # rank 0 gives up first: the status that mpirun shows is that of who ends the job
    if not post.leave(LEAVE_S if relay is not None else 2 * LEAVE_S):
        text = "a rank does not answer: the job is ended. What was said of the nodes holds."
        sys.stderr.write(f"fairlead: MPI did not end within {LEAVE_S:g} s, as {text}\n")
        sys.stderr.flush()
        os._exit(status or 1)
    os._exit(status)

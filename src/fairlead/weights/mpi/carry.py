"""Streams between ranks of an MPI job: a piece is a message, its tag says which connection it belongs to."""

from __future__ import annotations

import itertools
import queue
import threading
from typing import Any

from fairlead.weights.mpi.post import Post
from fairlead.weights.onnode.pieces import PieceStream
from fairlead.weights.onnode.streams import Broken, Stream, Transport

OPEN, DATA, FREED, END = range(4)
OPENER = 4
"""In a tag: whoever sends has opened the connection. Its number, counted by that one, stands above."""
CONTROL = 0
"""The number of what is no connection but a word from or to the control side."""
MAX_CONNECTIONS = 1 << 19
"""Tags of 23 bits are what the least of today's libraries has."""


def tag_of(number: int, kind: int, *, opener: bool) -> int:
    """Of a message."""
    return number << 3 | (OPENER if opener else 0) | kind


class MpiStream(PieceStream):
    """One connection with another rank."""

    def __init__(self, carrier: Mpi, peer: int, number: int, *, opener: bool) -> None:
        super().__init__()
        self.carrier, self.peer, self.number, self.opener = carrier, peer, number, opener

    def put(self, number: int, piece: Any, slot: int) -> None:
        """See PieceStream."""
        self.carrier.post.send(self.peer, self._tag(DATA), piece, lambda: self.arrived(number))

    def give_room(self, num: int) -> None:
        """See PieceStream."""
        self.carrier.post.send(self.peer, self._tag(FREED), num.to_bytes(4, "big"))

    def close(self) -> None:
        """See Stream."""
        super().close()
        if self.carrier.forget(self):
            self.carrier.post.send(self.peer, self._tag(END), b"")

    def heard(self, kind: int, data: memoryview) -> None:
        """What came for it. Raises Broken."""
        if kind == DATA:
            self.got(data)
        elif kind == FREED:
            self.given(int.from_bytes(data, "big"))
        else:
            self.end("the other end is gone")

    def _tag(self, kind: int) -> int:
        return tag_of(self.number, kind, opener=self.opener)


class Mpi(Transport):
    """All connections of this rank; where others find it is its rank, which counts from 1 here."""

    def __init__(self) -> None:
        self.post: Any = None
        self._streams: dict[tuple[int, int, bool], MpiStream] = {}
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._knocks: queue.SimpleQueue[MpiStream] = queue.SimpleQueue()

    def begin(self, post: Post) -> None:
        """By this post."""
        self.post, self.port = post, post.me + 1

    def connect(self, address: str, port: int, here: str = "") -> Stream:
        """See Transport."""
        if not 0 < port <= self.post.size:
            raise Broken("there is no such rank")
        number = 1 + next(self._numbers) % (MAX_CONNECTIONS - 1)
        stream = MpiStream(self, port - 1, number, opener=True)
        with self._lock:
            self._streams[port - 1, number, True] = stream
        self.post.send(port - 1, tag_of(number, OPEN, opener=True), b"")
        return stream

    def accept(self) -> Any:
        """See Transport."""
        return self._knocks.get()

    def answer(self, knock: Any) -> Stream:
        """See Transport."""
        stream: MpiStream = knock
        return stream

    def heard(self, source: int, tag: int, data: memoryview) -> None:
        """A message of a connection; what belongs to none that is open came too late."""
        number, kind, by_opener = tag >> 3, tag & 3, bool(tag & OPENER)
        with self._lock:
            if kind == OPEN:
                stream = MpiStream(self, source, number, opener=False)
                self._streams[source, number, False] = stream
                self._knocks.put(stream)
                return
            found = self._streams.get((source, number, not by_opener))
        if found is not None:
            try:
                found.heard(kind, data)
            except Broken as why:
                found.end(str(why))

    def forget(self, stream: MpiStream) -> bool:
        """It is closed; whether it was not before."""
        with self._lock:
            return self._streams.pop((stream.peer, stream.number, stream.opener), None) is not None

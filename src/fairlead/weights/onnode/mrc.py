"""Connections of a spread over all planes: the project's own MRC transport, as it is installed for the node's Python.

Each end has a ring of slots in its memory that the other one writes into, a Write with an immediate a piece; the
immediate says how long it is. Slots that were read are given back by Writes without bytes. So nobody is ever more than
a ring ahead, and memory is bounded. Ends meet over TCP, by the transport's own exchange, which proves the run's key.
Python 3.9.
"""

from __future__ import annotations

import contextlib
import importlib
import socket
import threading
from collections import deque

from fairlead.weights.onnode.place import Unusable
from fairlead.weights.onnode.streams import GREET_S, Broken, Stream, Transport, server_at

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SLOT_BYTES, SLOTS = 256 << 10, 16
FREED = 1 << 31
"""An immediate that gives slots back, so many; without it, one that tells the length of a piece."""
NUM_RECVS = 4 * SLOTS
"""More than the pieces and the slots given back that can be under way at once."""
COPIED_BYTES = 4096
"""What is so short goes from a copy, and nobody waits until it has arrived."""
PUMP_S = 0.5


class MrcStream(Stream):
    """One queue pair, and a thread that hears what completes."""

    def __init__(self, context: Any, remote_of: Any) -> None:
        """Not met yet: `private` is what the other end must know of it."""
        self.context = context
        self.ring = memoryview(bytearray(SLOT_BYTES * SLOTS))
        self.region = context.register(self.ring)
        self.queue = context.completion_queue(2 * NUM_RECVS + 4 * SLOTS)
        self.private = remote_of(self.region)
        self.qp: Any = None
        self.moved = threading.Condition()
        self.came: deque[tuple[int, int]] = deque()
        """Where a piece begins in the ring, and ends."""
        self.under_way: dict[int, Any] = {}
        self.room, self.freed, self.num_out, self.num_in, self.num_posted = SLOTS, 0, 0, 0, 0
        self.why = ""

    def begin(self, qp: Any) -> MrcStream:
        """It is met."""
        self.qp = qp
        self.remote = qp.remote
        for _ in range(NUM_RECVS):
            qp.post_recv(wr_id=0)
        threading.Thread(target=self.pump, daemon=True).start()
        return self

    def send(self, data: Any) -> None:
        """See Stream."""
        view = memoryview(data).cast("B")
        if len(view) <= COPIED_BYTES:
            view = memoryview(bytes(view))
        posted = []
        is_copied = len(view) <= COPIED_BYTES
        while view:
            with self.moved:
                self.wait_for(lambda: self.room > 0)
                self.room -= 1
                slot, self.num_out = self.num_out % SLOTS, self.num_out + 1
            posted.append(self.post(view[:SLOT_BYTES], len(view[:SLOT_BYTES]), slot * SLOT_BYTES))
            view = view[SLOT_BYTES:]
        if not is_copied:
            for number in posted:
                with self.moved:
                    self.wait_for(lambda number=number: number not in self.under_way)

    def read(self, into: memoryview) -> None:
        """See Stream."""
        while into:
            with self.moved:
                self.wait_for(lambda: bool(self.came))
                at, end = self.came.popleft()
            num = min(len(into), end - at)
            into[:num] = self.ring[at : at + num]
            into = into[num:]
            with self.moved:
                if at + num < end:
                    self.came.appendleft((at + num, end))
                    continue
                self.freed += 1
                given, self.freed = (self.freed, 0) if self.freed >= SLOTS // 4 else (0, self.freed)
            if given:
                self.post(b"", FREED | given, 0)

    def has_news(self, wait_s: float) -> bool:
        """See Stream."""
        with self.moved:
            return bool(self.moved.wait_for(lambda: self.came or self.why, wait_s))

    def close(self) -> None:
        """See Stream."""
        self.end("it is closed")
        with contextlib.suppress(Exception):
            self.qp.close()

    def wait_for(self, is_so: Any) -> None:
        """Until it is so, with the lock. Raises Broken or OSError."""
        so = self.moved.wait_for(lambda: self.why or is_so(), self.limit_s)
        if self.why:
            raise Broken(self.why)
        if not so:
            raise OSError(f"nothing came for {self.limit_s:g} s")

    def post(self, data: Any, imm: int, offset: int) -> int:
        """One Write; its number stands in `under_way` until it has arrived. Raises Broken."""
        with self.moved:
            self.num_posted = number = self.num_posted + 1
            self.under_way[number] = data
        try:
            self.qp.post_write(data, self.remote, wr_id=number, offset=offset, imm=imm)
        except Exception as why:
            self.end(str(why))
            raise Broken(self.why) from why
        return number

    def end(self, why: str) -> None:
        """It cannot go on."""
        with self.moved:
            self.why = self.why or why
            self.moved.notify_all()

    def pump(self) -> None:
        """What completes, until the end."""
        try:
            while not self.why:
                for done in self.queue.wait(PUMP_S, NUM_RECVS):
                    self.heard(done)
                if self.qp.error is not None:
                    self.end(str(self.qp.error))
        except Exception as why:
            self.end(str(why))
        with contextlib.suppress(Exception):
            self.qp.close()
            self.context.deregister(self.region)
            self.queue.close()

    def heard(self, done: Any) -> None:
        """One completion. Raises Broken for one that says the end, or what no honest end says."""
        if done.status.name != "SUCCESS":
            raise Broken(str(self.qp.error or done.status.value))
        with self.moved:
            if done.opcode.name == "RDMA_WRITE":
                self.under_way.pop(done.wr_id, None)
            elif done.imm & FREED:
                self.room += done.imm & ~FREED
            elif not 0 < done.imm <= SLOT_BYTES or len(self.came) >= SLOTS:
                raise Broken("a piece that does not fit into its slot")
            else:
                at = self.num_in % SLOTS * SLOT_BYTES
                self.num_in += 1
                self.came.append((at, at + done.imm))
            if self.room > SLOTS:
                raise Broken("more slots were given back than were taken")
            self.moved.notify_all()
        if done.opcode.name != "RDMA_WRITE":
            self.qp.post_recv(wr_id=0)


class Mrc(Transport):
    """A context over all ports of this node."""

    def __init__(self, address: str, context: Any, remote_of: Any, key: bytes) -> None:
        self.context, self.remote_of, self.key = context, remote_of, key
        self.server = server_at(address)
        self.port = self.server.getsockname()[1]

    def connect(self, address: str, port: int) -> Stream:
        """See Transport."""
        stream = MrcStream(self.context, self.remote_of)
        queue = stream.queue
        return self.met(
            stream,
            lambda: self.context.connect(
                address, port, self.key, queue, queue, private=stream.private, limit_s=GREET_S
            ),
        )

    def accept(self) -> Any:
        """See Transport."""
        return self.server.accept()[0]

    def answer(self, knock: socket.socket) -> Stream:
        """See Transport."""
        stream = MrcStream(self.context, self.remote_of)
        queue = stream.queue
        try:
            return self.met(stream, lambda: self.context.answer(knock, self.key, queue, queue, stream.private, GREET_S))
        except BaseException:
            knock.close()
            raise

    def met(self, stream: MrcStream, meet: Any) -> Stream:
        """Both ends agree on planes and queue pairs, or do not. Raises Broken."""
        try:
            return stream.begin(meet())
        except Exception as why:
            self.context.deregister(stream.region)
            stream.queue.close()
            raise Broken(getattr(why, "message", "") or str(why)) from why


def mrc_of(address: str, place: Any, key: bytes) -> Mrc:
    """The transport of this node; `place` says where it sits in the fabric, as JSON. Raises Unusable."""
    try:
        ours = importlib.import_module("fairlead.fabric.transport.context")
        place_of = importlib.import_module("fairlead.records.addressbook").Place
        context = ours.Context(importlib.import_module("msgspec").convert(place, place_of))
        return Mrc(address, context, ours.remote_of, key)
    except ImportError as why:
        text = f"this node's Python has no MRC transport: {why}"
        hint = "pip install 'fairlead[fabric]' there, or name another Python: `python` of the pool"
        raise Unusable("weights/no-transport", text, hint)  # noqa: B904
    except Exception as why:
        raise Unusable("weights/no-transport", f"MRC cannot begin here: {why}", "--transport tcp")  # noqa: B904

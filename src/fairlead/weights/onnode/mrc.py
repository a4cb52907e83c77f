"""Connections of a spread over all planes: the project's own MRC transport, as it is installed for the node's Python.

Each end has a ring of slots in its memory that the other one writes into, a Write with an immediate a piece; the
immediate says how long it is. Slots that were read are given back by Writes without bytes. Ends meet over TCP, by the
transport's own exchange, which proves the run's key. Python 3.9.
"""

from __future__ import annotations

import contextlib
import importlib
import socket
import threading

from fairlead.weights.onnode.pieces import SLOT_BYTES, SLOTS, PieceStream
from fairlead.weights.onnode.place import Unusable
from fairlead.weights.onnode.streams import GREET_S, Broken, Stream, Transport, server_at

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FREED = 1 << 31
"""An immediate that gives slots back, so many; without it, one that tells the length of a piece."""
NUM_RECVS = 4 * SLOTS
"""More than the pieces and the slots given back that can be under way at once."""
PUMP_S = 0.5


class MrcStream(PieceStream):
    """One queue pair, and a thread that hears what completes."""

    def __init__(self, context: Any, remote_of: Any) -> None:
        """Not met yet: `private` is what the other end must know of it."""
        super().__init__()
        self.context = context
        self.ring = memoryview(bytearray(SLOT_BYTES * SLOTS))
        self.region = context.register(self.ring)
        self.queue = context.completion_queue(2 * NUM_RECVS + 4 * SLOTS)
        self.private = remote_of(self.region)
        self.qp: Any = None

    def begin(self, qp: Any) -> MrcStream:
        """It is met."""
        self.qp, self.remote = qp, qp.remote
        for _ in range(NUM_RECVS):
            qp.post_recv(wr_id=0)
        threading.Thread(target=self.pump, daemon=True).start()
        return self

    def put(self, number: int, piece: Any, slot: int) -> None:
        """See PieceStream. Raises Broken."""
        self.post(number, piece, len(piece), slot * SLOT_BYTES)

    def give_room(self, num: int) -> None:
        """See PieceStream. Raises Broken."""
        self.post(self.begun(b""), b"", FREED | num, 0)

    def post(self, number: int, data: Any, imm: int, offset: int) -> None:
        """One Write. Raises Broken."""
        try:
            self.qp.post_write(data, self.remote, wr_id=number, offset=offset, imm=imm)
        except Exception as why:
            self.end(str(why))
            raise Broken(self.why) from why

    def close(self) -> None:
        """See Stream."""
        super().close()
        with contextlib.suppress(Exception):
            self.qp.close()

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
        if done.opcode.name == "RDMA_WRITE":
            self.arrived(done.wr_id)
            return
        if done.imm & FREED:
            self.given(done.imm & ~FREED)
        else:
            at = self.num_in % SLOTS * SLOT_BYTES
            if done.imm > SLOT_BYTES:
                raise Broken("a piece that does not fit into its slot")
            self.got(self.ring[at : at + done.imm])
        self.qp.post_recv(wr_id=0)


class Mrc(Transport):
    """A context over all ports of this node."""

    def __init__(self, address: str, context: Any, remote_of: Any, key: bytes) -> None:
        self.context, self.remote_of, self.key = context, remote_of, key
        self.server = server_at(address)
        self.port = self.server.getsockname()[1]

    def connect(self, address: str, port: int, here: str = "") -> Stream:
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
            return self.met(stream, lambda: self.context.greet(knock, self.key, queue, queue, stream.private, GREET_S))
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

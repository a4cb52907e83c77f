"""Messages between two ranks, over one queue pair: a mailbox of slots each way, filled by Writes with an immediate.

A message is a header (key, length) and chunks; small ones go with their header. Each chunk is written into the next
slot of the receiver's mailbox; the receiver combines or copies it straight from there, and gives the slot back. A
sender is never more than SLOTS chunks ahead, and memory is bounded: 2 MiB a peer. Collectives and sends between two
ranks have slots of their own, so neither waits for the other. The immediate says what came: two bits of kind, 30 of
length.

Everything here runs in one asyncio loop, but `Peer.begin`.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import struct
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import torch

from fairlead.errors import FabricError
from fairlead.fabric.mrc.completion import Completion, Status, WorkOpcode
from fairlead.fabric.mrc.memory import MemoryRegion
from fairlead.fabric.transport.exchange import Remote, decode
from fairlead.fabric.transport.memory import view_of
from fairlead.fabric.transport.queuepair import QueuePair

CHUNK = 256 << 10
SLOTS = 4
BOX_BYTES = 2 * SLOTS * CHUNK
SMALL = 4096
HELD_BYTES = 256 << 20
"""What is kept of messages nobody has asked for yet, a peer; above it the sender waits."""
NUM_RECVS = 64
"""More than the slots and answers of one peer that can be under way at once."""
ENDED = frozenset({"fabric/wrong-state", "fabric/closed"})
"""What a queue pair answers that takes no more work."""
COLLECTIVE, DIRECT, FREED, CONTROL = range(4)
_RANK_BITS = 24
_HEADER = struct.Struct("<QQ")
_LENGTH_BITS = 30

Consume = Callable[[int, Any], None]
"""Takes an offset into a message, in bytes, and what lies there, as a uint8 tensor that is good for this call."""


class Says(enum.IntEnum):
    """What a rank tells another about the group; all but the first two with the number of a rank."""

    LEAVES = 0
    LIVES = 1
    LOST = 2
    """That rank cannot be reached."""
    GIVES_UP = 3
    """Its time is over, and it waits for that rank: itself, if it does not know for whom."""
    FAILS = 4
    """What came from that rank does not fit its call: another collective, or another size."""


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank tells another as they connect."""

    rank: int
    box: Remote


class _Stream:
    """One kind of messages, both directions."""

    def __init__(self, kind: int) -> None:
        self.kind = kind
        self.sending, self.taking = asyncio.Lock(), asyncio.Lock()
        self.room = asyncio.Semaphore(SLOTS)
        self.not_given_back: deque[asyncio.Future[bool]] = deque()
        """Chunks sent, oldest first: one that is given back has arrived, whatever became of its acknowledgement."""
        self.num_out = self.num_in = 0
        self.came: deque[tuple[int, int]] = deque()
        self.news = asyncio.Event()


class Peer:
    """Another rank of a group."""

    def __init__(self, qp: QueuePair, box: Any, region: MemoryRegion, rank: int | None = None) -> None:
        hello = decode(qp.private.encode(), Hello)
        if rank not in (None, hello.rank):
            raise FabricError(
                "fabric/exchange", f"rank {hello.rank} answered for rank {rank}", hint="start all ranks anew"
            )
        self.rank = hello.rank
        self.qp = qp
        self.region = region
        self.has_left = False
        self.error: FabricError | None = None
        self.num_awaited = 0
        """Takes under way: who is waited for when time is over."""
        self.heard_at = 0.0
        """When it showed last that it lives, by the loop's time."""
        self._box = box
        self._remote = hello.box
        self._streams = (_Stream(COLLECTIVE), _Stream(DIRECT))
        self._sent: dict[int, tuple[asyncio.Future[bool], float]] = {}  # by number: whether it arrived, when it left
        self._num = 0
        self._wanted: defaultdict[int, deque[tuple[int, Consume, asyncio.Future[FabricError | None]]]] = defaultdict(
            deque
        )
        self._kept: defaultdict[int, deque[tuple[Any, asyncio.Future[None]]]] = defaultdict(deque)
        self._held = 0
        self._asked = asyncio.Event()
        with contextlib.suppress(FabricError):  # it has ended already, which `qp.error` tells
            for _ in range(NUM_RECVS):
                qp.post_recv(wr_id=0)

    # --- out ---------------------------------------------------------------------------------------------------------

    async def send(self, kind: int, key: int, tensor: Any) -> None:
        """A message; done when all of it has arrived in the peer's mailbox."""
        stream = self._streams[kind]
        view = view_of(tensor)
        head = _HEADER.pack(key, len(view))
        async with stream.sending:
            if len(view) <= SMALL:
                done = [await self._chunk(stream, head + bytes(view))]
            else:
                done = [await self._chunk(stream, head)]
                for i in range(0, len(view), CHUNK):
                    done.append(await self._chunk(stream, view[i : i + CHUNK]))
        if not all(await asyncio.gather(*done)):
            raise self._lost()

    async def _chunk(self, stream: _Stream, data: Any) -> asyncio.Future[bool]:
        await stream.room.acquire()
        self._check()
        slot = stream.num_out % SLOTS
        stream.num_out += 1
        done = self._post(data, stream.kind << _LENGTH_BITS | len(data), _place(stream.kind, slot))
        stream.not_given_back.append(done)
        return done

    def tell(self, what: Says, rank: int = 0) -> asyncio.Future[bool]:
        """A word about the group."""
        return self._post(b"", CONTROL << _LENGTH_BITS | what << _RANK_BITS | rank, 0)

    def _post(self, data: Any, imm: int, offset: int) -> asyncio.Future[bool]:
        """Write, and say so; the result tells whether it has arrived. Nothing does where the queue pair has ended."""
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        self._num += 1
        try:
            self.qp.post_write_imm(data, self._remote, imm, wr_id=self._num, offset=offset)
        except FabricError as exc:
            if exc.code not in ENDED:
                raise
            done.set_result(False)
        else:
            self._sent[self._num] = done, loop.time()
        return done

    @property
    def owes_answer(self) -> bool:
        """Whether something that it was written waits for an answer."""
        return bool(self._sent)

    def silent_s(self, now: float) -> float:
        """For how long it has shown no life while something it was written waits for an answer; 0: nothing does."""
        if not self._sent:
            return 0.0
        _, since = next(iter(self._sent.values()))
        return now - max(since, self.heard_at)

    # --- in ----------------------------------------------------------------------------------------------------------

    async def take(self, key: int, size: int, consume: Consume) -> None:
        """The next message of a collective, which must be the one that is due."""
        stream = self._streams[COLLECTIVE]
        with self._awaited():
            async with stream.taking:
                await self._take(stream, key, size, consume)

    async def _take(self, stream: _Stream, key: int, size: int, consume: Consume) -> None:
        came, length, rest = await self._head(stream)
        if (came, length) != (key, size):
            raise RankError(
                "fabric/collective-mismatch",
                f"rank {self.rank} is at another collective, or gives {length} bytes where {size} are due",
                hint="let all ranks call the same collectives in the same order, with tensors of one size and type",
                rank=self.rank,
            )
        await self._body(stream, length, rest, consume)

    async def receive(self, tag: int, size: int, consume: Consume) -> None:
        """The oldest message with this tag. One of another size is dropped, and the next goes to the next call."""
        with self._awaited():
            if self._kept[tag]:
                kept, done = self._kept[tag].popleft()
                await done
                self._held -= len(kept)
                self._asked.set()
                error = self._unfit(len(kept), size)
                if error is None:
                    consume(0, kept)
            else:
                wanted: asyncio.Future[FabricError | None] = asyncio.get_running_loop().create_future()
                self._wanted[tag].append((size, consume, wanted))
                self._asked.set()
                error = await wanted
        if error:
            raise error

    @contextlib.contextmanager
    def _awaited(self) -> Iterator[None]:
        self.num_awaited += 1
        yield  # where it fails, this rank is still the one that was waited for
        self.num_awaited -= 1

    def _unfit(self, came: int, size: int) -> FabricError | None:
        if came == size:
            return None
        return FabricError(
            "fabric/size-mismatch",
            f"rank {self.rank} sent {came} bytes where {size} were to be received",
            hint="let both ends give tensors of one size and type",
        )

    async def sort(self) -> None:
        """For ever: messages of `send` to who wants them, or aside."""
        stream = self._streams[DIRECT]
        while True:
            tag, length, rest = await self._head(stream)
            while not self._wanted[tag] and self._held and self._held + length > HELD_BYTES:
                self._asked.clear()
                await self._asked.wait()
            if self._wanted[tag]:
                size, consume, wanted = self._wanted[tag].popleft()
                error = self._unfit(length, size)
                await self._body(stream, length, rest, _dropped if error else consume)
                if not wanted.done():
                    wanted.set_result(error)
            else:
                kept = torch.empty(length, dtype=torch.uint8)
                done = asyncio.get_running_loop().create_future()
                self._kept[tag].append((kept, done))
                self._held += length
                await self._body(stream, length, rest, copier(kept))
                if not done.done():
                    done.set_result(None)

    async def _head(self, stream: _Stream) -> tuple[int, int, Any]:
        """Key and length of the next message, and what came with them."""
        slot, size = await self._next(stream)
        data = self._slot(stream, slot, size)
        key, length = _HEADER.unpack(bytes(data[: _HEADER.size].tolist()))
        rest = data[_HEADER.size :].clone()
        self._free(stream)
        return key, length, rest

    async def _body(self, stream: _Stream, length: int, rest: Any, consume: Consume) -> None:
        if length <= SMALL:
            if length:
                consume(0, rest)
            return
        for at in range(0, length, CHUNK):
            slot, size = await self._next(stream)
            consume(at, self._slot(stream, slot, size))
            self._free(stream)

    async def _next(self, stream: _Stream) -> tuple[int, int]:
        while not stream.came:
            self._check()
            stream.news.clear()
            await stream.news.wait()
        return stream.came.popleft()

    def _slot(self, stream: _Stream, slot: int, size: int) -> Any:
        place = _place(stream.kind, slot)
        return self._box[place : place + size]

    def _free(self, stream: _Stream) -> None:
        if not (self.has_left or self.error):  # who has gone needs no slots
            self._post(b"", FREED << _LENGTH_BITS | stream.kind, 0)

    # --- what completes ----------------------------------------------------------------------------------------------

    def on(self, done: Completion) -> tuple[Says, int] | None:
        """A completion of this queue pair. Answers with what the peer says of the group, and the rank it names."""
        if done.status is Status.SUCCESS:
            self.heard_at = asyncio.get_running_loop().time()
        if done.opcode is WorkOpcode.RDMA_WRITE:
            future, _ = self._sent.pop(done.wr_id)
            _settle(future, arrived=done.status is Status.SUCCESS)
            return None
        if done.status is not Status.SUCCESS:
            return None
        with contextlib.suppress(FabricError):  # it has failed since: what came before counts all the same
            self.qp.post_recv(wr_id=0)
        assert done.imm is not None
        kind, length = done.imm >> _LENGTH_BITS, done.imm & ((1 << _LENGTH_BITS) - 1)
        if kind == CONTROL:
            what, rank = length >> _RANK_BITS, length & ((1 << _RANK_BITS) - 1)
            self.has_left |= what == Says.LEAVES
            self.wake()
            return (Says(what), rank) if what in (Says.LOST, Says.GIVES_UP, Says.FAILS) else None
        if kind == FREED:
            stream = self._streams[length & 1]
            if stream.not_given_back:
                _settle(stream.not_given_back.popleft(), arrived=True)
                stream.room.release()
        else:
            stream = self._streams[kind]
            stream.came.append((stream.num_in % SLOTS, min(length, CHUNK)))
            stream.num_in += 1
            stream.news.set()
        return None

    def wake(self) -> None:
        """Let who waits look at what has become of the peer."""
        for stream in self._streams:
            stream.news.set()
            if self.has_left:
                stream.room.release()

    def _check(self) -> None:
        if self.has_left or self.error:
            raise self._lost()

    def _lost(self) -> RankError:
        return lost(self.rank, self.why_lost or "its queue pair has ended")

    @property
    def why_lost(self) -> str:
        """Why nothing comes from it any more, in words; empty: it is there."""
        if self.has_left:
            return "it has left the group"
        error = self.error or self.qp.error
        return error.message if error else ""


class RankError(FabricError):
    """Something that one rank is the cause of."""

    def __init__(self, code: str, message: str, *, hint: str, rank: int) -> None:
        super().__init__(code, message, hint=hint)
        self.rank = rank


def lost(rank: int, why: str) -> RankError:
    """The error that names a rank without which the group cannot go on."""
    return RankError(
        "fabric/rank-lost",
        f"rank {rank} is lost: {why}",
        hint=f"look at what rank {rank} said last, then start all ranks anew",
        rank=rank,
    )


def _settle(future: asyncio.Future[bool], *, arrived: bool) -> None:
    if not future.done():
        future.set_result(arrived)


def _dropped(_: int, __: Any) -> None:
    return


def copier(into: Any) -> Consume:
    """Copies what comes into a flat uint8 tensor."""

    def copy(at: int, data: Any) -> None:
        into[at : at + len(data)].copy_(data)

    return copy


def _place(kind: int, slot: int) -> int:
    return (kind * SLOTS + slot) * CHUNK

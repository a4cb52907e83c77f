"""The state of a block on disk: read only in small pieces, written where nothing is, and gradients beside it.

An update reads the block's slot, writes the spare one, and last its first page; then the old slot is the spare. So a
kill leaves the block as it was before or as it is after, and `store.py` knows which updates are still to be done.

Who waits for the weights goes on when they are updated; the last pieces are written, and the first page, meanwhile, and
the next block of the slots is read. It writes nothing before that, and the block's next gradients go nowhere before it.

What lies in memory anyway is not read: gradients of those blocks that a step goes back through last, which are on disk,
too, and the weights of those that still lie in their slots of the ring.

Must not know: layers, schedules, devices' lanes beyond a copy, what is committed when.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import torch

from fairlead.train.belt import Belt, Job
from fairlead.train.blobs import PAGE, BlobFile, damaged, digest, memory_of, pages
from fairlead.train.homes import NOTHING, Lying
from fairlead.train.lanes import Lanes, Mark
from fairlead.train.layout import Block
from fairlead.train.memory import arena, release
from fairlead.train.optimizer import Moment, update
from fairlead.train.slots import Header, Slots

PIECE = 1 << 20
"""Elements of each array that are in memory at once: 4 MiB of fp32."""
AHEAD = 4
"""Pieces under way: two are read, one is updated, one is written."""
_HOST = torch.device("cpu")


class Hands:
    """What all stores of a process share: threads, and the memory that pieces pass through."""

    def __init__(self, lanes: Lanes) -> None:
        self.lanes = lanes
        self.digest = digest
        """Of all state; a store of an earlier version goes on with its own."""
        self.pool = ThreadPoolExecutor(4, "disk")
        self.belt = Belt(self.pool, AHEAD, PIECE)
        self.belt_free = threading.RLock()
        """Of those who update."""
        self.sealer = ThreadPoolExecutor(1, "sealer")
        self.passing = arena(PIECE, torch.float32, _HOST)
        self.passing_free = threading.RLock()
        """Of those who read, also while another block is updated."""
        self._parcels: list[tuple[torch.Tensor | None, Written | None]] = [(None, None), (None, None)]

    def parcel(self, gradients: torch.Tensor) -> torch.Tensor:
        """Host memory with gradients of a device, copied in the current lane; two are under way at a time."""
        self._parcels.reverse()
        there, written = self._parcels[0]
        if written is not None:
            written.synchronize()
        if there is None or there.nbytes < gradients.nbytes:
            if there is not None:
                release(there)
            there = arena(gradients.nbytes, torch.uint8, _HOST, pinned=True)
        self._parcels[0] = there, None
        flat = there[: gradients.nbytes].view(gradients.dtype)
        flat.copy_(gradients, non_blocking=True)
        return flat

    def sent(self, written: Written) -> None:
        """The parcel made last is on its way to the disk."""
        self._parcels[0] = self._parcels[0][0], written

    def close(self) -> None:
        """End the threads, give memory back."""
        self.sealer.shutdown(wait=True)
        self.pool.shutdown(wait=True, cancel_futures=True)
        for there, _ in self._parcels:
            if there is not None:
                release(there)


class Written:
    """A mark for gradients on their way to the disk."""

    def __init__(self, under_way: Sequence[Future[int]]) -> None:
        self.under_way = under_way

    def synchronize(self) -> None:
        """Wait until they are there."""
        for future in self.under_way:
            future.result()

    def digest(self) -> int:
        """Of all of them."""
        return sum(future.result() for future in self.under_way) % (1 << 64)


class OnDisk:
    """The state of one block on disk."""

    def __init__(
        self,
        block: Block,
        hands: Hands,
        slots: Slots,
        slot: int,
        gradients: tuple[BlobFile, int, torch.dtype],
        frozen: tuple[BlobFile, int],
    ) -> None:
        self.block = block
        self.hands = hands
        self.slots, self.slot = slots, slot
        self.dtype = slots.dtypes[0]
        """Of parameters."""
        self.gradients, self.gradients_at, self.gradient_dtype = gradients
        self.frozen, self.frozen_at = frozen
        self.fixed = 0
        """The digest of frozen parameters."""
        self.version = 0
        self.pending: Moment | None = None
        self.lying = NOTHING
        """What the pending update need not read."""
        self.kept: Written | None = None
        self.sealed: Future[None] | None = None
        """The end of an update whose weights are given on already."""

    # what is asked of every home

    def put(self, p: torch.Tensor) -> None:
        """First weights; moments are zero."""
        pieces = arena(PIECE, torch.float32, _HOST)
        digests, self.fixed = [0, 0, 0], 0
        for kind, dtype in enumerate(self.slots.dtypes):
            flat = pieces.view(dtype)
            for begin, size in _pieces(self.block.trained):
                piece = flat[:size]
                piece.copy_(p[begin : begin + size]) if kind == 0 else piece.zero_()
                digests[kind] = (digests[kind] + self.hands.digest(piece, dtype.itemsize * begin)) % (1 << 64)
                self._whole(self.slots.file, flat, size, self.slots.at(self.slot, kind, begin), write=True)
        flat = pieces.view(self.dtype)
        for begin, size in _pieces(self.block.numel - self.block.trained):
            at = self.block.trained + begin
            flat[:size].copy_(p[at : at + size])
            self._whole(self.frozen, flat, size, self.frozen_at + self.dtype.itemsize * begin, write=True)
            self.fixed = (self.fixed + self.hands.digest(flat[:size], self.dtype.itemsize * begin)) % (1 << 64)
        self.slots.seal(self.slot, Header(self.block.index, 0, (digests[0], digests[1], digests[2])))

    def update(self, moment: Moment, lying: Lying = NOTHING) -> None:
        """Done with the next `load`, which reads the parameters anyway, or with `settle`."""
        self.pending, self.lying = moment, lying
        self.hands.belt.ask(self)

    def load(self, weights: torch.Tensor) -> None:
        """The parameters, after the update that is due."""
        with self.hands.belt_free if self.pending is not None else contextlib.nullcontext():
            if self.pending is not None:
                self._advance(weights)
            else:
                self._end()
                self._read(weights)
        with self.hands.passing_free:
            for begin, size in _pieces(self.block.numel - self.block.trained):
                piece = self.hands.passing.view(self.dtype)
                offset = self.frozen_at + self.dtype.itemsize * begin
                self._whole(self.frozen, piece, size, offset, write=False)
                at = self.block.trained + begin
                weights[at : at + size].copy_(piece[:size])

    def read(self, span: slice) -> torch.Tensor:
        """A copy."""
        self._end()
        found = torch.empty(span.stop - span.start, dtype=self.dtype)
        trained, width = span.start < self.block.trained, self.dtype.itemsize
        first = span.start if trained else span.start - self.block.trained
        begin = first - first % (PAGE // width)
        with self.hands.passing_free:
            piece = self.hands.passing.view(self.dtype)
            for at, size in _pieces(first + len(found) - begin):
                file, offset = (
                    (self.slots.file, self.slots.at(self.slot, 0, begin + at))
                    if trained
                    else (self.frozen, self.frozen_at + width * (begin + at))
                )
                self._whole(file, piece, size, offset, write=False)
                low = max(first - begin - at, 0)
                into = begin + at + low - first
                found[into : into + size - low].copy_(piece[low:size])
        return found

    def settle(self) -> None:
        """Do the update that is due."""
        with self.hands.belt_free:
            if self.pending is not None:
                self._advance(None)
        self._end()

    def _end(self) -> None:
        """Return when the block is in its new slot. Raises what went wrong with it."""
        if self.sealed is not None:
            self.sealed.result()
            self.sealed = None

    def keep(self, gradients: torch.Tensor) -> Mark:
        """Write gradients while others are computed; the mark is reached when the buffer may be used again."""
        self._end()
        source = gradients
        if gradients.device.type != "cpu":
            source = self.hands.parcel(gradients)
        sent = self.hands.lanes.mark()
        width = gradients.element_size()

        def write(begin: int, size: int) -> int:
            sent.synchronize()
            piece = source[begin : begin + size]
            raw = memory_of(piece)
            padded = pages(len(raw))
            if padded != len(raw):
                whole = arena(padded, torch.uint8, _HOST)
                whole[: len(raw)].copy_(piece.view(torch.uint8))
                raw = memory_of(whole)
            self.gradients.write(raw, self.gradients_at + width * begin)
            return self.hands.digest(piece, width * begin)

        stretch = PIECE * 4 // width
        under_way = [self.hands.pool.submit(write, begin, size) for begin, size in _pieces(self.block.trained, stretch)]
        self.kept = Written(under_way)
        self.hands.sent(self.kept)
        return self.kept

    def state(self) -> dict[str, torch.Tensor]:
        """Copies of the flat arenas."""
        self.settle()
        p = arena(self.block.numel, self.dtype, _HOST)
        self.load(p)
        found = {"p": p}
        for kind, name in ((1, "m"), (2, "v")):
            found[name] = arena(self.block.trained, torch.float32, _HOST)
            with self.hands.passing_free:
                for begin, size in _pieces(self.block.trained):
                    piece = self.hands.passing
                    self._whole(self.slots.file, piece, size, self.slots.at(self.slot, kind, begin), write=False)
                    found[name][begin : begin + size].copy_(piece[:size])
        return found

    def close(self) -> None:
        """The store closes its files."""

    # inside

    def verify(self, digests: Sequence[int]) -> None:
        """Read everything once and compare."""
        for kind, (name, dtype) in enumerate(zip("pmv", self.slots.dtypes, strict=True)):
            piece, found = self.hands.passing.view(dtype), 0
            for begin, size in _pieces(self.block.trained):
                self._whole(self.slots.file, piece, size, self.slots.at(self.slot, kind, begin), write=False)
                found = (found + self.hands.digest(piece[:size], dtype.itemsize * begin)) % (1 << 64)
            if found != digests[kind]:
                raise damaged(
                    self.slots.file.path, f"holds another {name} of block {self.block.index} than was written"
                )

    def verify_frozen(self, expected: int | None) -> None:
        """The same for frozen parameters; None: an earlier version did not write down what they are."""
        found, piece, width = 0, self.hands.passing.view(self.dtype), self.dtype.itemsize
        for begin, size in _pieces(self.block.numel - self.block.trained):
            self._whole(self.frozen, piece, size, self.frozen_at + width * begin, write=False)
            found = (found + self.hands.digest(piece[:size], width * begin)) % (1 << 64)
        if expected is not None and found != expected:
            raise damaged(
                self.frozen.path, f"holds other frozen parameters of block {self.block.index} than were written"
            )
        self.fixed = found

    def verify_gradients(self, expected: int) -> None:
        """The same for gradients that are still to be applied."""
        width = self.gradient_dtype.itemsize
        found = 0
        flat = arena(PIECE * 4 // width, self.gradient_dtype, _HOST)
        for begin, size in _pieces(self.block.trained, len(flat)):
            self._whole(self.gradients, flat, size, self.gradients_at + width * begin, write=False)
            found = (found + self.hands.digest(flat[:size], width * begin)) % (1 << 64)
        if found != expected:
            raise damaged(self.gradients.path, f"holds other gradients of block {self.block.index} than were written")

    def _whole(self, file: BlobFile, flat: torch.Tensor, size: int, offset: int, *, write: bool) -> None:
        """The first `size` elements of a buffer, in whole pages."""
        raw = memory_of(flat)[: pages(size * flat.element_size())]
        if write:
            file.write(raw, offset)
        else:
            file.read(raw, offset)

    def _read(self, weights: torch.Tensor) -> None:
        """Trained parameters as they are; straight into place where that is host memory in their dtype."""
        straight = weights.device.type == "cpu" and weights.dtype == self.dtype
        size, width = self.block.trained, self.dtype.itemsize
        if straight and size and weights.data_ptr() % PAGE == 0:
            raw = memory_of(weights)
            jobs = [
                self.hands.pool.submit(
                    self.slots.file.read, raw[width * begin : width * (begin + num)], self.slots.at(self.slot, 0, begin)
                )
                for begin, num in _pieces(size)
                if (width * num) % PAGE == 0
            ]
            for job in jobs:
                job.result()
            begin = size - size % PIECE
            if (width * (size - begin)) % PAGE:
                self._through(weights, begin, size - begin)
            return
        for begin, num in _pieces(size):
            self._through(weights, begin, num)

    def _through(self, weights: torch.Tensor, begin: int, size: int) -> None:
        with self.hands.passing_free:
            piece = self.hands.passing.view(self.dtype)
            self._whole(self.slots.file, piece, size, self.slots.at(self.slot, 0, begin), write=False)
            weights[begin : begin + size].copy_(piece[:size])

    def pieces(self) -> Sequence[tuple[int, int]]:
        """Of an update."""
        return list(_pieces(self.block.trained))

    def reads(self, begin: int, size: int, buffers: Sequence[torch.Tensor]) -> Sequence[Job]:
        """Of the pending update, what does not lie in memory."""
        self._end()
        jobs: list[Job] = []
        for kind, dtype in enumerate(self.slots.dtypes):
            if kind or self.lying.weights is None:
                at = self.slots.at(self.slot, kind, begin)
                jobs.append(partial(self._whole, self.slots.file, buffers[kind].view(dtype), size, at, write=False))
        if self.lying.gradients is None:
            flat, at = buffers[3].view(self.gradient_dtype), self.gradients_at + self.gradient_dtype.itemsize * begin
            jobs.append(partial(self._whole, self.gradients, flat, size, at, write=False))
        return jobs

    def _advance(self, weights: torch.Tensor | None) -> None:
        """One update, piece by piece: read ahead, compute, write behind."""
        self._end()
        moment, lying = self.pending, self.lying
        assert moment is not None
        hands, target, written = self.hands, -1, []
        digests = [0, 0, 0]
        for piece in hands.belt.pieces(self):
            begin, size = piece.begin, piece.size
            p, m, v, g = (
                flat.view(dtype)[:size]
                for flat, dtype in zip(piece.buffers, (*self.slots.dtypes, self.gradient_dtype), strict=True)
            )
            span = slice(begin, begin + size)
            if lying.weights is not None:
                p.copy_(lying.weights[span])
            update(self.block, p, m, v, g if lying.gradients is None else lying.gradients[span], moment, begin=begin)
            if weights is not None:
                weights[span].copy_(p)
            if target < 0:
                target = self.slots.free()
            for kind, flat in enumerate((p, m, v)):
                digests[kind] = (digests[kind] + hands.digest(flat, flat.element_size() * begin)) % (1 << 64)
                buffer, place = piece.buffers[kind].view(flat.dtype), self.slots.at(target, kind, begin)
                piece.writes.append(hands.pool.submit(self._whole, self.slots.file, buffer, size, place, write=True))
            written += piece.writes
        target = self.slots.free() if target < 0 else target
        header = Header(self.block.index, self.version + 1, (digests[0], digests[1], digests[2]))

        def seal() -> None:
            for future in written:
                future.result()
            self.slots.seal(target, header)
            self.slots.spare, self.slot = self.slot, target
            self.version += 1

        self.pending, self.lying = None, NOTHING
        self.sealed = self.slots.under_way = hands.sealer.submit(seal)


def _pieces(numel: int, size: int = 0) -> Iterator[tuple[int, int]]:
    """(begin, length) of each piece."""
    size = size or PIECE
    for begin in range(0, numel, size):
        yield begin, min(size, numel - begin)

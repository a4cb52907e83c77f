"""The state of blocks on disk: never torn, redone to the bit after a kill, and read only in small pieces.

Each block's p|m|v lies in a slot of a file that has one slot more than blocks. An update reads one slot, writes the
spare one, and last its header, with the version and digests; then the old slot is the spare. Gradients lie in a file of
their own. A step is committed by its manifest, written once all its gradients are on disk:

    commit of step n     manifest: n, rate, clip, counts, digests of gradients
    the updates of n     slot by slot, during the next step's forward; each block is of version n - 1 or n
    backward of n + 1    overwrites gradients, when every block is of version n

So after a kill every block is of version n or n - 1, and what is missing is computed again from the same gradients with
the same numbers. At most the step that was under way is lost.

Must not know: layers, schedules, devices' lanes beyond a copy.
"""

from __future__ import annotations

import json
import os
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch

from fairlead.records.stagestate import StageState
from fairlead.train.blobs import PAGE, BlobFile, damaged, digest, memory_of, other_run, pages
from fairlead.train.lanes import Lanes, Mark
from fairlead.train.layout import Block
from fairlead.train.memory import arena, release
from fairlead.train.optimizer import SGD, AdamW, Moment, Rule, update

PIECE = 1 << 20
"""Elements of each array that are in memory at once: 4 MiB of fp32."""
AHEAD = 4
"""Pieces under way: two are read, one is updated, one is written."""
_HOST = torch.device("cpu")


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What is committed. `steps` is 0 when there are only first weights."""

    steps: int
    run: str
    """What the state belongs to: a digest of model and hyper-parameters."""
    lr: float = 0.0
    clip: float = 1.0
    beta1: float = 0.0
    beta2: float = 0.0
    eps: float = 0.0
    momentum: float = 0.0
    nesterov: bool = False
    draw: int = 0
    """Of the last step, where parameters are bf16: see `Moment`."""
    kind: Literal["adamw", "sgd"] = "adamw"
    """Which of the hyper-parameters above count."""
    counts: dict[str, int] = {}
    """Updates of each parameter, with the last one."""
    seen: list[str] = []
    """Parameters that had a gradient in the last step."""
    gradients: list[int] = []
    """Digests by block."""
    loss: float = 0.0
    grad_norm: float = 0.0
    """Of the last step."""

    def moment(self, block: Block) -> Moment:
        """The last step's update of a block."""
        own = {param.name for param in block.params}
        counts = {name: self.counts[name] for name in self.seen if name in own}
        return Moment(self.lr, self.clip, self.rule, counts, self.draw)

    @property
    def rule(self) -> Rule:
        """The optimizer of the last step."""
        if self.kind == "sgd":
            return SGD(self.momentum, self.nesterov)
        return AdamW(self.lr, self.beta1, self.beta2, self.eps)


@dataclass(frozen=True, slots=True)
class _Header:
    """The first page of a slot."""

    block: int
    version: int
    digests: tuple[int, int, int]

    def page(self) -> bytes:
        body = json.dumps([self.block, self.version, self.digests]).encode()
        return (zlib.crc32(body).to_bytes(4, "little") + body).ljust(PAGE, b"\0")

    @classmethod
    def read(cls, page: bytes) -> _Header | None:
        body = page[4:].rstrip(b"\0")
        if not body or zlib.crc32(body).to_bytes(4, "little") != page[:4]:
            return None
        block, version, digests = json.loads(body)
        return cls(block, version, tuple(digests))


class _Slots:
    """A file of slots of one size, one more than blocks."""

    def __init__(self, path: Path, blocks: Sequence[Block], dtype: torch.dtype, *, create: bool) -> None:
        widest = max((block.trained for block in blocks), default=0)
        self.dtypes = (dtype, torch.float32, torch.float32)
        """Of p, m and v."""
        strides = [pages(kind.itemsize * widest) for kind in self.dtypes]
        self.starts = [PAGE + sum(strides[:kind]) for kind in range(3)]
        self.size = PAGE + sum(strides)
        self.num = len(blocks) + 1
        self.file = BlobFile(path, self.size * self.num, create=create)
        self.spare = len(blocks)

    def at(self, slot: int, kind: int, begin: int) -> int:
        """The offset of an element of p, m or v (0, 1, 2)."""
        return slot * self.size + self.starts[kind] + self.dtypes[kind].itemsize * begin

    def headers(self) -> Iterator[tuple[int, _Header]]:
        page = arena(PAGE, torch.uint8, _HOST)
        for slot in range(self.num):
            self.file.read(memory_of(page), slot * self.size)
            header = _Header.read(bytes(memory_of(page)))
            if header is not None:
                yield slot, header

    def seal(self, slot: int, header: _Header) -> None:
        """The header goes after what it speaks of."""
        self.file.sync()
        page = arena(PAGE, torch.uint8, _HOST)
        memory_of(page)[:] = header.page()
        self.file.write(memory_of(page), slot * self.size)
        self.file.sync()


class _Written:
    """A mark for gradients on their way to the disk."""

    def __init__(self, under_way: Sequence[Future[int]]) -> None:
        self.under_way = under_way

    def synchronize(self) -> None:
        for future in self.under_way:
            future.result()

    def digest(self) -> int:
        return sum(future.result() for future in self.under_way) % (1 << 64)


class DiskStore:
    """The folder of one training run."""

    def __init__(
        self,
        folder: Path,
        blocks: Sequence[Block],
        lanes: Lanes,
        gradient_dtype: torch.dtype,
        run: str,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.folder = folder
        self.lanes = lanes
        self.run = run
        self.dtype = dtype
        """Of parameters."""
        self.state = StageState(folder / "manifest.json", Manifest, schema="fairlead.train-store/1")
        self._turn = self.state.turn()
        self._turn.__enter__()
        try:
            self._open(blocks, gradient_dtype)
        except BaseException:
            self._turn.__exit__(None, None, None)
            raise

    def _open(self, blocks: Sequence[Block], gradient_dtype: torch.dtype) -> None:
        self.manifest = self.state.read()
        create = self.manifest is None
        if self.manifest is not None and self.manifest.run != self.run:
            raise other_run(self.folder)
        if create:
            for name in ("outer", "layers", "frozen", "gradients"):  # of a run that was killed before its first commit
                (self.folder / f"{name}.bin").unlink(missing_ok=True)
        self.pool = ThreadPoolExecutor(4, "disk")
        self.buffers_free = threading.RLock()
        self._parcels: list[tuple[torch.Tensor | None, _Written | None]] = [(None, None), (None, None)]
        self.outer = _Slots(self.folder / "outer.bin", blocks[:1], self.dtype, create=create)
        self.layers = _Slots(self.folder / "layers.bin", blocks[1:], self.dtype, create=create)
        width = gradient_dtype.itemsize
        starts, frozen_at = [0], [0]
        for block in blocks:
            starts.append(starts[-1] + pages(4 * block.trained if not block.index else width * block.trained))
            frozen_at.append(frozen_at[-1] + pages(self.dtype.itemsize * (block.numel - block.trained)))
        self.gradients = BlobFile(self.folder / "gradients.bin", max(PAGE, starts[-1]), create=create)
        self.frozen = BlobFile(self.folder / "frozen.bin", max(PAGE, frozen_at[-1]), create=create)
        self.homes = [
            OnDisk(block, self, self.layers if block.index else self.outer, starts[block.index], frozen_at[block.index])
            for block in blocks
        ]
        for home in self.homes:
            home.gradient_dtype = gradient_dtype if home.block.index else torch.float32
        self.buffers = [[arena(PIECE, torch.float32, _HOST) for _ in range(4)] for _ in range(AHEAD)]
        if not create:
            self._find()

    @property
    def files(self) -> tuple[BlobFile, ...]:
        """All of them."""
        return self.outer.file, self.layers.file, self.gradients, self.frozen

    def _find(self) -> None:
        """Which slot holds which block, and what is still to be done."""
        assert self.manifest is not None
        steps = self.manifest.steps
        newest: dict[int, tuple[int, _Header]] = {}
        for slots in (self.outer, self.layers):
            for slot, header in slots.headers():
                if header.block not in newest or newest[header.block][1].version < header.version:
                    newest[header.block] = (slot, header)
        for home in self.homes:
            slot, header = newest.get(home.block.index, (-1, _Header(home.block.index, -1, (0, 0, 0))))
            if not max(0, steps - 1) <= header.version <= steps:
                raise damaged(home.slots.file.path, f"has no version {steps} of block {home.block.index}")
            home.slot, home.version = slot, header.version
            home.verify(header.digests)
            if header.version < steps:
                home.verify_gradients(self.manifest.gradients[home.block.index])
                home.update(self.manifest.moment(home.block))
        for slots in (self.outer, self.layers):
            taken = {home.slot for home in self.homes if home.slots is slots}
            (slots.spare,) = set(range(slots.num)) - taken

    def begin(self) -> None:
        """Commit first weights."""
        self.frozen.sync()
        self._write(Manifest(steps=0, run=self.run))

    def commit(
        self, steps: int, moment: Moment, counts: Mapping[str, int], seen: Sequence[str], told: tuple[float, float]
    ) -> None:
        """The step is done, once this returns; its updates may begin. `told` is its loss and norm."""
        digests = [home.kept.digest() if home.kept is not None else 0 for home in self.homes]
        self.gradients.sync()
        self._write(
            Manifest(
                steps=steps,
                run=self.run,
                lr=moment.lr,
                clip=moment.clip,
                draw=moment.draw,
                **_words(moment.rule),
                counts=dict(counts),
                seen=sorted(seen),
                gradients=digests,
                loss=told[0],
                grad_norm=told[1],
            )
        )

    def _write(self, manifest: Manifest) -> None:
        self.state.write(manifest)
        handle = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        self.manifest = manifest

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

    def sent(self, written: _Written) -> None:
        """The parcel made last is on its way to the disk."""
        self._parcels[0] = self._parcels[0][0], written

    def close(self) -> None:
        """Let others have it."""
        self.pool.shutdown(wait=True, cancel_futures=True)
        for file in self.files:
            file.close()
        for there, _ in self._parcels:
            if there is not None:
                release(there)
        self._turn.__exit__(None, None, None)


class OnDisk:
    """The state of one block on disk."""

    def __init__(self, block: Block, store: DiskStore, slots: _Slots, gradients_at: int, frozen_at: int) -> None:
        self.block = block
        self.store = store
        self.slots = slots
        self.gradients_at = gradients_at
        self.frozen_at = frozen_at
        self.gradient_dtype = torch.float32
        self.slot = block.index - 1 if block.index else 0
        self.version = 0
        self.pending: Moment | None = None
        self.kept: _Written | None = None

    # what is asked of every home

    def put(self, p: torch.Tensor) -> None:
        """First weights; moments are zero."""
        pieces, store = arena(PIECE, torch.float32, _HOST), self.store
        digests = [0, 0, 0]
        for kind, dtype in enumerate(self.slots.dtypes):
            flat = pieces.view(dtype)
            for begin, size in _pieces(self.block.trained):
                piece = flat[:size]
                piece.copy_(p[begin : begin + size]) if kind == 0 else piece.zero_()
                digests[kind] = (digests[kind] + digest(piece, dtype.itemsize * begin)) % (1 << 64)
                self._whole(self.slots.file, flat, size, self.slots.at(self.slot, kind, begin), write=True)
        flat = pieces.view(store.dtype)
        for begin, size in _pieces(self.block.numel - self.block.trained):
            at = self.block.trained + begin
            flat[:size].copy_(p[at : at + size])
            self._whole(store.frozen, flat, size, self.frozen_at + store.dtype.itemsize * begin, write=True)
        self.slots.seal(self.slot, _Header(self.block.index, 0, (digests[0], digests[1], digests[2])))

    def update(self, moment: Moment) -> None:
        """Done with the next `load`, which reads the parameters anyway, or with `settle`."""
        self.pending = moment

    def load(self, weights: torch.Tensor) -> None:
        """The parameters, after the update that is due."""
        with self.store.buffers_free:
            if self.pending is not None:
                self._advance(weights)
            else:
                self._read(weights)
            for begin, size in _pieces(self.block.numel - self.block.trained):
                piece = self.store.buffers[0][0].view(self.store.dtype)
                offset = self.frozen_at + self.store.dtype.itemsize * begin
                self._whole(self.store.frozen, piece, size, offset, write=False)
                at = self.block.trained + begin
                weights[at : at + size].copy_(piece[:size])

    def settle(self) -> None:
        """Do the update that is due."""
        with self.store.buffers_free:
            if self.pending is not None:
                self._advance(None)

    def keep(self, gradients: torch.Tensor) -> Mark:
        """Write gradients while others are computed; the mark is reached when the buffer may be used again."""
        source = gradients
        if gradients.device.type != "cpu":
            source = self.store.parcel(gradients)
        sent = self.store.lanes.mark()
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
            self.store.gradients.write(raw, self.gradients_at + width * begin)
            return digest(piece, width * begin)

        stretch = PIECE * 4 // width
        under_way = [self.store.pool.submit(write, begin, size) for begin, size in _pieces(self.block.trained, stretch)]
        self.kept = _Written(under_way)
        self.store.sent(self.kept)
        return self.kept

    def state(self) -> dict[str, torch.Tensor]:
        """Copies of the flat arenas."""
        self.settle()
        p = arena(self.block.numel, self.store.dtype, _HOST)
        self.load(p)
        found = {"p": p}
        for kind, name in ((1, "m"), (2, "v")):
            found[name] = arena(self.block.trained, torch.float32, _HOST)
            with self.store.buffers_free:
                for begin, size in _pieces(self.block.trained):
                    piece = self.store.buffers[0][0]
                    self._whole(self.slots.file, piece, size, self.slots.at(self.slot, kind, begin), write=False)
                    found[name][begin : begin + size].copy_(piece[:size])
        return found

    def close(self) -> None:
        """The store closes its files."""

    # inside

    def verify(self, digests: Sequence[int]) -> None:
        """Read everything once and compare."""
        for kind, (name, dtype) in enumerate(zip("pmv", self.slots.dtypes, strict=True)):
            piece, found = self.store.buffers[0][0].view(dtype), 0
            for begin, size in _pieces(self.block.trained):
                self._whole(self.slots.file, piece, size, self.slots.at(self.slot, kind, begin), write=False)
                found = (found + digest(piece[:size], dtype.itemsize * begin)) % (1 << 64)
            if found != digests[kind]:
                raise damaged(
                    self.slots.file.path, f"holds another {name} of block {self.block.index} than was written"
                )

    def verify_gradients(self, expected: int) -> None:
        """The same for gradients that are still to be applied."""
        width = self.gradient_dtype.itemsize
        found = 0
        flat = arena(PIECE * 4 // width, self.gradient_dtype, _HOST)
        for begin, size in _pieces(self.block.trained, len(flat)):
            self._whole(self.store.gradients, flat, size, self.gradients_at + width * begin, write=False)
            found = (found + digest(flat[:size], width * begin)) % (1 << 64)
        if found != expected:
            raise damaged(
                self.store.gradients.path, f"holds other gradients of block {self.block.index} than were written"
            )

    def _whole(self, file: BlobFile, flat: torch.Tensor, size: int, offset: int, *, write: bool) -> None:
        """The first `size` elements of a buffer, in whole pages."""
        raw = memory_of(flat)[: pages(size * flat.element_size())]
        if write:
            file.write(raw, offset)
        else:
            file.read(raw, offset)

    def _read(self, weights: torch.Tensor) -> None:
        """Trained parameters as they are; straight into place where that is host memory in their dtype."""
        straight = weights.device.type == "cpu" and weights.dtype == self.store.dtype
        size, width = self.block.trained, self.store.dtype.itemsize
        if straight and size and weights.data_ptr() % PAGE == 0:
            raw = memory_of(weights)
            jobs = [
                self.store.pool.submit(
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
        piece = self.store.buffers[0][0].view(self.store.dtype)
        self._whole(self.slots.file, piece, size, self.slots.at(self.slot, 0, begin), write=False)
        weights[begin : begin + size].copy_(piece[:size])

    def _advance(self, weights: torch.Tensor | None) -> None:
        """One update, piece by piece: read ahead, compute, write behind."""
        moment, target = self.pending, self.slots.spare
        assert moment is not None
        store, pieces = self.store, list(_pieces(self.block.trained))
        sets = [
            [flat.view(dtype) for flat, dtype in zip(each, (*self.slots.dtypes, self.gradient_dtype), strict=True)]
            for each in store.buffers
        ]
        digests = [0, 0, 0]
        reads: dict[int, list[Future[Any]]] = {}
        writes: dict[int, list[Future[Any]]] = {}

        def read(place: int) -> None:
            begin, size = pieces[place]
            arrays = sets[place % AHEAD]
            for future in writes.pop(place - AHEAD, []):
                future.result()
            width = self.gradient_dtype.itemsize
            calls: list[tuple[BlobFile, torch.Tensor, int]] = [
                (self.slots.file, arrays[kind], self.slots.at(self.slot, kind, begin)) for kind in range(3)
            ]
            calls.append((store.gradients, arrays[3], self.gradients_at + width * begin))
            reads[place] = [
                store.pool.submit(self._whole, file, flat, size, offset, write=False) for file, flat, offset in calls
            ]

        for place in range(min(AHEAD - 2, len(pieces))):
            read(place)
        for place, (begin, size) in enumerate(pieces):
            if place + AHEAD - 2 < len(pieces):
                read(place + AHEAD - 2)
            for future in reads.pop(place):
                future.result()
            p, m, v, g = (flat[:size] for flat in sets[place % AHEAD])
            update(self.block, p, m, v, g, moment, begin=begin)
            if weights is not None:
                weights[begin : begin + size].copy_(p)
            writes[place] = []
            for kind, flat in enumerate((p, m, v)):
                digests[kind] = (digests[kind] + digest(flat, flat.element_size() * begin)) % (1 << 64)
                offset = self.slots.at(target, kind, begin)
                writes[place].append(
                    store.pool.submit(self._whole, self.slots.file, sets[place % AHEAD][kind], size, offset, write=True)
                )
        for futures in writes.values():
            for future in futures:
                future.result()
        self.slots.seal(target, _Header(self.block.index, self.version + 1, (digests[0], digests[1], digests[2])))
        self.slots.spare, self.slot = self.slot, target
        self.version += 1
        self.pending = None


def _words(rule: Rule) -> dict[str, Any]:
    """How a manifest says an optimizer."""
    if isinstance(rule, SGD):
        return {"kind": "sgd", "momentum": rule.momentum, "nesterov": rule.nesterov}
    return {"kind": "adamw", "beta1": rule.beta1, "beta2": rule.beta2, "eps": rule.eps}


def _pieces(numel: int, size: int = 0) -> Iterator[tuple[int, int]]:
    """(begin, length) of each piece."""
    size = size or PIECE
    for begin in range(0, numel, size):
        yield begin, min(size, numel - begin)

"""The state of blocks in a folder: never torn, and redone to the bit after a kill.

Each block lies in a slot of a file that has one slot more than blocks, gradients in a file of their own. A step is
committed by its manifest, written once all its gradients are on disk:

    commit of step n     manifest: n, rate, clip, counts, digests of gradients
    the updates of n     slot by slot, during the next step's forward; each block is of version n - 1 or n
    backward of n + 1    overwrites gradients, when every block is of version n

So after a kill every block is of version n or n - 1, and what is missing is computed again from the same gradients with
the same numbers. At most the step that was under way is lost.

Where a run has several stores, see shards.py, a step counts once all have its manifest; until then no update of it is
begun, and a store can still withdraw it. Must not know: layers, schedules, ranks.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from fairlead.records.stagestate import StageState
from fairlead.train.blobs import PAGE, BlobFile, damaged, other_run, pages
from fairlead.train.disk import Hands, OnDisk
from fairlead.train.lanes import Lanes
from fairlead.train.layout import Block, by_size
from fairlead.train.manifest import Manifest, words
from fairlead.train.optimizer import Moment
from fairlead.train.slots import Header, Slots

FILES = ("outer", "layers", "frozen", "gradients")


def manifest_of(folder: Path) -> StageState[Manifest]:
    """Where a folder says what is committed."""
    return StageState(folder / "manifest.json", Manifest, schema="fairlead.train-store/1")


class DiskStore:
    """One folder with the state of some blocks."""

    def __init__(
        self,
        folder: Path,
        blocks: Sequence[Block],
        lanes: Lanes,
        gradient_dtype: torch.dtype,
        run: str,
        dtype: torch.dtype = torch.float32,
        *,
        agreed: int | None = None,
        nodes: Sequence[str] = (),
        hands: Hands | None = None,
    ) -> None:
        """`agreed`: the newest step that all stores of the run have; None where there is no other."""
        self.folder = folder
        self.run = run
        self.dtype = dtype
        """Of parameters."""
        self.nodes = list(nodes)
        self.hands = hands or Hands(lanes)
        self._lets_go = hands is None
        self.state = manifest_of(folder)
        self._turn = self.state.turn()
        self._turn.__enter__()
        try:
            self._open(blocks, gradient_dtype, agreed)
        except BaseException:
            self._turn.__exit__(None, None, None)
            raise

    def _open(self, blocks: Sequence[Block], gradient_dtype: torch.dtype, agreed: int | None) -> None:
        self.manifest = self.state.read()
        create = self.manifest is None
        if self.manifest is not None:
            self._agree(self.manifest, agreed)
        if create:
            for name in FILES:  # of a run that was killed before its first commit
                (self.folder / f"{name}.bin").unlink(missing_ok=True)
        outer, layers = by_size(blocks)
        self.outer = Slots(self.folder / "outer.bin", outer, self.dtype, create=create)
        self.layers = Slots(self.folder / "layers.bin", layers, self.dtype, create=create)
        starts, frozen_at = [0], [0]
        width = gradient_dtype.itemsize
        for block in blocks:
            starts.append(starts[-1] + pages((width if block.index else 4) * block.trained))
            frozen_at.append(frozen_at[-1] + pages(self.dtype.itemsize * (block.numel - block.trained)))
        self.gradients = BlobFile(self.folder / "gradients.bin", max(PAGE, starts[-1]), create=create)
        self.frozen = BlobFile(self.folder / "frozen.bin", max(PAGE, frozen_at[-1]), create=create)
        self.homes = [
            OnDisk(
                block,
                self.hands,
                self.outer if block in outer else self.layers,
                (outer if block in outer else layers).index(block),
                (self.gradients, starts[place], gradient_dtype if block.index else torch.float32),
                (self.frozen, frozen_at[place]),
            )
            for place, block in enumerate(blocks)
        ]
        if not create:
            self._find()

    @property
    def files(self) -> tuple[BlobFile, ...]:
        """All of them."""
        return self.outer.file, self.layers.file, self.gradients, self.frozen

    def _agree(self, manifest: Manifest, agreed: int | None) -> None:
        """Be at the step that all stores have. Nothing has been updated by one that not all have."""
        if manifest.run != self.run:
            raise other_run(self.folder)
        if agreed is None or manifest.steps == agreed:
            return
        if manifest.steps != agreed + 1:
            raise damaged(self.state.path, f"is of step {manifest.steps}, and other shards of step {agreed}")
        self._write(manifest.withdrawn())

    def _find(self) -> None:
        """Which slot holds which block, and what is still to be done."""
        assert self.manifest is not None
        steps, gradients = self.manifest.steps, self.manifest.gradients
        newest: dict[int, tuple[int, Header]] = {}
        for slots in (self.outer, self.layers):
            for slot, header in slots.headers():
                if header.block not in newest or newest[header.block][1].version < header.version:
                    newest[header.block] = (slot, header)
        oldest = max(0, steps - 1) if gradients else steps
        for place, home in enumerate(self.homes):
            slot, header = newest.get(home.block.index, (-1, Header(home.block.index, -1, (0, 0, 0))))
            if not oldest <= header.version <= steps:
                raise damaged(home.slots.file.path, f"has no version {steps} of block {home.block.index}")
            home.slot, home.version = slot, header.version
            home.verify(header.digests)
            if header.version < steps:
                home.verify_gradients(gradients[place])
                home.update(self.manifest.moment(home.block))
        for slots in (self.outer, self.layers):
            taken = {home.slot for home in self.homes if home.slots is slots}
            (slots.spare,) = set(range(slots.num)) - taken

    def begin(self) -> None:
        """Commit first weights."""
        self.frozen.sync()
        self._write(Manifest(steps=0, run=self.run, nodes=self.nodes))

    def commit(
        self, steps: int, moment: Moment, counts: Mapping[str, int], seen: Sequence[str], told: tuple[float, float]
    ) -> None:
        """The step is done here, once this returns; when all stores have it, its updates may begin.

        `told` is its loss and norm.
        """
        digests = [home.kept.digest() if home.kept is not None else 0 for home in self.homes]
        self.gradients.sync()
        last = self.manifest
        self._write(
            Manifest(
                steps=steps,
                run=self.run,
                lr=moment.lr,
                clip=moment.clip,
                draw=moment.draw,
                **words(moment.rule),
                counts=dict(counts),
                seen=sorted(seen),
                gradients=digests,
                loss=told[0],
                grad_norm=told[1],
                before=(last.loss, last.grad_norm) if last is not None else (0.0, 0.0),
                nodes=self.nodes,
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

    def close(self) -> None:
        """Let others have it."""
        if self._lets_go:
            self.hands.close()
        for file in self.files:
            file.close()
        self._turn.__exit__(None, None, None)

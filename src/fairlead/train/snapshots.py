"""State that lives in memory, written to disk from time to time: two files in turns, and a manifest that says which.

A snapshot is taken between steps, when all updates are done; the other file is not touched, so a run that is killed
while it writes goes on from the snapshot before.

Ranks of a data-parallel run write and read the blocks they own in the same two files, which all must see; rank 0 keeps
the manifest. So what several hosts wrote, any other number of hosts goes on from.

Must not know: layers, where a home is.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import torch

from fairlead.base.files import write_atomic
from fairlead.base.trust import PRIVATE_FILE, NotOurs, read_file
from fairlead.errors import TrainError
from fairlead.train.blobs import PAGE, BlobFile, damaged, digest, digest_of_sums, memory_of, pages
from fairlead.train.committed import Committed
from fairlead.train.homes import Home
from fairlead.train.identity import is_same, other_run
from fairlead.train.layout import Block
from fairlead.train.memory import arena
from fairlead.train.team import Team

PIECE = 1 << 20
"""Elements that one thread has in its hands: 4 MiB."""
_THREADS = 4
BUFFERS = _THREADS * 4 * PIECE
"""Bytes, while a snapshot is written or read."""
_HOST = torch.device("cpu")


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """The manifest."""

    steps: int
    run: str
    file: int
    """0 or 1."""
    counts: dict[str, int]
    digests: list[list[int]]
    """Of p, m and v, by block."""
    by_page: bool = False
    """Whether digests weigh each page by its place, as those of earlier versions do not."""
    loss: float = 0.0
    grad_norm: float = 0.0
    """Of the last step."""


class Snapshots:
    """The folder of one training run."""

    def __init__(
        self,
        folder: Path,
        blocks: Sequence[Block],
        run: str,
        team: Team | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.folder = folder
        self.blocks = blocks
        self.run = run
        self.team = team
        self.is_first = team is None or team.rank == 0
        self.state = Committed(folder, Taken, schema="fairlead.train-snapshot/1")
        self._turn = self.state.turn() if self.is_first else contextlib.nullcontext()
        self._turn.__enter__()
        self.starts = [0]
        for block in blocks:
            sizes = dtype.itemsize * block.numel, 4 * block.trained, 4 * block.trained
            self.starts.append(self.starts[-1] + sum(map(pages, sizes)))
        try:
            if team is not None:
                self._see_the_same(team)
            self.taken = self.state.read()
        except BaseException:
            self.close()
            raise
        if self.taken is not None and not is_same(self.taken.run, run):
            self.close()
            raise other_run(folder, self.taken.run, run)
        if self.taken is None and self.is_first:
            for which in (0, 1):  # of a run that was killed before its first snapshot was whole
                self._path(which).unlink(missing_ok=True)

    def take(
        self, steps: int, homes: Sequence[Home | None], counts: Mapping[str, int], told: tuple[float, float]
    ) -> None:
        """Write the state after a step; on return it is what a later run begins with. None: another rank's block."""
        which = 1 - self.taken.file if self.taken is not None else 0
        if self.team is not None:
            if self.is_first:
                self._file(which).close()
            self.team.meet()
        file = self._file(which)
        try:
            found = self._all(file, homes, write=True)
            file.sync()
        finally:
            file.close()
        if self.team is not None:
            found = _gathered(found, self.team)
        self.taken = Taken(
            steps=steps,
            run=self.run,
            file=which,
            counts=dict(counts),
            digests=found,
            by_page=True,
            loss=told[0],
            grad_norm=told[1],
        )
        if self.is_first:
            self.state.write(self.taken)
        if self.team is not None:
            self.team.meet()

    def restore(self, homes: Sequence[Home | None]) -> None:
        """Put what was taken last into homes. Raises TrainError where it is not what was written."""
        assert self.taken is not None
        file = self._file(self.taken.file)
        try:
            way = digest if self.taken.by_page else digest_of_sums
            found = self._all(file, homes, write=False, way=way)
        finally:
            file.close()
        for block, (was, now) in enumerate(zip(self.taken.digests, found, strict=True)):
            if homes[block] is not None and was != now:
                raise damaged(file.path, f"holds another state of block {block} than was written")

    def close(self) -> None:
        """Let others have it."""
        self._turn.__exit__(None, None, None)

    def _see_the_same(self, team: Team) -> None:
        """Raises TrainError, at every rank, where one does not see the folder of rank 0: its share would be lost."""
        token = secrets.randbits(48) if self.is_first else 0
        path = self.folder / "meeting"
        if self.is_first:
            write_atomic(path, str(token), mode=PRIVATE_FILE)
        said = int(team.summed(torch.tensor([token], dtype=torch.float64))[0])
        blind = torch.zeros(team.world, dtype=torch.float64)
        blind[team.rank] = not self._reads(path, said)
        without = [rank for rank, is_blind in enumerate(team.summed(blind).tolist()) if is_blind]
        if self.is_first:
            path.unlink(missing_ok=True)
        if without:
            ranks = ", ".join(map(str, without))
            raise TrainError(
                "train/not-shared",
                f"{self.folder} of rank 0 is not what rank {ranks} sees there",
                hint="put the store on a file system that all nodes share: [run] store",
            )

    @staticmethod
    def _reads(path: Path, token: int) -> bool:
        try:
            return read_file(path, 64, ours=True).decode() == str(token)
        except (OSError, ValueError, NotOurs):
            return False

    def _file(self, which: int) -> BlobFile:
        path = self._path(which)
        return BlobFile(path, max(PAGE, self.starts[-1]), create=not path.exists())

    def _path(self, which: int) -> Path:
        return self.folder / f"snapshot-{which}.bin"

    def _all(
        self,
        file: BlobFile,
        homes: Sequence[Home | None],
        *,
        write: bool,
        way: Callable[[torch.Tensor, int], int] = digest,
    ) -> list[list[int]]:
        """Every array of every block to or from its place; their digests."""
        buffers = [arena(PIECE, torch.float32, _HOST) for _ in range(_THREADS)]

        def one(job: tuple[torch.Tensor, int, int, int]) -> int:
            flat, begin, size, offset = job
            buffer, width = buffers.pop(), flat.element_size()
            try:
                piece, raw = buffer.view(flat.dtype)[:size], memory_of(buffer)[: pages(width * size)]
                if write:
                    piece.copy_(flat[begin : begin + size])
                    file.write(raw, offset)
                else:
                    file.read(raw, offset)
                    flat[begin : begin + size].copy_(piece)
                return way(piece, width * begin)
            finally:
                buffers.append(buffer)

        found = []
        with ThreadPoolExecutor(_THREADS, "snapshot") as pool:
            for home, start in zip(homes, self.starts, strict=False):
                if home is None:
                    found.append([0, 0, 0])
                    continue
                arrays, offset, sums = home.state(), start, []
                for kind in "pmv":
                    flat, width = arrays[kind], arrays[kind].element_size()
                    jobs = [(flat, begin, size, offset + width * begin) for begin, size in _pieces(len(flat))]
                    sums.append(sum(pool.map(one, jobs)) % (1 << 64))
                    offset += pages(width * len(flat))
                found.append(sums)
        return found


def _gathered(digests: list[list[int]], team: Team) -> list[list[int]]:
    """Of all ranks, each of which has those of its blocks; a float carries 32 bits of one."""
    halves = [[number >> 32, number & 0xFFFFFFFF] for block in digests for number in block]
    summed = team.summed(torch.tensor(halves, dtype=torch.float64)).to(torch.int64).tolist()
    whole = [(high << 32) + low for high, low in summed]
    return [whole[at : at + 3] for at in range(0, len(whole), 3)]


def _pieces(numel: int) -> Iterator[tuple[int, int]]:
    for begin in range(0, numel, PIECE):
        yield begin, min(PIECE, numel - begin)

"""Gradients of a data-parallel run: the sum of a block passes from rank to rank, in the order of micro-batches.

Ranks hold neighbouring micro-batches. Rank 0 adds its own and passes the sum on, each next rank adds its own to what
came, one micro-batch after another, and the last sends the total to the block's owner. So every sum is made of the same
numbers in the same order as on one host: it is equal to the bit, whatever the number of ranks. It travels in pieces, so
that all ranks add at the same time, while the block before is computed; each rank sends and receives a block once.

Must not know: layers, schedules.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Semaphore
from typing import Any

import torch

from fairlead.train.gradients import Sum
from fairlead.train.homes import Spread
from fairlead.train.lanes import Lanes, Mark
from fairlead.train.layout import Block
from fairlead.train.memory import arena
from fairlead.train.settings import Settings
from fairlead.train.team import Team

PIECE = 1 << 22
"""Elements of fp32 that are passed on at once: 16 MiB."""
DEPTH = 2
"""Blocks whose gradients may wait for their turn before computing waits, too."""


class Pile:
    """The gradients of one block, of each micro-batch of this rank by itself."""

    def __init__(self, wire: torch.device) -> None:
        self.wire = wire
        self.parts: list[dict[str, torch.Tensor]] = []
        """By name, flat, where they can be sent from."""

    def add(self, block: Block, gradients: Mapping[str, torch.Tensor | None]) -> None:
        """Those of the next micro-batch, by local name; they belong to the pile now."""
        found = [(param.name, gradients.get(param.local)) for param in block.trainable]
        self.parts.append({name: self._there(gradient) for name, gradient in found if gradient is not None})

    def _there(self, gradient: torch.Tensor) -> torch.Tensor:
        flat = gradient.detach().reshape(-1)
        if flat.device.type == self.wire.type:
            return flat
        return torch.empty(flat.shape, dtype=flat.dtype, pin_memory=True).copy_(flat, non_blocking=True)

    def added(self, block: Block, begin: int, sums: torch.Tensor, seen: set[str]) -> None:
        """Add a stretch of all parts to `sums`, which begins at element `begin`; `seen` have a sum already."""
        seen = set(seen)
        for part in self.parts:
            for param in block.trainable:
                low, high = max(param.offset, begin), min(param.offset + param.numel, begin + len(sums))
                if param.name not in part or low >= high:
                    continue
                into = sums[low - begin : high - begin]
                source = part[param.name][low - param.offset : high - param.offset]
                into.add_(source) if param.name in seen else into.copy_(source)
            seen |= part.keys()


class Relay:
    """The way of sums through the ranks, and home."""

    def __init__(self, lanes: Lanes, team: Team, blocks: tuple[Block, ...]) -> None:
        self.lanes, self.team = lanes, team
        self.last = team.world - 1
        self._norms: dict[int, torch.Tensor] = {}
        self._pieces = [arena(PIECE, torch.float32, team.wire) for _ in range(2)]
        widest = max((block.trained for block in blocks if team.owns(block.index)), default=0)
        self._total = arena(widest, torch.float32, team.wire)
        self._room = Semaphore(DEPTH)
        self._jobs: list[Future[None]] = []
        self._workers = {name: ThreadPoolExecutor(1, name, lanes.enter_thread) for name in ("sums", "totals")}
        for worker in self._workers.values():  # a norm depends on the number of threads
            worker.submit(torch.set_num_threads, torch.get_num_threads()).result()

    def open(self, block: Block) -> Pile:
        """A pile to fill, once there is room for one."""
        self._room.acquire()
        self._check()
        return Pile(self.team.wire)

    def send(self, block: Block, pile: Pile, home: Spread) -> None:
        """Let the sum pass; nothing is waited for here."""
        if not block.trained:
            self._room.release()
            return
        self._jobs.append(self._workers["sums"].submit(self._pass, block, pile, home, self.lanes.mark()))
        if self.team.owns(block.index) and self.team.rank != self.last:
            self._jobs.append(self._workers["totals"].submit(self._fetch, block, home))

    def finish(self) -> dict[int, torch.Tensor]:
        """Norms of this step's gradients in blocks that this rank owns, by place in the model, once all are home."""
        for job in self._jobs:
            job.result()
        self._jobs = []
        found, self._norms = self._norms, {}
        return found

    def agree(
        self, blocks: Sequence[Block], losses: Sequence[torch.Tensor], settings: Settings
    ) -> tuple[dict[int, torch.Tensor], dict[int, set[str]], list[torch.Tensor]]:
        """All ranks learn all norms, which gradients exist (by block), and the losses of all micro-batches."""
        trained = {param.order: (block, param) for block in blocks for param in block.trainable}
        num = max(trained, default=-1) + 1
        said = torch.zeros(2 * num + settings.accumulation, dtype=torch.float64)
        for order, norm in self.finish().items():
            said[order], said[num + order] = 1.0, float(norm)
        for micro, loss in zip(settings.mine, losses, strict=True):
            said[2 * num + micro] = float(loss.detach())
        heard = self.team.summed(said)
        norms: dict[int, torch.Tensor] = {}
        seen: dict[int, set[str]] = {block.index: set() for block in blocks}
        for order, (block, param) in trained.items():
            if heard[order]:
                seen[block.index].add(param.name)
                norms[order] = heard[num + order].to(torch.float32).to(settings.device)
        return norms, seen, [told.to(losses[0].dtype).to(settings.device) for told in heard[2 * num :]]

    def close(self) -> None:
        """End the threads."""
        for worker in self._workers.values():
            worker.shutdown(wait=True, cancel_futures=True)

    def _check(self) -> None:
        for job in self._jobs:
            if job.done():
                job.result()

    def _pass(self, block: Block, pile: Pile, home: Spread, computed: Mark) -> None:
        """In the thread of sums: what comes from the rank before, and ours, go to the next, or home."""
        try:
            with self._wires():
                self.lanes.after(computed)
                seen = self._seen_before(block)
                whole = seen.union(*pile.parts)
                is_home = self.team.rank == self.last and self.team.owns(block.index)
                kind, to = (
                    ("sums", self.team.rank + 1)
                    if self.team.rank < self.last
                    else ("totals", self.team.owner(block.index))
                )
                under_way: list[list[Any]] = [[], []]
                if not is_home:
                    flags = self._flags(block, whole)
                    under_way[1].append(self.team.send(kind, flags, to))
                for number, (begin, size) in enumerate(_stretches(block.trained)):
                    sent = under_way[number % 2]
                    while sent:
                        sent.pop().wait()
                    sums = (self._total[begin:] if is_home else self._pieces[number % 2])[:size]
                    self.team.receive("sums", sums, self.team.rank - 1) if self.team.rank else sums.zero_()
                    pile.added(block, begin, sums, seen)
                    if not is_home:
                        sent.append(self.team.send(kind, sums, to))
                for one in [*under_way[0], *under_way[1]]:
                    one.wait()
                if is_home:
                    self._arrived(block, home, whole)
        finally:
            self._room.release()

    def _fetch(self, block: Block, home: Spread) -> None:
        """In the thread of totals: what the last rank sends to the owner."""
        with self._wires():
            flags = torch.zeros(len(block.trainable), dtype=torch.uint8, device=self.team.wire)
            self.team.receive("totals", flags, self.last)
            for begin, size in _stretches(block.trained):
                self.team.receive("totals", self._total[begin : begin + size], self.last)
            self._arrived(block, home, _named(block, flags))

    def _arrived(self, block: Block, home: Spread, seen: set[str]) -> None:
        """The total is here: measured on the device that computes, and kept."""
        flat = self._total[: block.trained]
        total = Sum(flat.to(self.lanes.device))
        total.seen = seen
        self._norms |= total.norms(block)
        assert home.held is not None
        home.held.keep(flat).synchronize()

    def _seen_before(self, block: Block) -> set[str]:
        if not self.team.rank:
            return set()
        flags = torch.zeros(len(block.trainable), dtype=torch.uint8, device=self.team.wire)
        self.team.receive("sums", flags, self.team.rank - 1)
        return _named(block, flags)

    def _flags(self, block: Block, seen: set[str]) -> torch.Tensor:
        flags = [int(param.name in seen) for param in block.trainable]
        return torch.tensor(flags, dtype=torch.uint8, device=self.team.wire)

    def _wires(self) -> Any:
        """Calls of a wire on the device go to the lane `out`; from the host, computing must not wait for them."""
        return self.lanes.lane("out" if self.team.wire.type == "cuda" else "")


def _named(block: Block, flags: torch.Tensor) -> set[str]:
    return {param.name for param, flag in zip(block.trainable, flags.tolist(), strict=True) if flag}


def _stretches(numel: int) -> Iterator[tuple[int, int]]:
    for begin in range(0, numel, PIECE):
        yield begin, min(PIECE, numel - begin)

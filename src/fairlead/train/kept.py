"""The state of all blocks as settings ask for it: a home each, in memory, on disk or at another rank, and what is kept.

Must not know: layers, schedules, steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from fairlead.train.homes import Home, InHost, OnDevice, Spread
from fairlead.train.lanes import Lanes
from fairlead.train.layout import Block
from fairlead.train.manifest import Manifest
from fairlead.train.memory import arena
from fairlead.train.settings import Settings
from fairlead.train.shards import Shards
from fairlead.train.snapshots import Snapshots, Taken

STAGING = 1 << 26
"""fp32 elements that pass through device memory at once on their way to a narrower dtype: 256 MiB."""


class Kept:
    """All homes, and the store or the snapshots behind them."""

    def __init__(self, blocks: Sequence[Block], settings: Settings, lanes: Lanes) -> None:
        self.blocks, self.settings, self.lanes = blocks, settings, lanes
        team = self.team = settings.ranks
        assert not (settings.on_device and (team is not None or settings.store is not None))
        widest = max((block.numel for block in blocks if block.index not in settings.on_device), default=0)
        narrow = lanes.cuda and settings.dtype != settings.parameters
        on_wire = team is not None and team.wire.type != settings.device.type
        most = max(block.numel for block in blocks)
        self._passing = arena(most, settings.dtype, team.wire, pinned=True) if team is not None and on_wire else None
        self._staging = torch.zeros(min(widest, STAGING), device=settings.device) if narrow and not on_wire else None

        self.store: Shards | None = None
        self.snapshots: Snapshots | None = None
        if settings.store is not None:
            self.store = Shards(
                settings.store, blocks, lanes, settings.gradients, settings.run, settings.parameters, team
            )
        elif settings.snapshots is not None:
            self.snapshots = Snapshots(settings.snapshots, blocks, settings.run, team, settings.parameters)
        held: Mapping[int, Home] = self.store.homes if self.store is not None else {}
        with ThreadPoolExecutor(8) as pool:  # the kernel takes its time to find and pin pages
            self.homes: list[Home] = list(pool.map(lambda block: self._home(block, held), blocks))
        if self.snapshots is not None and self.snapshots.taken is not None:
            self.snapshots.restore(self._here())

    def _home(self, block: Block, held: Mapping[int, Home]) -> Home:
        team = self.team
        if team is None:
            return held.get(block.index) or self._in_memory(block)
        mine = (held.get(block.index) or self._in_memory(block)) if team.owns(block.index) else None
        return Spread(block, self.lanes, team, mine, self._passing, self.settings.parameters)

    def _in_memory(self, block: Block) -> Home:
        self.lanes.enter_thread()
        settings = self.settings
        dtype = settings.gradients if block.index else torch.float32
        if block.index in settings.on_device:
            return OnDevice(block, self.lanes, dtype, settings.parameters)
        return InHost(block, self.lanes, dtype, self._staging, settings.parameters)

    def has(self, block: Block) -> bool:
        """Whether the state of a block is here, and not at another rank."""
        return self.team is None or self.team.owns(block.index)

    @property
    def last(self) -> Manifest | Taken | None:
        """What is committed: steps, counts, loss and norm; None where there is nothing to go on from."""
        if self.store is not None:
            return self.store.manifest
        return self.snapshots.taken if self.snapshots is not None else None

    def save(self, steps: int, counts: Mapping[str, int], told: tuple[float, float]) -> None:
        """Take a snapshot, between steps; `told` is the last one's loss and norm."""
        assert self.snapshots is not None
        self.snapshots.take(steps, self._here(), counts, told)

    def _here(self) -> list[Home | None]:
        """The homes that are here; None for those of other ranks."""
        return [home.held if isinstance(home, Spread) else home for home in self.homes]

    def close(self) -> None:
        """Give memory back, let go of files."""
        for home in self.homes:
            home.close()
        for behind in (self.store, self.snapshots):
            if behind is not None:
                behind.close()

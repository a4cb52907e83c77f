"""State on disk of a run on several ranks: a store each, a step that all have or none, who serves which store later.

A run begins with as many shards as ranks. Block i belongs to shard i modulo their number for ever; a shard is a folder
`shard-2-of-4` with a store in it, on a file system that all nodes see or on a disk of one node. A step:

    prepared     each rank writes its shards' manifests, as soon as all its gradients are on disk
    committed    all ranks have met after that: only now may an update begin
    resumed      the newest step that all shards have; one that is a step ahead was never updated, and withdraws it

Every manifest has all numbers, so nothing need be learned from another rank's. Later ranks may be fewer, more, or
elsewhere: each shard is served by a rank that sees it, and blocks stay where they are.

A run on one host is the same with one shard, which lies in the folder itself.

Must not know: layers, schedules.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import msgspec
import torch

from fairlead.errors import TrainError
from fairlead.train.committed import NAME, check
from fairlead.train.disk import Hands, OnDisk
from fairlead.train.lanes import Lanes
from fairlead.train.layout import Block
from fairlead.train.manifest import Manifest
from fairlead.train.optimizer import Moment
from fairlead.train.store import FILES, DiskStore, manifest_of
from fairlead.train.team import Team

_NAME = re.compile(r"shard-(\d{1,6})-of-(\d{1,6})")
Seen: TypeAlias = tuple[int, int, int]
"""Of how many shards, which one, and how many steps it has; -1: it was not filled to the end."""


@dataclass(frozen=True, slots=True)
class Survey:
    """What all ranks found together, the same at each."""

    num: int
    """Shards: of a run that has not begun, as many as ranks."""
    owners: tuple[int, ...]
    """The rank that serves each."""
    steps: int | None
    """The newest step that all shards have; None: there is no run to go on with."""


def place(folder: Path, shard: int, num: int) -> Path:
    """Where a shard lies."""
    return folder if num == 1 else folder / f"shard-{shard}-of-{num}"


def survey(folder: Path, team: Team | None = None) -> Survey:
    """Look what is there, all ranks at once. Raises TrainError where a shard is seen by nobody."""
    here = look(folder)
    found = [here] if team is None else [[(n, i, s) for n, i, s in rows] for rows in team.rows(here)]
    chosen = choose(found)
    if chosen is None:
        world = len(found)
        return Survey(world, tuple(range(world)), None)
    missing = [shard for shard, owner in enumerate(chosen.owners) if owner < 0]
    if missing:
        nodes = _nodes(folder, here)
        if team is not None:
            teller = next(rank for rank, rows in enumerate(found) if any(steps >= 0 for *_, steps in rows))
            nodes = msgspec.json.decode(team.told(msgspec.json.encode(nodes), teller), type=list[str])
        raise _lost(folder, missing, chosen.num, nodes)
    return chosen


def look(folder: Path) -> list[Seen]:
    """What this rank sees."""
    found = [(1, 0, folder)] if (folder / NAME).exists() else []
    check(folder)
    for path in sorted(folder.glob("shard-*-of-*")):
        match = _NAME.fullmatch(path.name)
        if match and int(match[1]) < int(match[2]):
            found.append((int(match[2]), int(match[1]), path))
    states = [(num, shard, manifest_of(path).read()) for num, shard, path in found]
    return [(num, shard, -1 if state is None else state.steps) for num, shard, state in states]


def choose(found: Sequence[Sequence[Seen]]) -> Survey | None:
    """From what each rank sees, who serves what; None where no run has begun. Owner -1: nobody sees the shard.

    A shard goes to the rank of its number if that one sees its newest state, else to the one with least to serve.

    >>> choose([[(2, 0, 5)], [(2, 1, 6)]])
    Survey(num=2, owners=(0, 1), steps=5)
    >>> choose([[(2, 0, 0)], [(2, 1, -1)]])  # killed while first weights were written: it begins anew
    """
    whole: list[Survey] = []
    for num in {num for rows in found for num, _, _ in rows}:
        seen: list[dict[int, int]] = [{} for _ in range(num)]
        for rank, rows in enumerate(found):
            for count, shard, steps in rows:
                if count == num and steps >= 0:
                    seen[shard][rank] = steps
        newest = [max(ranks.values(), default=-1) for ranks in seen]
        if max(newest) < 0 or (max(newest) == 0 and min(newest) < 0):
            continue
        owners: list[int] = []
        for shard, ranks in enumerate(seen):
            able = [rank for rank, steps in ranks.items() if steps == newest[shard]]
            least = min(able, key=lambda rank: (owners.count(rank), rank), default=-1)
            owners.append(shard if shard in able else least)
        whole.append(Survey(num, tuple(owners), min((steps for steps in newest if steps >= 0), default=0)))
    return max(whole, key=lambda one: (-1 not in one.owners, one.steps, one.num), default=None)


class Shards:
    """The stores that this rank serves."""

    def __init__(
        self,
        folder: Path,
        blocks: Sequence[Block],
        lanes: Lanes,
        gradient_dtype: torch.dtype,
        run: str,
        dtype: torch.dtype = torch.float32,
        team: Team | None = None,
    ) -> None:
        self.folder, self.team = folder, team
        found = survey(folder, team)
        me = 0
        if team is not None:
            me, team.owners = team.rank, found.owners
        if found.steps is None:
            clear(folder)
        nodes = _served_on(found, team)
        self.hands = Hands(lanes)
        self.stores: list[DiskStore] = []
        try:
            for shard in (shard for shard, owner in enumerate(found.owners) if owner == me):
                mine = [block for block in blocks if block.index % found.num == shard]
                where = place(folder, shard, found.num)
                store = DiskStore(
                    where, mine, lanes, gradient_dtype, run, dtype, agreed=found.steps, nodes=nodes, hands=self.hands
                )
                self.stores.append(store)
            self.manifest = self._known(found)
        except BaseException:
            self.close()
            raise

    def _known(self, found: Survey) -> Manifest | None:
        """What is committed, told by who serves the first shard: a rank may serve none."""
        mine = self.stores[0].manifest if self.stores else None
        if self.team is None or found.steps is None:
            return mine
        said = msgspec.json.encode(mine and msgspec.structs.replace(mine, gradients=[]))
        return msgspec.json.decode(self.team.told(said, found.owners[0]), type=Manifest)

    @property
    def homes(self) -> dict[int, OnDisk]:
        """Of the blocks that this rank serves."""
        return {home.block.index: home for store in self.stores for home in store.homes}

    def begin(self) -> None:
        """Commit first weights: a run has begun when all shards have them."""
        for store in self.stores:
            store.begin()
        self._meet()
        self.manifest = self.stores[0].manifest if self.stores else None

    def commit(
        self, steps: int, moment: Moment, counts: Mapping[str, int], seen: Sequence[str], told: tuple[float, float]
    ) -> None:
        """The step is done, once this returns; its updates may begin. `told` is its loss and norm."""
        for store in self.stores:
            store.commit(steps, moment, counts, seen, told)
        self._meet()

    def _meet(self) -> None:
        if self.team is not None:
            self.team.meet()

    def close(self) -> None:
        """Let others have them."""
        self.hands.close()
        for store in self.stores:
            store.close()


def clear(folder: Path) -> None:
    """Remove shards that were never filled to the end, by whoever finds them; one that is at work is not touched."""
    for num, shard, _ in look(folder):
        path = place(folder, shard, num)
        with manifest_of(path).turn(limit_s=10.0):
            manifest_of(path).clear()
            for name in FILES:
                (path / f"{name}.bin").unlink(missing_ok=True)


def _served_on(found: Survey, team: Team | None) -> list[str]:
    """The node of each shard."""
    if team is None:
        return [platform.node()] * found.num
    names = team.names()
    return [names[owner] for owner in found.owners]


def _nodes(folder: Path, here: Sequence[Seen]) -> list[str]:
    """Where the shards of a run lay, as the newest manifest here says."""
    states = [manifest_of(place(folder, shard, num)).read() for num, shard, steps in here if steps >= 0]
    newest = max((state for state in states if state is not None), key=lambda state: state.steps, default=None)
    return newest.nodes if newest is not None else []


def _lost(folder: Path, missing: Sequence[int], num: int, nodes: Sequence[str]) -> TrainError:
    def name(shard: int) -> str:
        return f"{shard} of {num}" + (f", which lay on {nodes[shard]}," if len(nodes) == num else "")

    return TrainError(
        "train/shard-lost",
        f"no rank sees shard {' and '.join(map(name, missing))} of the state in {folder}",
        hint="let the node that has it take part, or copy its folder to one that does; else begin in another store",
    )

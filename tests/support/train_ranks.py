"""Training on several ranks of this machine, each a process; gloo between them on loopback."""

from __future__ import annotations

import os
import tempfile
from datetime import timedelta
from multiprocessing.connection import wait
from pathlib import Path

from support.train_kill import Trials


def be_rank(place: tuple[int, int], meeting: str, work, told: Path, words: dict) -> None:
    """Join the others, do `work(team, told, **words)`."""
    rank, world = place
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    from fairlead.train import relay
    from fairlead.train.team import Team

    relay.PIECE = 1000  # several to a block, none of them even
    limit = timedelta(seconds=60)
    dist.init_process_group("gloo", store=dist.FileStore(meeting, world), rank=rank, world_size=world, timeout=limit)
    work(Team(limit), told, **words)
    dist.barrier()


def on_ranks(world: int, work, told: Path, **words) -> list[int]:
    """Exit codes of all ranks. `work` is a function of a module, as other processes find it by name."""
    context = Trials().context
    with tempfile.TemporaryDirectory() as folder:
        children = [
            context.Process(target=be_rank, args=((rank, world), f"{folder}/meeting", work, told, words))
            for rank in range(world)
        ]
        for child in children:
            child.start()
        left, limit = {child.sentinel: child for child in children}, 120.0
        while left and (ready := wait(left, limit)):
            for sentinel in ready:
                child = left.pop(sentinel)
                child.join()
                if child.exitcode:  # as the launcher does it: the others are given a moment to end by themselves
                    limit = 20.0
        codes = [child.exitcode for child in children]
        for child in children:
            child.kill()
    return codes


def train_engine(
    team, told: Path, *, family: str, dtype: str, clip: float | None, steps: int, parameters: str = "float32"
) -> None:
    """Train from the same beginning as `support.training.compare`; every rank tells what it has in the end."""
    import torch

    from support.families import config
    from support.training import first_weights, micro_batches, train_streamed

    shape = config(family)
    data = micro_batches(shape.vocab_size, steps=steps, accumulation=4)
    rates = [1e-3 * min(1.0, (step + 1) / 3) for step in range(steps)]
    results, states = train_streamed(
        shape,
        first_weights(shape),
        data,
        rates,
        seed=7,
        dtype=getattr(torch, dtype),
        parameters=getattr(torch, parameters),
        clip=clip,
        team=team,
    )
    torch.save(([(r.loss, r.grad_norm, r.clip) for r in results], states), told / f"rank-{team.rank}.pt")


def train_session(team, told: Path, *, steps: int | None, resume: bool) -> None:
    """A run from the configuration in the folder."""
    from fairlead.train.config import load
    from fairlead.train.session import Session

    with Session.open(load(told / "train.toml"), told, resume=resume, team=team) as run:
        list(run.train(steps))


def count_bytes(team, told: Path, *, shape: dict, slots: int, freeze: str, dtype: str, ends: bool) -> None:
    """Steps from the store; what is read from it and written to it in the third, whose updates are all those of one."""
    import json

    import torch

    from fairlead.train import Engine, ParamGroup, Settings, random_values, skeleton, take_apart
    from fairlead.train.blobs import BlobFile
    from support.families import config
    from support.training import micro_batches

    moved = {"read": 0, "write": 0}
    for way in moved:
        real = getattr(BlobFile, way)

        def counted(self, flat, offset, *, way=way, real=real):
            moved[way] += len(flat)
            real(self, flat, offset)

        setattr(BlobFile, way, counted)
    groups = [ParamGroup(freeze, 0.0, trainable=False)] if freeze else []
    kind = getattr(torch, dtype)
    parts = take_apart(skeleton(config("llama", **shape), kind), [*groups, ParamGroup("*", 0.1)], ends=ends)
    ranks = team if team.world > 1 else None
    settings = Settings(torch.device("cpu"), kind, accumulation=4, slots=slots, store=told / "store", team=ranks)
    engine = Engine(parts, settings)
    engine.fill(random_values(parts, 1, torch.device("cpu")))
    before = {}
    for batches in micro_batches(shape["vocab_size"], steps=3, accumulation=4, rows=1, seq=8):
        engine.flush() if ranks is not None else None
        before = dict(moved)
        engine.step(batches, lr=1e-3)
    if ranks is not None:
        engine.flush()
    told.joinpath(f"bytes-{team.rank}.json").write_text(
        json.dumps([moved[way] - before[way] for way in ("read", "write")])
    )
    engine.close()

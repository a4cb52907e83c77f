"""Training on several ranks with state on disk, of which one may be killed at a chosen operation on its store."""

from __future__ import annotations

import errno
import os
import signal
import time
from pathlib import Path

from support.train_kill import RATES, STEPS, engine_of, kill_at_operation, operations, problem


def train_shards(
    team,
    told: Path,
    *,
    places: list[str],
    kill: tuple[int, int] = (0, 0),
    steps: int = STEPS,
    at_commit: str = "",
    full_after: int = 0,
) -> None:
    """From wherever the stores are, to a step; rank 0 tells each finished one with one line.

    `places` are the folders of ranks. `kill`: a rank, and the operation on its store that it does not survive. Or
    `at_commit`: rank 1 is killed "before" or "after" it writes the manifest of step 2, when rank 0 has written its own.
    Or the disk of rank 1 is full after some writes.
    """
    import torch

    from fairlead.train import disk

    disk.PIECE = 4096
    kill_at_operation(kill[1] if team.rank == kill[0] else 0)
    if at_commit and team.rank == 1:
        kill_at_commit(at_commit, told / places[0] / "shard-0-of-2")
    if full_after and team.rank == 1:
        fill_disk(full_after)
    shape, first, data = problem()
    engine = engine_of(shape, told / places[team.rank], team=team)
    if not engine.filled:
        engine.fill(first.items())
    lines = [f"from {engine.steps}"]
    for step in range(engine.steps, steps):
        result = engine.step(data[step], lr=RATES[step], seed=7)
        lines.append(f"{result.step} {result.loss!r} {result.grad_norm!r}")
        tell(team, told, lines)
    tell(team, told, lines)
    state = engine.state()
    if team.rank == 0:
        torch.save(state, told / "state.pt")
    engine.close()
    (told / f"operations-{team.rank}").write_text(str(operations[0]))


def tell(team, told: Path, lines: list[str]) -> None:
    if team.rank == 0 and lines:
        with (told / "told").open("a") as file:
            file.write("".join(line + "\n" for line in lines))
        lines.clear()


def kill_at_commit(when: str, other: Path) -> None:
    from fairlead.records.stagestate import StageState
    from fairlead.train.store import manifest_of

    real = StageState.write

    def write(self, state) -> None:
        if state.steps == 2:
            if when == "after":
                real(self, state)
            limit = time.monotonic() + 30
            while (found := manifest_of(other).read()) is None or found.steps < 2:
                assert time.monotonic() < limit
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        real(self, state)

    StageState.write = write


def fill_disk(after: int) -> None:
    real, calls = os.pwritev, [0]

    def full(*args) -> int:
        calls[0] += 1
        if calls[0] > after:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*args)

    os.pwritev = full  # type: ignore[assignment]

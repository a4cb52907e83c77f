"""Training in a process of its own that is killed at a chosen operation on its store, in the middle of a write."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path

STEPS = 3
RATES = [1e-3, 2e-3, 3e-3]


def problem():
    from support.families import config
    from support.training import first_weights, micro_batches

    shape = config("llama")
    shape.num_hidden_layers = 3
    return shape, first_weights(shape), micro_batches(shape.vocab_size, steps=STEPS, accumulation=2)


def engine_of(shape, folder, **settings):
    import torch

    from fairlead.train import Engine, Settings, skeleton, take_apart
    from support.training import CPU, GROUPS

    made = Settings(CPU, accumulation=2, clip=0.02, store=folder, run="kill", **settings)
    return Engine(take_apart(skeleton(shape, torch.float32), GROUPS), made)


def train(folder: Path, kill_at: int, told: Path) -> None:
    """From wherever the store is, to the end; each finished step is told with one line."""
    import torch

    torch.set_num_threads(1)
    from fairlead.train import disk

    disk.PIECE = 4096
    kill_at_operation(kill_at)
    shape, first, data = problem()
    engine = engine_of(shape, folder)
    if not engine.filled:
        engine.fill(first.items())
    with told.open("a") as file:
        file.write(f"from {engine.steps}\n")
        for step in range(engine.steps, STEPS):
            result = engine.step(data[step], lr=RATES[step], seed=7)
            file.write(f"{result.step} {result.loss!r} {result.grad_norm!r}\n")
            file.flush()
    torch.save(engine.state(), folder.with_suffix(".pt"))
    engine.close()
    told.with_suffix(".operations").write_text(str(operations[0]))


operations = [0]


def kill_at_operation(num: int) -> None:
    """Every write, sync and commit counts; a write that kills leaves half of itself."""
    from fairlead.records.stagestate import StageState
    from fairlead.train.blobs import BlobFile

    def counting(kind, name):
        real = getattr(kind, name)

        def counted(self, *args):
            operations[0] += 1
            if operations[0] == num:
                if name == "write" and kind is BlobFile:
                    half = len(args[0]) // 2 // 4096 * 4096
                    real(self, args[0][:half], args[1])
                os.kill(os.getpid(), signal.SIGKILL)
            return real(self, *args)

        setattr(kind, name, counted)

    for kind, name in ((BlobFile, "write"), (BlobFile, "sync"), (StageState, "write")):
        counting(kind, name)


class Trials:
    """Starts training again and again; torch is imported once."""

    def __init__(self) -> None:
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(
            [
                "torch",
                "transformers",
                "transformers.models.llama.modeling_llama",
                "torch._dynamo",
                "fairlead.train.engine",
            ]
        )

    def run(self, folder: Path, told: Path, kill_at: int = 0) -> int:
        """The exit code: 0, or minus a signal."""
        child = self.context.Process(target=train, args=(folder, kill_at, told))
        child.start()
        child.join(120)
        assert child.exitcode is not None, "it hangs"
        return child.exitcode

"""One training run from a configuration: opened, trained, gone on with, written as a model directory.

    with Session.open(load(Path("train.toml")), Path(".")) as run:
        for result in run.train():
            ...
        run.export(Path("out"))

Must not know: the command line.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from msgspec import structs

from fairlead.base.files import disk_errors, write_atomic
from fairlead.errors import TrainError
from fairlead.train import committed, cuts, lora, metrics, weights
from fairlead.train.config import Config
from fairlead.train.data import Tokens
from fairlead.train.engine import Engine, NotFinite
from fairlead.train.identity import identity, other_run
from fairlead.train.kept import Kept
from fairlead.train.layout import Block
from fairlead.train.memory import give_back_at_once
from fairlead.train.model import Parts, random_values
from fairlead.train.named import DTYPES, flop_per_token, model_of, parts_of, pieces_of
from fairlead.train.optimizer import rate
from fairlead.train.pace import reached
from fairlead.train.packing import IGNORED
from fairlead.train.plan import check
from fairlead.train.planning import Plan, check_team, fitted, settled
from fairlead.train.settings import Result
from fairlead.train.shards import survey
from fairlead.train.team import Team
from fairlead.train.trace import Trace

_NAMED = 8
"""Rows of a step that an error names."""


@dataclass(frozen=True, slots=True)
class Progress:
    """A step and what it took."""

    result: Result
    lr: float
    tokens: int
    """Real ones, without padding."""
    seconds: float
    model_tflops: float
    """6 operations per parameter that a token meets (4 where it is frozen), and real token; 10^12 a second."""
    bound: tuple[str, float] | None
    """The resource that was busiest (`pace.reached`), and for how much of the step: 1 is the bound. Not of ranks: what
    they wait for each other is not told apart."""

    def line(self) -> dict[str, Any]:
        """As it stands in the metrics file."""
        result = self.result
        return {
            "step": result.step,
            "loss": result.loss,
            "grad_norm": result.grad_norm,
            "clip": result.clip,
            "lr": self.lr,
            "tokens": self.tokens,
            "tokens_per_s": self.tokens / self.seconds,
            "model_tflops": self.model_tflops,
            "seconds": {"step": self.seconds, **result.seconds},
            **({} if self.bound is None else {"bound": dict(zip(("by", "share"), self.bound, strict=True))}),
            **_memory(),
        }


class Session:
    """A run that is open: it holds its store and its memory until it is closed."""

    def __init__(self, config: Config, base: Path, parts: Parts, engine: Engine, tokens: Tokens) -> None:
        self.config = config
        self.base = base
        self.parts = parts
        """With whole layers, also where the engine has them in pieces."""
        self.engine = engine
        self.tokens = tokens
        self.metrics = base / config.run.metrics
        team = engine.settings.team
        self._tells = team is None or team.rank == 0
        self._last: Result | None = None

    @classmethod
    def open(cls, config: Config, base: Path, *, resume: bool = False, team: Team | None = None) -> Session:
        """Begin a run, or with `resume` go on after the last committed step of its store.

        With a team, every rank opens it and does the same with it; rank 0 writes the metrics.
        """
        if team is not None:
            check_team(config, team)
        store = base / config.run.store
        committed.check(store)
        metrics.check(base, config.run.metrics, config.run.store)
        if _has_begun(settled(config, store, team), store, team) is not resume:
            raise _not_there(store) if resume else _there(store)
        if config.memory.host_gib:
            give_back_at_once()
        model = model_of(config, base)
        checkpoint = weights.Checkpoint(base / config.model.path, model) if config.model.init == "weights" else None
        if checkpoint is not None:
            checkpoint.load_buffers()
        parts = parts_of(config, model)
        if team is not None and team.rank:
            team.meet()  # texts become tokens once
        tokens = Tokens(config, base)
        tokens.fit(model)
        if team is not None and not team.rank:
            team.meet()
        if not resume:
            cuts.hold(store, cuts.WHOLE)
        plan = _agreed(config, base, parts, tokens.length, team)
        check(plan.need, plan.limits)
        if not resume:
            cuts.hold(store, plan.shape)
        if team is not None:  # all ranks follow one schedule
            plan = replace(plan, settings=replace(plan.settings, slots=team.least(plan.settings.slots)))
        engine = Engine(plan.parts, replace(plan.settings, run=identity(config, parts, tokens)))
        try:
            if not engine.filled:
                first = parts if team is None else plan.parts  # a layer comes whole also where it is cut
                engine.fill(_first_values(config, first, checkpoint, engine.kept))
            session = cls(config, base, parts, engine, tokens)
            session._begin_metrics()
        except BaseException:
            engine.close()
            raise
        return session

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of store and memory; what was committed stays."""
        self.engine.close()

    @property
    def done(self) -> int:
        """Steps committed."""
        return self.engine.steps

    def train(self, steps: int | None = None, stop: Callable[[], bool] = lambda: False) -> Iterator[Progress]:
        """Train to the end of the run, or for some steps; each is told once it is committed and in the metrics.

        `stop` is asked after each step; where it says so, that was the last one, and a snapshot is taken of it. Raises
        TrainError for a step without targets, or one that is not finite: the state before it is kept.
        """
        end = self.config.run.steps if steps is None else min(self.config.run.steps, self.done + steps)
        flop, settings = flop_per_token(self.parts), self.engine.settings
        while self.done < end:
            begin = time.perf_counter()
            lr = self.rate(self.done)
            batches = self.tokens.step(self.done)
            self._check_targets(batches)
            try:
                result = self.engine.step(batches, lr=lr, seed=self.config.run.seed)
            except NotFinite as error:
                if not error.is_begun:
                    self.keep()
                raise
            seconds = time.perf_counter() - begin
            real = self.tokens.real(result.step)
            on_disk, is_host = settings.store is not None, settings.device.type == "cpu"
            bound = (
                reached(result.seconds, seconds, on_disk=on_disk, is_host=is_host) if settings.team is None else None
            )
            progress = Progress(result, lr, real, seconds, flop * real / seconds / 1e12, bound)
            self._last = result
            every, is_last = self.config.run.save_every, self.done == end or stop()
            if is_last or (every and self.done % every == 0):
                self.keep()
            if self._tells:
                line = {**progress.line(), "store": self.config.run.store}
                with disk_errors(self.metrics), self.metrics.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line, allow_nan=False) + "\n")
            yield progress
            if is_last:
                return

    def keep(self) -> None:
        """Where the state is in memory alone: take a snapshot of the last step, if there is none of it."""
        if self.in_memory_alone and self._last is not None:
            self.engine.save(self._last)

    @property
    def in_memory_alone(self) -> int:
        """Steps that would be lost if the process ended now."""
        kept = self.engine.kept
        return 0 if kept.snapshots is None else self.done - (kept.last.steps if kept.last is not None else 0)

    def _check_targets(self, batches: Sequence[Mapping[str, torch.Tensor]]) -> None:
        if any(bool((batch["labels"][..., 1:] != IGNORED).any()) for batch in batches):
            return
        rows = sorted(set(self.tokens.samples(self.done)))
        more = f" and {len(rows) - _NAMED} more" if len(rows) > _NAMED else ""
        raise TrainError(
            "train/no-targets",
            f"step {self.done} has no target: rows {', '.join(map(str, rows[:_NAMED]))}{more} have no label but -100",
            hint="give these rows labels, or leave them out, and begin in another store",
        )

    @contextlib.contextmanager
    def traced(self, path: Path | None) -> Iterator[None]:
        """Write down what happens inside, step by step, into a trace file; also if it ends early."""
        if path is None:
            yield
            return
        self.engine.trace = trace = Trace(self.engine.lanes)
        try:
            yield
        finally:
            self.engine.trace = None
            trace.write(path)

    def rate(self, step: int) -> float:
        """The learning rate of a step."""
        chosen = self.config.optimizer
        return rate(chosen.schedule, chosen.lr, step, self.config.run.steps, chosen.warmup, chosen.floor)

    def state(self) -> Iterator[tuple[str, dict[str, torch.Tensor]]]:
        """fp32 `p`, and `m`, `v` of what is trained, parameter by parameter; one block in memory at a time."""
        for _, block in self.engine.blocks():
            yield from block.items()

    def export(self, folder: Path, dtype: str = "fp32") -> list[Path]:
        """Write a Hugging Face model directory, or the adapters of one; one block in memory at a time."""
        blocks = self.engine.blocks()
        values = ((index, {name: kinds["p"] for name, kinds in block.items()}) for index, block in blocks)
        if self.config.lora.rank:
            origin = (self.base / self.config.model.path).absolute()
            return [lora.export(values, folder, self.config.lora, origin)]
        streamed = self.engine.parts
        parts = pieces_of(self.config, self.parts, cuts.Cut(ends=bool(streamed.ends)))
        return weights.export(parts, cuts.by_layer(parts, values) if streamed.cut else values, folder, DTYPES[dtype])

    def _begin_metrics(self) -> None:
        """Only committed steps stay; one that was killed before it could be told is told by what its commit says."""
        if not self._tells:
            return
        whole = [line for line in metrics.texts(self.metrics) if metrics.step(line) < self.done] if self.done else []
        last = self.engine.kept.last
        if last is not None and len(whole) == self.done - 1:
            missing = {
                "step": self.done - 1,
                "loss": last.loss,
                "grad_norm": last.grad_norm,
                "store": self.config.run.store,
            }
            whole.append(json.dumps(missing))
        write_atomic(self.metrics, "".join(line + "\n" for line in whole))


def _agreed(config: Config, base: Path, parts: Parts, length: int, team: Team | None) -> Plan:
    """The plan; of several ranks, embedding and head stream on all of them where one needs it."""
    if team is None:
        return fitted(config, base, parts, length)
    team.meet()  # what an older run said of its pieces is gone on all
    plan = fitted(config, base, parts, length, team=team)
    if team.least(-int(plan.shape.ends)) == -int(plan.shape.ends):
        return plan
    memory = structs.replace(config.memory, ends="stream")
    return fitted(structs.replace(config, memory=memory), base, parts, length, team=team)


def _first_values(
    config: Config, parts: Parts, checkpoint: weights.Checkpoint | None, kept: Kept
) -> Iterable[tuple[str, torch.Tensor]]:
    """Of the blocks that live here; what other ranks read is theirs."""

    def here(of: Parts) -> list[Block]:
        return [block for block in of.blocks if kept.has(block)]

    if not here(parts):
        return ()
    values: Iterable[tuple[str, torch.Tensor]]
    if checkpoint is not None:
        plain = lora.base(parts) if config.lora.rank else parts
        values = checkpoint.values(plain, here(plain))
    else:
        drawn = random_values(parts, config.run.seed, torch.device("cpu"), here(parts))
        values = ((name, value) for name, value in drawn if not lora.is_adapter(name))
    return lora.first_values(parts, values, config.run.seed, here(parts)) if config.lora.rank else values


def _memory() -> dict[str, float]:
    found = {}
    status = Path("/proc/self/status")
    if status.exists():
        lines = dict(line.partition(":")[::2] for line in status.read_text(encoding="ascii").splitlines())
        for name, key in (("host_gib", "VmRSS"), ("peak_host_gib", "VmHWM")):
            found[name] = int(lines.get(key, "0 kB").split()[0]) / 2**20
    if torch.cuda.is_available():
        found["device_gib"] = torch.cuda.memory_allocated() / 2**30
        found["peak_device_gib"] = torch.cuda.max_memory_allocated() / 2**30
    return found


def _has_begun(config: Config, store: Path, team: Team | None) -> bool:
    """Whether there is a run to go on with; of state on disk, ranks agree on who serves what."""
    if config.run.keep == "memory":
        if any(store.glob(f"shard-*/{committed.NAME}")):
            raise other_run(store)
        return (store / committed.NAME).exists()
    found = survey(store, team)
    if team is not None:
        team.owners = found.owners
    return found.steps is not None


def _there(store: Path) -> TrainError:
    hint = "go on with it: fairlead train resume CONFIG; or name another store"
    return TrainError("train/has-begun", f"{store} already holds a run", hint=hint)


def _not_there(store: Path) -> TrainError:
    hint = "begin it: fairlead train run CONFIG"
    return TrainError("train/not-begun", f"{store} holds no run to go on with", hint=hint)

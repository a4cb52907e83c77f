"""One training run from a configuration: opened, trained, gone on with, written as a model directory.

    with Session.open(load(Path("train.toml")), Path(".")) as run:
        for result in run.train():
            ...
        run.export(Path("out"))

Must not know: the command line.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import time
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from msgspec import structs
from transformers import AutoConfig

from fairlead.base.files import disk_errors, write_atomic
from fairlead.errors import TrainError
from fairlead.train import lora, metrics, weights
from fairlead.train.activations import play
from fairlead.train.blobs import other_run
from fairlead.train.config import Config
from fairlead.train.data import Tokens, length_of
from fairlead.train.engine import Engine
from fairlead.train.kept import Kept
from fairlead.train.layout import Block
from fairlead.train.measure import rates
from fairlead.train.memory import give_back_at_once
from fairlead.train.model import Parts, random_values, skeleton, take_apart
from fairlead.train.optimizer import SGD, AdamW, Rule, rate
from fairlead.train.pace import Pace, Rates, pace
from fairlead.train.placement import Keep, Way, choose, most
from fairlead.train.plan import Need, check, need
from fairlead.train.schedule import Schedule
from fairlead.train.schedule import plan as make_schedule
from fairlead.train.settings import Result, Settings
from fairlead.train.shards import survey
from fairlead.train.team import Team
from fairlead.train.trace import Trace

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


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
            **_memory(),
        }


class Session:
    """A run that is open: it holds its store and its memory until it is closed."""

    def __init__(self, config: Config, base: Path, parts: Parts, engine: Engine, tokens: Tokens) -> None:
        self.config = config
        self.base = base
        self.parts = parts
        self.engine = engine
        self.tokens = tokens
        self.metrics = base / config.run.metrics
        team = engine.settings.team
        self._tells = team is None or team.rank == 0

    @classmethod
    def open(cls, config: Config, base: Path, *, resume: bool = False, team: Team | None = None) -> Session:
        """Begin a run, or with `resume` go on after the last committed step of its store.

        With a team, every rank opens it and does the same with it; rank 0 writes the metrics.
        """
        if team is not None:
            _check_team(config, team)
        store = base / config.run.store
        if _has_begun(_settled(config, store, team), store, team) is not resume:
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
        if team is not None and not team.rank:
            team.meet()
        plan = fitted(config, base, parts, tokens.length, team=team)
        check(plan.need, plan.limits)
        if team is not None:  # all ranks follow one schedule
            plan = replace(plan, settings=replace(plan.settings, slots=team.least(plan.settings.slots)))
        engine = Engine(parts, replace(plan.settings, run=_run(config, parts, tokens)))
        try:
            if not engine.filled:
                engine.fill(_first_values(config, parts, checkpoint, engine.kept))
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

    def train(self, steps: int | None = None) -> Iterator[Progress]:
        """Train to the end of the run, or for some steps; each is told once it is committed and in the metrics."""
        end = self.config.run.steps if steps is None else min(self.config.run.steps, self.done + steps)
        flop = flop_per_token(self.parts)
        while self.done < end:
            begin = time.perf_counter()
            lr = self.rate(self.done)
            batches = self.tokens.step(self.done)
            result = self.engine.step(batches, lr=lr, seed=self.config.run.seed)
            seconds = time.perf_counter() - begin
            real = self.tokens.real(result.step)
            progress = Progress(result, lr, real, seconds, flop * real / seconds / 1e12)
            every = self.config.run.save_every
            if self.engine.kept.snapshots is not None and (self.done == end or (every and self.done % every == 0)):
                self.engine.save(result)
            if self._tells:
                with disk_errors(self.metrics), self.metrics.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(progress.line()) + "\n")
            yield progress

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
        return weights.export(self.parts, values, folder, DTYPES[dtype])

    def _begin_metrics(self) -> None:
        """Only committed steps stay; one that was killed before it could be told is told by what its commit says."""
        if not self._tells:
            return
        whole = [line for line in metrics.texts(self.metrics) if metrics.step(line) < self.done] if self.done else []
        last = self.engine.kept.last
        if last is not None and len(whole) == self.done - 1:
            missing = {"step": self.done - 1, "loss": last.loss, "grad_norm": last.grad_norm}
            whole.append(json.dumps(missing))
        write_atomic(self.metrics, "".join(line + "\n" for line in whole))


def _first_values(
    config: Config, parts: Parts, checkpoint: weights.Checkpoint | None, kept: Kept
) -> Iterable[tuple[str, torch.Tensor]]:
    """Of the blocks that live here; what other ranks read is theirs."""

    def here(of: Parts) -> list[Block]:
        return [block for block in of.blocks if kept.has(block)]

    if not here(parts):
        return ()
    plain = lora.base(parts) if config.lora.rank else parts
    random = random_values(plain, config.run.seed, torch.device("cpu"), here(plain))
    values = checkpoint.values(plain, here(plain)) if checkpoint is not None else random
    return lora.first_values(parts, values, config.run.seed, here(parts)) if config.lora.rank else values


def model_of(config: Config, base: Path) -> Any:
    """The skeleton of the model that a configuration names."""
    folder = base / config.model.path
    try:
        return skeleton(
            AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False),
            DTYPES[config.model.compute],
        )
    except (OSError, ValueError) as exc:
        raise TrainError(
            "train/model",
            f"{folder} is no model directory: {str(exc).splitlines()[0]}",
            hint="name a folder with a config.json of a decoder-only model of the transformers library",
        ) from exc


def parts_of(config: Config, model: Any) -> Parts:
    """The skeleton taken apart, with the adapters that a configuration asks for."""
    return take_apart(lora.adapted(model, config.lora) if config.lora.rank else model, config.groups)


@dataclass(frozen=True, slots=True)
class Plan:
    """A run before it begins."""

    settings: Settings
    need: Need
    limits: dict[str, int]
    """Bytes that may be used, by tier."""
    params: int
    tokens: int
    """Of a step."""
    schedule: Schedule
    pace: Pace | None = None
    """How long a step takes; None where it was not asked for, or the model could not be played."""
    rates: Rates | None = None
    """What was measured for that."""
    why: str = ""
    """Why the state is kept there, where the planner chose."""

    @property
    def shortfall(self) -> TrainError | None:
        """Why it does not fit; None where it does."""
        try:
            check(self.need, self.limits)
        except TrainError as error:
            return error
        return None


def fitted(
    config: Config,
    base: Path,
    parts: Parts,
    length: int,
    *,
    timed: bool = False,
    team: Team | None = None,
    stay: bool = False,
) -> Plan:
    """The plan with the most slots that fits, else the smallest; `timed` measures the machine, too.

    With `stay` a GPU's memory keeps the state of as many layers as fit beside them.
    """
    if config.run.keep == "auto":
        return _placed(config, base, parts, length, team)
    settings = replace(settings_of(config, base), team=team)
    micro = len(settings.mine)
    found = play(
        parts, settings.dtype, config.run.rows, length, settings.head_tokens, micro, device=settings.device.type
    )
    tokens = config.run.rows * config.run.accumulation * length
    limits, active = limits_of(config, base, settings), active_params(parts)
    for slots in (config.memory.slots,) if config.memory.slots else (3, 2, 1):
        settings = replace(settings, slots=slots)
        needed = need(parts.blocks, settings, found, tokens=tokens, active=active, threads=torch.get_num_threads())
        if all(needed.total(tier) <= limit for tier, limit in limits.items() if tier != "disk"):
            break
    if stay and settings.store is None and team is None and settings.device.type == "cuda":

        def staying(num: int) -> Need:
            with_them = replace(settings, on_device=frozenset(range(1, num + 1)))
            return need(parts.blocks, with_them, found, tokens=tokens, active=active, threads=torch.get_num_threads())

        stays = most(parts.num_layers, lambda num: staying(num).total("device") <= limits["device"])
        if stays:
            needed, settings = staying(stays), replace(settings, on_device=frozenset(range(1, stays + 1)))
    params = sum(param.numel for block in parts.blocks for param in block.params)
    streamed = parts.num_layers - len(settings.on_device)
    schedule = make_schedule(streamed, min(settings.slots, max(1, streamed)))
    plan = Plan(settings, needed, limits, params, tokens, schedule)
    if not timed or found.work is None:
        return plan
    model = parts.model.config
    head = getattr(model, "head_dim", None) or model.hidden_size // model.num_attention_heads
    if config.memory.host_gib:  # as the run does: a new tensor then costs page faults
        give_back_at_once()
    measured = rates(settings, found.work, head, length, _nearest(base / config.run.store))
    loads, on_disk = schedule.copies - streamed, settings.store is not None
    micro, width = config.run.accumulation, settings.dtype.itemsize
    taken = pace(found.work, micro, parts.blocks, loads, measured, on_disk=on_disk, width=width)
    return replace(plan, pace=taken, rates=measured)


def _placed(config: Config, base: Path, parts: Parts, length: int, team: Team | None) -> Plan:
    """The plan with the state where it fits and costs least; a run that has begun stays where it is."""
    settled = _settled(config, base / config.run.store, team)
    if settled.run.keep != "auto":
        why = "so it is with several ranks" if team is not None else "the run has begun there"
        return replace(fitted(settled, base, parts, length, team=team, stay=True), why=why)

    def kept(keep: Keep) -> Plan:
        return fitted(_keeping(config, keep), base, parts, length, timed=True, stay=True)

    plans = {"disk": kept("disk"), "memory": kept("memory")}
    ways = {
        keep: Way(plan.shortfall is None, None if plan.pace is None else plan.pace.seconds)
        for keep, plan in plans.items()
    }
    keep, why = choose(ways["disk"], ways["memory"])
    return replace(plans[keep], why=why)


def _nearest(place: Path) -> Path:
    """The folder itself, or the first one above it that exists."""
    return next(path for path in (place, *place.absolute().parents) if path.exists())


def estimate(config: Config, base: Path, *, timed: bool = False) -> Plan:
    """What a run would take; no weights are read. `timed`: some seconds of measuring say how long a step takes."""
    parts = parts_of(config, model_of(config, base))
    return fitted(config, base, parts, length_of(config, base), timed=timed)


def limits_of(config: Config, base: Path, settings: Settings) -> dict[str, int]:
    """What may be used of each memory: the budget, else what is free now."""
    memory = config.memory
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    free = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")), 0)
    limits = {"host": int(memory.host_gib * 2**30) or free}
    if settings.device.type == "cuda":
        limits["device"] = int(memory.device_gib * 2**30) or torch.cuda.mem_get_info(settings.device)[0]
    store = base / config.run.store
    place = _nearest(store)
    held = sum(file.stat().st_blocks * 512 for file in store.rglob("*.bin")) if store.exists() else 0
    limits["disk"] = shutil.disk_usage(place).free + held
    return limits


def settings_of(config: Config, base: Path, *, run: str = "") -> Settings:
    """How the engine of a configuration works."""
    chosen = config.optimizer
    return Settings(
        device=device_of(config),
        dtype=DTYPES[config.model.compute],
        parameters=DTYPES[config.model.parameters],
        accumulation=config.run.accumulation,
        clip=chosen.clip or None,
        rule=rule_of(config),
        slots=config.memory.slots or 3,
        head_tokens=config.memory.head_tokens,
        store=base / config.run.store if config.run.keep == "disk" else None,
        snapshots=base / config.run.store if config.run.keep == "memory" else None,
        run=run,
    )


def rule_of(config: Config) -> Rule:
    """The optimizer of a configuration."""
    chosen = config.optimizer
    if chosen.kind == "sgd":
        return SGD(chosen.momentum, chosen.nesterov)
    return AdamW(chosen.lr, chosen.beta1, chosen.beta2, chosen.eps)


def device_of(config: Config) -> torch.device:
    """The device a configuration means on this machine."""
    name = config.memory.device
    if name == "auto":
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device(name)
        there = device.type == "cpu" or (device.type == "cuda" and (device.index or 0) < torch.cuda.device_count())
    except RuntimeError:
        there = False
    if not there:
        raise TrainError("train/device", f"there is no device {name} here", hint='[memory] device = "auto", or "cpu"')
    return device if device.type == "cpu" else torch.device("cuda", device.index or 0)


def flop_per_token(parts: Parts) -> float:
    """Forward and backward without the second forward; a frozen parameter needs no gradient of its own."""
    trained = {param.name for block in parts.blocks for param in block.trainable}
    return 4.0 * active_params(parts) + 2.0 * active_params(parts, trained)


def active_params(parts: Parts, among: Container[str] | None = None) -> int:
    """Parameters that one token meets in matrix products: of experts the chosen ones, of embeddings the head alone."""
    config = parts.model.config
    num = next(
        (getattr(config, k) for k in ("num_local_experts", "num_experts", "n_routed_experts") if hasattr(config, k)), 1
    )
    chosen = getattr(config, "num_experts_per_tok", None) or num or 1
    lookup = id(parts.model.get_input_embeddings().weight)
    tied = any(name.startswith("lm_head") for name in parts.ties)
    total = 0
    for name, param in parts.model.named_parameters():
        if (id(param) == lookup and not tied) or (among is not None and name not in among):
            continue
        is_expert = ".experts" in name and "shared" not in name
        total += param.numel() * chosen // num if is_expert and num else param.numel()
    return total


def _run(config: Config, parts: Parts, tokens: Tokens) -> str:
    """What must not change while a run is gone on with."""
    said = [
        parts.model.config.to_json_string(),
        config.model.compute,
        repr(config.groups),
        repr(config.optimizer),
        repr((config.run.keep, config.run.rows, config.run.accumulation, config.run.seed, config.data.order)),
        repr((tokens.arrays["input_ids"].shape, tokens.made_of)),
        repr(config.run.steps if config.optimizer.schedule != "constant" else None),
        *([repr(config.lora)] if config.lora.rank else []),
        *([config.model.parameters] if config.model.parameters != "fp32" else []),
    ]
    return hashlib.sha256("\n".join(said).encode()).hexdigest()[:32]


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


def _settled(config: Config, store: Path, team: Team | None) -> Config:
    """With where the state is kept, where that is no question any more: in a store that is there, or with ranks."""
    if config.run.keep != "auto":
        return config
    if (store / "manifest.json").exists() and any(store.glob("snapshot-*.bin")):
        return _keeping(config, "memory")
    if (store / "manifest.json").exists() or any(store.glob("shard-*/manifest.json")):
        return _keeping(config, "disk")
    return config if team is None else _keeping(config, "memory")


def _keeping(config: Config, keep: Keep) -> Config:
    return structs.replace(config, run=structs.replace(config.run, keep=keep))


def _has_begun(config: Config, store: Path, team: Team | None) -> bool:
    """Whether there is a run to go on with; of state on disk, ranks agree on who serves what."""
    if config.run.keep == "memory":
        if any(store.glob("shard-*/manifest.json")):
            raise other_run(store)
        return (store / "manifest.json").exists()
    found = survey(store, team)
    if team is not None:
        team.owners = found.owners
    return found.steps is not None


def _check_team(config: Config, team: Team) -> None:
    if config.run.accumulation < team.world:
        raise TrainError(
            "train/too-many-ranks",
            f"a step has {config.run.accumulation} micro-batches, too few for {team.world} ranks",
            hint="more [run] accumulation with fewer rows, or fewer ranks",
        )


def _there(store: Path) -> TrainError:
    hint = "go on with it: fairlead train resume CONFIG; or name another store"
    return TrainError("train/has-begun", f"{store} already holds a run", hint=hint)


def _not_there(store: Path) -> TrainError:
    hint = "begin it: fairlead train run CONFIG"
    return TrainError("train/not-begun", f"{store} holds no run to go on with", hint=hint)

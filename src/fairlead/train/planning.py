"""A run before it begins: its model, what it is asked for, and the plan that fits the budget.

Layers are cut in their modules where the budget needs it, no further than it does, and only where the bits stay those
of plain training; a run that has begun keeps its pieces. Must not know: engines, steps.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from msgspec import structs

from fairlead.errors import TrainError
from fairlead.train.activations import Activations, play
from fairlead.train.config import Config
from fairlead.train.cuts import WHOLE, Cut, another_order, held
from fairlead.train.data import length_of
from fairlead.train.layout import Block
from fairlead.train.measure import rates
from fairlead.train.memory import give_back_at_once
from fairlead.train.model import Parts, take_apart
from fairlead.train.named import DTYPES, active_params, model_of, parts_of, pieces_of
from fairlead.train.optimizer import SGD, AdamW, Rule
from fairlead.train.pace import Pace, Rates, Share, pace
from fairlead.train.placement import Keep, Way, choose, most
from fairlead.train.plan import Need, check, need
from fairlead.train.schedule import Schedule, schedule_of
from fairlead.train.settings import Settings
from fairlead.train.team import Planned, Team


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
    parts: Parts
    shape: Cut = WHOLE
    """How blocks are made."""
    cut: str = ""
    """What streams in pieces, and whether embedding and head do; why, or why not though the budget asks for it."""
    pace: Pace | None = None
    """How long a step takes; None where it was not asked for, or the model could not be played."""
    rates: Rates | None = None
    """What was measured for that."""
    why: str = ""
    """Why the state is kept there, where the planner chose."""

    @property
    def most(self) -> int:
        """Parameters of a layer that is not cut; 0: none is."""
        return self.shape.most

    @property
    def fits(self) -> bool:
        """Whether memory is there; a disk that is too small is no question of how layers stream."""
        return all(self.need.total(tier) <= limit for tier, limit in self.limits.items() if tier != "disk")

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
    whole: Parts,
    length: int,
    *,
    timed: bool = False,
    team: Team | Planned | None = None,
    stay: bool = False,
) -> Plan:
    """The plan with the most slots that fits, else the smallest; `timed` measures the machine, too.

    Layers are cut only where the budget needs it. With `stay` a GPU's memory keeps the state of as many layers as
    fit beside them.
    """
    if team is not None:
        check_team(config, team)
    if config.run.keep == "auto":
        return _placed(config, base, whole, length, team)
    settings = replace(settings_of(config, base), team=team)
    limits, tokens = limits_of(config, base, settings), config.run.rows * config.run.accumulation * length

    def sized(parts: Parts, settings: Settings) -> Plan:
        needed = _need(config, whole, parts, settings, length)
        params = sum(param.numel for block in parts.blocks for param in block.params)
        schedule = schedule_of([b for b in parts.blocks[1:] if b.index not in settings.on_device], settings.slots)
        return Plan(settings, needed, limits, params, tokens, schedule, parts)

    def narrow(parts: Parts) -> Plan:
        for slots in (config.memory.slots,) if config.memory.slots else (3, 2, 1):
            plan = sized(parts, replace(settings, slots=slots))
            if plan.fits:
                break
        return plan

    begun = held(base / config.run.store)
    plan = narrow(pieces_of(config, whole, begun))
    if begun != WHOLE:
        plan = replace(plan, shape=begun, cut=f"{_said(plan.parts)}: the run has begun so")
    elif config.memory.ends == "stream" or (config.memory.ends == "auto" and not plan.fits):
        plan = _with_ends(config, plan, narrow)
    if begun == WHOLE and not plan.fits and team is None:
        plan = _in_pieces(config, plan, narrow)
    parts = plan.parts
    if stay and settings.store is None and team is None and settings.device.type == "cuda":
        chosen = plan.settings

        def staying(num: int) -> Plan:
            layers = [block.index for block in parts.layer_blocks]
            return sized(parts, replace(chosen, on_device=frozenset(layers[:num])))

        stays = most(len(parts.layer_blocks), lambda num: staying(num).need.total("device") <= limits["device"])
        if stays:
            plan = replace(staying(stays), shape=plan.shape, cut=plan.cut)
    settings = plan.settings
    found = _played(config, parts, settings, length)
    if not timed or found.work is None:
        return plan
    model = parts.model.config
    head = getattr(model, "head_dim", None) or model.hidden_size // model.num_attention_heads
    if config.memory.host_gib:  # as the run does: a new tensor then costs page faults
        give_back_at_once()
    measured = rates(settings, found.work, head, length, _nearest(base / config.run.store))
    wanted, on_disk = plan.need, settings.store is not None
    mine = [block for block in parts.blocks if team is None or team.owns(block.index)]
    moved = wanted.read_bytes, wanted.written_bytes
    share = Share(len(settings.mine), mine, wanted.loaded, moved, 1 if team is None else team.on_node)
    taken = pace(found.work, parts.blocks, share, measured, on_disk=on_disk, width=settings.dtype.itemsize)
    return replace(plan, pace=taken, rates=measured)


def _played(config: Config, parts: Parts, settings: Settings, length: int) -> Activations:
    kind, rows = settings.device.type, config.run.rows
    return play(parts, settings.dtype, rows, length, settings.head_tokens, len(settings.mine), device=kind)


def _need(config: Config, whole: Parts, parts: Parts, settings: Settings, length: int) -> Need:
    found = _played(config, parts, settings, length)
    tokens = config.run.rows * config.run.accumulation * length
    active, threads = active_params(parts), torch.get_num_threads()
    layer = max(block.numel for block in whole.blocks)  # first values come a whole layer at a time
    return need(parts.blocks, settings, found, tokens=tokens, active=active, threads=threads, layer=layer)


def _with_ends(config: Config, plan: Plan, narrow: Callable[[Parts], Plan]) -> Plan:
    """The same with embedding and head as blocks that stream, where that helps or is asked for."""
    parts = take_apart(plan.parts.model, config.groups, ends=True)
    asked = config.memory.ends == "stream"
    if not parts.ends:
        return replace(plan, cut="embedding and head stay on the device: they are no modules of their own")
    why = another_order(parts)
    if why:
        return replace(plan, cut=f"embedding and head stay on the device: {why} is not computed as a module by itself")
    found = narrow(parts)
    over = plan.shortfall
    if not asked and _over(found) >= _over(plan):
        return replace(plan, cut="embedding and head stay on the device: that they stream saves nothing")
    reason = "so it is asked for" if asked or over is None else f"on the device {over.message}"
    return replace(found, shape=Cut(ends=True), cut=f"{_said(parts)}: {reason}")


def _in_pieces(config: Config, plan: Plan, narrow: Callable[[Parts], Plan]) -> Plan:
    """The same with layers cut as far as needed, where that helps and leaves every bit as it is."""
    whole, before = plan.parts, f"{plan.cut}\n" if plan.cut else ""
    parts, ends = whole, bool(whole.ends)
    best = replace(plan, cut=f"{before}layers stay whole: {_largest(whole)} allows no cut")
    over = plan.shortfall
    assert over is not None
    while True:
        most_now = max(block.numel for block in parts.layer_blocks) - 1
        parts = take_apart(whole.model, config.groups, most_now, ends=ends)
        if max(block.numel for block in parts.layer_blocks) > most_now:
            return (
                replace(best, cut=f"{best.cut}\n{_largest(parts)} allows no further cut") if best.shape.most else best
            )
        why = another_order(parts)
        if why:
            if best.parts is whole:
                said = f"{before}layers stay whole: with {why} by itself, gradients add in another order"
                best = replace(best, cut=said)
            continue
        found = narrow(parts)
        if _over(found) < _over(best):
            said = f"{before}{_pieces(parts)}: with whole layers {over.message}"
            best = replace(found, shape=Cut(most_now, ends), cut=said)
        elif best.parts is whole:
            best = replace(best, cut=f"{before}layers stay whole: pieces down to {_largest(parts)} need no less")
        if found.fits:
            return best


def _over(plan: Plan) -> int:
    tiers = [(plan.need.total(tier), limit) for tier, limit in plan.limits.items() if tier != "disk"]
    return sum(max(0, needed - limit) for needed, limit in tiers)


def _pieces(parts: Parts) -> str:
    return f"{len(parts.cut)} layers stream in pieces, the largest {_largest(parts)}"


def _largest(parts: Parts) -> str:
    largest = max(parts.layer_blocks, key=lambda block: block.numel)
    return f"{largest.name} of {largest.numel:,} parameters"


def _said(parts: Parts) -> str:
    names = " and ".join(block.name for block in parts.ends)
    ends = f"through a slot apart from those of layers: {names}"
    return "\n".join([*([ends] if parts.ends else []), *([_pieces(parts)] if parts.cut else [])])


def _placed(config: Config, base: Path, whole: Parts, length: int, team: Team | Planned | None) -> Plan:
    """The plan with the state where it fits and costs least; a run that has begun stays where it is."""
    kept_so = settled(config, base / config.run.store, team)
    if kept_so.run.keep != "auto":
        why = "so it is with several ranks" if team is not None else "the run has begun there"
        return replace(fitted(kept_so, base, whole, length, team=team, stay=True), why=why)

    def kept(keep: Keep) -> Plan:
        return fitted(keeping(config, keep), base, whole, length, timed=True, stay=True)

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


def estimate(config: Config, base: Path, *, timed: bool = False, ranks: int = 1, nodes: int = 1) -> Plan:
    """What a run would take; no weights are read. `timed`: some seconds of measuring say how long a step takes.

    Of several ranks, on `nodes` like this machine, it is what one takes of those that need most.
    """
    parts = parts_of(config, model_of(config, base))
    device = device_of(config)
    wire = device if device.type == "cuda" else torch.device("cpu")
    length = length_of(config, base)
    if ranks == 1:
        return fitted(config, base, parts, length, timed=timed)
    first = Planned(ranks, -(-ranks // nodes), wire)
    plan = fitted(config, base, parts, length, timed=timed, team=first)
    most_state = _most_state(plan.parts.blocks, ranks)
    if most_state == 0:
        return plan
    # the first has most micro-batches, another one more of the state
    other = fitted(config, base, parts, length, timed=timed, team=replace(first, rank=most_state))
    return max(plan, other, key=lambda one: (_over(one), sum(one.need.total(tier) for tier in one.limits)))


def _most_state(blocks: Sequence[Block], ranks: int) -> int:
    """The first of the ranks that own most of the state, as a run that begins shares blocks out."""
    held = [sum(block.numel for block in blocks[rank::ranks]) for rank in range(min(ranks, len(blocks)))]
    return held.index(max(held))


def check_team(config: Config, team: Team | Planned) -> None:
    """Raises TrainError where there are more ranks than micro-batches."""
    if config.run.accumulation < team.world:
        raise TrainError(
            "train/too-many-ranks",
            f"a step has {config.run.accumulation} micro-batches, too few for {team.world} ranks",
            hint="more [run] accumulation with fewer rows, or fewer ranks",
        )


def limits_of(config: Config, base: Path, settings: Settings) -> dict[str, int]:
    """What may be used of each memory: the budget, else what is free now; ranks of one node share that."""
    memory = config.memory
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    free = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")), 0)
    ranks = 1 if settings.team is None else settings.team.on_node
    limits = {"host": int(memory.host_gib * 2**30) or free // ranks}
    if settings.device.type == "cuda":
        limits["device"] = int(memory.device_gib * 2**30) or torch.cuda.mem_get_info(settings.device)[0]
    store = base / config.run.store
    place = _nearest(store)
    held = sum(file.stat().st_blocks * 512 for file in store.rglob("*.bin")) if store.exists() else 0
    limits["disk"] = (shutil.disk_usage(place).free + held) // ranks
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


def settled(config: Config, store: Path, team: Team | Planned | None) -> Config:
    """With where the state is kept, where that is no question any more: in a store that is there, or with ranks."""
    if config.run.keep != "auto":
        return config
    if (store / "manifest.json").exists() and any(store.glob("snapshot-*.bin")):
        return keeping(config, "memory")
    if (store / "manifest.json").exists() or any(store.glob("shard-*/manifest.json")):
        return keeping(config, "disk")
    return config if team is None else keeping(config, "memory")


def keeping(config: Config, keep: Keep) -> Config:
    """With the state kept there."""
    return structs.replace(config, run=structs.replace(config.run, keep=keep))

"""One training step after another over a model whose layers stream through the device.

    engine = Engine(parts, Settings(device, torch.bfloat16, accumulation=1))
    engine.fill(values)
    result = engine.step([batch], lr=1e-4)

Within a step: forward over all blocks, backward over them, the norm of all gradients. The optimizer's update of a block
happens between this step's end and the block's next forward, while blocks before it are computed; so the norm is known
when gradients are clipped, and nothing is ever undone. Without clipping it begins as soon as the gradients are home.

Must not know: files, configurations, where batches come from.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from fairlead.train import layer, lockstep, loss, model
from fairlead.train.disk import OnDisk
from fairlead.train.gradients import Sum, Way
from fairlead.train.homes import Home, InHost, OnDevice, Spread
from fairlead.train.lanes import Lanes, Moments, Rng
from fairlead.train.memory import arena
from fairlead.train.optimizer import AdamW, Moment, Rule, clip_factor
from fairlead.train.relay import Pile, Relay
from fairlead.train.ring import Ring
from fairlead.train.schedule import hazards, plan
from fairlead.train.shards import Shards
from fairlead.train.snapshots import Snapshots
from fairlead.train.team import Team, share
from fairlead.train.trace import Trace

STAGING = 1 << 26
"""fp32 elements that pass through device memory at once on their way to a narrower dtype: 256 MiB."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How an engine works. What it computes: `dtype`, `parameters`, `accumulation`, `clip`, `rule`, `head_tokens`."""

    device: torch.device
    dtype: torch.dtype = torch.float32
    """Of computing."""
    parameters: torch.dtype = torch.float32
    """Of parameters; with bf16 updates are rounded by chance. Moments are fp32 always."""
    accumulation: int = 1
    """Micro-batches of a step."""
    clip: float | None = None
    """The largest global norm of gradients."""
    rule: Rule = field(default_factory=AdamW)
    slots: int = 3
    """Places for weights on the device; one is computed with, the others are filled."""
    on_device: frozenset[int] = frozenset()
    """Blocks whose state stays on the device."""
    store: Path | None = None
    """The folder on disk where the state of all blocks lives; without one it ends with the engine."""
    snapshots: Path | None = None
    """Without a store: the folder where `save` writes the state, and where it is found again."""
    run: str = ""
    """What the store belongs to; one that belongs to something else is refused."""
    head_tokens: int = 0
    """Rows of logits at a time; 0: all of a micro-batch at once, to the bit as without streaming."""
    team: Team | None = None
    """The ranks among which micro-batches and state are shared; all make the same calls with the same arguments."""

    @property
    def mine(self) -> range:
        """The micro-batches that are computed here."""
        team = self.team
        return range(self.accumulation) if team is None else share(self.accumulation, team.world, team.rank)


@dataclass(frozen=True, slots=True)
class Result:
    """What a step gave."""

    step: int
    loss: float
    grad_norm: float
    """Before clipping."""
    clip: float
    """What gradients were multiplied by."""
    seconds: Mapping[str, float]
    """`forward` and `backward` as the device took them; in them `waited`: for weights, by the thread that computes;
    `update`: the CPU's work on updates of the step before, in memory."""


def seed_of(seed: int, step: int, micro: int) -> int:
    """The seed of the random generators before a micro-batch; plain training that sets the same draws the same."""
    return ((seed * 1_000_003 + step) * 1_000_003 + micro) % (1 << 63)


class Engine:
    """A model, its optimizer and the way between them."""

    def __init__(self, parts: model.Parts, settings: Settings) -> None:
        self.parts = parts
        self.settings = settings
        self.steps = 0
        """Steps done."""
        self.counts: dict[str, int] = {}
        """Updates seen, by parameter."""
        self.lanes = Lanes(settings.device)
        self.trace: Trace | None = None
        """Where what happens is written down, if anywhere."""
        self._entered: Any = None
        self.homes: list[Home] = []
        self._open_homes()
        blocks = parts.blocks
        self._streamed = [block.index for block in blocks[1:] if block.index not in settings.on_device]
        self._place = {index: place for place, index in enumerate(self._streamed)}
        self._schedule = plan(len(self._streamed), min(settings.slots, max(1, len(self._streamed))))
        assert not hazards(self._schedule), hazards(self._schedule)
        widest = max((blocks[i].numel for i in self._streamed), default=0)
        self._ring = Ring(self.lanes, self._schedule.num_slots if self._streamed else 0, widest, settings.dtype)
        self._way: Way | Relay = (
            Way(self.lanes, max(block.trained for block in blocks[1:]), self._gradient_dtype)
            if settings.team is None
            else Relay(self.lanes, settings.team, blocks)
        )
        is_summed = settings.team is None or settings.head_tokens
        self._outer = arena(blocks[0].trained if is_summed else 0, torch.float32, settings.device)
        self._resident = {i: self._weights_on_device(i) for i in sorted({0, *settings.on_device}) if i < len(blocks)}
        weights = {param.name: self._resident[0][param.span].view(param.shape) for param in blocks[0].params}
        self._shells = [model.shell(parts, weights, settings.device) for _ in settings.mine]
        self._layers = layer.StreamedLayers(
            model.templates(parts, settings.device),
            [tuple(param.local for param in block.trainable) for block in blocks[1:]],
            self,
            settings.device,
        )
        self._updater = ThreadPoolExecutor(1, "updater", self.lanes.enter_thread)
        self.lanes.aside(self._updater)
        self._updates: dict[int, Future[None]] = {}
        self._pending: dict[int, Moment] = {}
        """Updates that the device itself has still to do."""
        self._stale: set[int] = {*self._resident}
        """Blocks whose weights on the device are older than their state."""
        self._sum: Sum | Pile | None = None
        self._seen: dict[int, set[str]] = {}
        self._norms: dict[int, torch.Tensor] = {}
        self._moment: Moment | None = None
        self._draw = 0
        self._update_s = 0.0
        self.lanes.settle()

    @property
    def _gradient_dtype(self) -> torch.dtype:
        """One micro-batch's gradients are no wider than what computed them; sums of several are."""
        return self.settings.dtype if self.settings.accumulation == 1 else torch.float32

    def _open_homes(self) -> None:
        blocks, settings = self.parts.blocks, self.settings
        widest = max((block.numel for block in blocks if block.index not in settings.on_device), default=0)
        narrow = self.lanes.cuda and settings.dtype != settings.parameters
        staging = torch.zeros(min(widest, STAGING), device=settings.device) if narrow else None

        self.store: Shards | None = None
        self.snapshots: Snapshots | None = None
        team = settings.team
        held: dict[int, OnDisk] = {}
        if settings.store is not None:
            assert not settings.on_device
            self.store = Shards(
                settings.store, blocks, self.lanes, self._gradient_dtype, settings.run, settings.parameters, team
            )
            held = self.store.homes
            if self.store.manifest is not None:
                self.steps, self.counts = self.store.manifest.steps, dict(self.store.manifest.counts)

        passing = None
        if team is not None:
            assert not settings.on_device
            if team.wire.type != settings.device.type:
                most = max(block.numel for block in blocks)
                passing, staging = arena(most, settings.dtype, team.wire, pinned=True), None

        def home(index: int) -> Home:
            if team is None:
                return here(index)
            mine = here(index) if team.owns(index) else None
            return Spread(blocks[index], self.lanes, team, mine, passing, settings.parameters)

        def here(index: int) -> Home:
            if self.store is not None:
                return held[index]
            self.lanes.enter_thread()
            dtype = self._gradient_dtype if index else torch.float32
            if index in settings.on_device:
                return OnDevice(blocks[index], self.lanes, dtype, settings.parameters)
            return InHost(blocks[index], self.lanes, dtype, staging, settings.parameters)

        if settings.snapshots is not None:
            self.snapshots = Snapshots(settings.snapshots, blocks, settings.run, team, settings.parameters)
        with ThreadPoolExecutor(8) as pool:  # the kernel takes its time to find and pin pages
            self.homes = list(pool.map(home, range(len(blocks))))
        if self.snapshots is not None and self.snapshots.taken is not None:
            self.snapshots.restore(self._held())
            self.steps, self.counts = self.snapshots.taken.steps, dict(self.snapshots.taken.counts)

    def _weights_on_device(self, index: int) -> torch.Tensor:
        home = self.homes[index]
        if isinstance(home, OnDevice) and self.settings.dtype == self.settings.parameters:
            return home.p
        return torch.zeros(home.block.numel, dtype=self.settings.dtype, device=self.settings.device)

    def fill(self, values: Iterable[tuple[str, torch.Tensor]]) -> None:
        """First values of all parameters, by name; block after block needs least memory, any order will do."""
        places = {param.name: (block, param) for block in self.parts.blocks for param in block.params}
        coming: dict[int, tuple[torch.Tensor, int]] = {}
        for name, value in values:
            block, param = places.pop(name)
            flat, num = coming.pop(block.index, (None, 0))
            if flat is None:
                flat = torch.zeros(block.numel, device=value.device)
            flat[param.span].copy_(value.reshape(-1))
            if num + 1 < len(block.params):
                coming[block.index] = flat, num + 1
                continue
            self.homes[block.index].put(flat)
            self._stale |= {block.index} & self._resident.keys()
        assert not places, f"no values for {', '.join(places)}"
        if self.store is not None:
            self.store.begin()

    @property
    def filled(self) -> bool:
        """Whether store or snapshots already held a state to go on from."""
        held = self.snapshots is not None and self.snapshots.taken is not None
        return held or (self.store is not None and self.store.manifest is not None)

    def save(self, result: Result) -> None:
        """Take a snapshot after the step that gave this result."""
        assert self.snapshots is not None
        self.flush()
        self.lanes.settle()
        self.snapshots.take(self.steps, self._held(), self.counts, (result.loss, result.grad_norm))

    def _held(self) -> list[Home | None]:
        """The homes that are here; None for those of other ranks."""
        return [home.held if isinstance(home, Spread) else home for home in self.homes]

    # one step

    def step(self, batches: Sequence[Mapping[str, torch.Tensor]], *, lr: float, seed: int = 0) -> Result:
        """Forward, backward and the begin of the update with micro-batches `{"input_ids", "labels", ...}`.

        With a team, `batches` are those of all ranks; each computes its share and returns the same result.
        """
        settings = self.settings
        assert len(batches) == settings.accumulation
        targets = sum(int((batch["labels"][..., 1:] != loss.IGNORED).sum()) for batch in batches)
        present = Rng(settings.device)
        moments = Moments(self.lanes)
        moments.now("begin")
        self._norms, self._seen = {}, {}
        early = settings.clip is None and self.store is None and settings.team is None
        self._draw = seed_of(seed, self.steps, 0)
        self._moment = Moment(lr, 1.0, settings.rule, {}, self._draw) if early else None
        self._refresh(0)
        if self._streamed:
            homes = [self.homes[i] for i in self._streamed]
            self._ring.trace = self.trace
            self._ring.begin(self._schedule, homes, lambda place: self._updated(self._streamed[place]))
        try:
            outer = Sum(self._outer)
            mine = [batches[micro] for micro in settings.mine]
            losses = self._forward(
                mine, targets, outer, lambda micro: seed_of(seed, self.steps, settings.mine.start + micro)
            )
            moments.now("forward")
            torch.autograd.backward(losses)
            self._outer_gradients(outer)
        except BaseException:
            self._ring.abandon()
            raise
        present.put()
        moments.now("backward")
        return self._finish(losses, lr, moments)

    def _forward(
        self, batches: Sequence[Mapping[str, torch.Tensor]], targets: int, outer: Sum, seed: Callable[[int], int]
    ) -> list[torch.Tensor]:
        def one(micro: int) -> Callable[[lockstep.Meet], torch.Tensor]:
            def forward(meet: lockstep.Meet) -> torch.Tensor:
                shell = self._shells[micro]
                layer.hang(shell, self.parts.layers, meet, self.settings.device)
                torch.manual_seed(seed(micro))
                batch = {key: value.to(self.settings.device) for key, value in batches[micro].items()}
                if not self.settings.head_tokens:
                    return loss.whole(shell, batch, targets)
                names = {id(param): name for name, param in shell.named_parameters()}

                def add(param: torch.Tensor, gradient: torch.Tensor) -> None:
                    outer.add(self.parts.blocks[0], {names[id(param)]: gradient})

                return loss.in_pieces(shell, batch, targets, self.settings.head_tokens, add)

            return forward

        return lockstep.run([one(k) for k in range(len(batches))], self._layers.forward, self.lanes.enter_thread)

    def _outer_gradients(self, total: Sum) -> None:
        """Outside the layers each micro-batch has leaves of its own; they are summed in the order of micro-batches."""
        block = self.parts.blocks[0]
        pile = self._way.open(block) if isinstance(self._way, Relay) else None
        for shell in self._shells:
            params = {name: param for name, param in shell.named_parameters() if param.device == self.settings.device}
            gradients = {name: param.grad for name, param in params.items()}
            (pile if pile is not None and not self.settings.head_tokens else total).add(block, gradients)
            for param in params.values():
                param.grad = None
        if isinstance(self._way, Relay) and pile is not None:
            if self.settings.head_tokens:  # pieces were added as they came: this rank's are one number by now
                pile.add(
                    block,
                    {param.local: total.flat[param.span] for param in block.trainable if param.name in total.seen},
                )
            self._way.send(block, pile, self._spread(0))
            return
        self._measure(0, total)
        if isinstance(self.homes[0], OnDevice):
            self.homes[0].keep(self._outer)
            return
        packed = self.lanes.mark()
        with self.lanes.lane("out"):
            self.lanes.after(packed)
            self.homes[0].keep(self._outer)

    def _spread(self, index: int) -> Spread:
        home = self.homes[index]
        assert isinstance(home, Spread)
        return home

    def _agree(self, team: Team, losses: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """All ranks learn all norms, which gradients exist, and the losses of all micro-batches, which are returned."""
        assert isinstance(self._way, Relay)
        norms = self._way.finish()
        trained = {param.order: (block, param) for block in self.parts.blocks for param in block.trainable}
        num = max(trained, default=-1) + 1
        mine = self.settings.mine
        said = torch.zeros(2 * num + self.settings.accumulation, dtype=torch.float64)
        for order, norm in norms.items():
            said[order], said[num + order] = 1.0, float(norm)
        for micro, loss_ in zip(mine, losses, strict=True):
            said[2 * num + micro] = float(loss_.detach())
        heard = team.summed(said)
        self._norms, self._seen = {}, {block.index: set() for block in self.parts.blocks}
        for order, (block, param) in trained.items():
            if heard[order]:
                self._seen[block.index].add(param.name)
                self._norms[order] = heard[num + order].to(torch.float32).to(self.settings.device)
        return [told.to(losses[0].dtype).to(self.settings.device) for told in heard[2 * num :]]

    def _measure(self, index: int, total: Sum) -> None:
        self._norms |= total.norms(self.parts.blocks[index])
        self._seen[index] = total.seen

    def _finish(self, losses: Sequence[torch.Tensor], lr: float, moments: Moments) -> Result:
        """The norm, and with it all updates, in the order in which the next forward needs them."""
        if self.settings.team is not None:
            losses = self._agree(self.settings.team, losses)
        stacked = torch.stack([self._norms[order] for order in sorted(self._norms)])
        norm = float(torch.linalg.vector_norm(stacked, 2.0))
        factor = clip_factor(norm, self.settings.clip)
        total = float(functools.reduce(torch.add, [loss.detach() for loss in losses]))
        updating, self._update_s = self._update_s, 0.0
        self._moment = Moment(lr, factor, self.settings.rule, {}, self._draw)
        if self.store is not None:
            seen = [name for names in self._seen.values() for name in names]
            counts = {**self.counts, **{name: self.counts.get(name, 0) + 1 for name in seen}}
            self.store.commit(self.steps + 1, self._moment, counts, seen, (total, norm))
        for index in range(len(self.homes)):
            if index in self._seen:
                self._apply(index, self._moment)
        seconds = {
            "forward": moments.between("begin", "forward"),
            "backward": moments.between("forward", "backward"),
            "update": updating,
            "waited": self._ring.waited_s,
        }
        result = Result(self.steps, total, norm, factor, seconds)
        self.steps += 1
        return result

    # updates

    def _apply(self, index: int, moment: Moment) -> None:
        """Let the home of a block do its update when its turn comes."""
        counts = {}
        for name in self._seen.pop(index):
            counts[name] = self.counts[name] = self.counts.get(name, 0) + 1
        moment = replace(moment, counts=counts)
        if isinstance(self.homes[index], OnDevice):
            self._pending[index] = moment
        else:
            self._updates[index] = self._updater.submit(self._update, index, moment)
        self._stale |= {index} & self._resident.keys()

    def _update(self, index: int, moment: Moment) -> None:
        begin = time.perf_counter()
        self.homes[index].update(moment)
        if self.store is not None and self.settings.team is not None:
            self.homes[index].settle()  # now, while other ranks update theirs: a load is waited for by all
        self._update_s += time.perf_counter() - begin
        if self.trace is not None and self.store is None:  # a store's updates come with its loads
            self.trace.add("updates", f"update of block {index}", begin)

    def _updated(self, index: int) -> None:
        """Return when a block outside the device has its weights of this step."""
        update = self._updates.pop(index, None)
        if update is not None:
            update.result()

    def _refresh(self, index: int) -> None:
        """Bring the weights that stay on the device up to date, in the current lane."""
        if index not in self._stale:
            return
        self._stale.discard(index)
        home, weights = self.homes[index], self._resident[index]
        if isinstance(home, OnDevice):
            moment = self._pending.pop(index, None)
            if moment is not None:
                home.update(moment)
            if weights is not home.p:
                home.load(weights)
            return
        self._updated(index)
        computed = self.lanes.mark()
        with self.lanes.lane("in"):
            self.lanes.after(computed)
            home.load(weights)
            copied = self.lanes.mark()
        self.lanes.after(copied)

    def flush(self) -> None:
        """Return when every update is done, so that the state is that after the last step."""
        self._ring.rest()
        for index in [*self._updates]:
            self._updated(index)
        for home in self.homes:
            home.settle()
        for index in [*self._pending]:
            self._refresh(index)

    def blocks(self) -> Iterator[tuple[int, dict[str, dict[str, torch.Tensor]]]]:
        """Block after block, its state: fp32 `p`, and `m`, `v` where trained, by parameter name.

        Views that the next step changes, or copies: from a store, and of parameters that are bf16.
        """
        self.flush()
        for home in self.homes:
            arenas = home.state()
            found: dict[str, dict[str, torch.Tensor]] = {}
            for param in home.block.params:
                kinds = "pmv" if param.trainable else "p"
                found[param.name] = {kind: arenas[kind][param.span].view(param.shape).float() for kind in kinds}
            yield home.block.index, found

    def state(self) -> dict[str, dict[str, torch.Tensor]]:
        """The state of all blocks at once."""
        return {name: kinds for _, block in self.blocks() for name, kinds in block.items()}

    # what layers ask for

    def enter(self, layer: int, *, forward: bool) -> dict[str, torch.Tensor]:
        """The weights of a layer, by local name."""
        index = layer + 1
        if index in self._resident:
            if forward:
                self._refresh(index)
            flat = self._resident[index]
        else:
            flat = self._ring.enter(self._place[index], forward=forward)
        if not forward:
            self._sum = self._way.open(self.parts.blocks[index])
        if self.trace is not None:
            self._entered = self.trace.now("computing")
        return {param.local: flat[param.span].view(param.shape) for param in self.parts.blocks[index].params}

    def take(self, layer: int, micro: int, gradients: dict[str, torch.Tensor | None]) -> None:
        """Add one micro-batch's gradients."""
        assert self._sum is not None
        self._sum.add(self.parts.blocks[layer + 1], gradients)

    def leave(self, layer: int, *, forward: bool) -> None:
        """Free the slot; after backward, send the gradients home."""
        index = layer + 1
        if self.trace is not None:
            self.trace.add("computing", f"{'forward' if forward else 'backward'} of block {index}", self._entered)
        if index not in self._resident:
            self._ring.leave()
        if forward:
            return
        assert self._sum is not None
        total, self._sum = self._sum, None
        if isinstance(total, Pile):
            assert isinstance(self._way, Relay)
            self._way.send(self.parts.blocks[index], total, self._spread(index))
            return
        assert isinstance(self._way, Way)
        self._measure(index, total)
        self._way.send(self.parts.blocks[index], total, self.homes[index])
        if self._moment is not None:
            self._apply(index, self._moment)

    def close(self) -> None:
        """Give all memory back."""
        self._updater.shutdown(wait=True)
        self._ring.close()
        if isinstance(self._way, Relay):
            self._way.close()
        for home in self.homes:
            home.close()
        if self.store is not None:
            self.store.close()
        if self.snapshots is not None:
            self.snapshots.close()
        self._shells, self._resident = [], {}


def random_values(parts: model.Parts, seed: int, device: torch.device) -> Iterable[tuple[str, torch.Tensor]]:
    """First weights of every parameter, one block at a time."""
    for block in parts.blocks:
        yield from model.initial(parts, block.index, seed, device)

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
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import torch

from fairlead.errors import TrainError
from fairlead.train import layer, lockstep, loss, model, packing
from fairlead.train.homes import NOTHING, Home, Lying, OnDevice
from fairlead.train.homeward import Homeward
from fairlead.train.kept import Kept
from fairlead.train.lanes import Lanes, Moments, Rng
from fairlead.train.optimizer import Moment, clip_factor
from fairlead.train.ring import Ring
from fairlead.train.schedule import hazards, schedule_of, slot_sizes
from fairlead.train.settings import Result, Settings, seed_of
from fairlead.train.trace import Trace


class NotFinite(TrainError):
    """A step whose loss or norm is no number."""

    def __init__(self, code: str, message: str, *, hint: str, is_begun: bool) -> None:
        super().__init__(code, message, hint=hint)
        self.is_begun = is_begun
        """Whether updates have begun with it: in memory, without clipping, there is no state before it any more."""


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
        self.kept = Kept(parts.blocks, settings, self.lanes)
        self.homes, self.store = self.kept.homes, self.kept.store
        if self.kept.last is not None:
            self.steps, self.counts = self.kept.last.steps, dict(self.kept.last.counts)
        blocks = parts.blocks
        self._streamed = [block.index for block in blocks[1:] if block.index not in settings.on_device]
        self._place = {index: place for place, index in enumerate(self._streamed)}
        self._schedule = schedule_of([blocks[i] for i in self._streamed], settings.slots)
        assert not hazards(self._schedule), hazards(self._schedule)
        sizes = slot_sizes([blocks[i] for i in self._streamed], self._schedule)
        self._ring = Ring(self.lanes, sizes, settings.dtype)
        self._homeward = Homeward(parts, settings, self.lanes, self.homes)
        self._nodes = parts.nodes(settings.head_tokens)
        self._resident = {i: self._weights_on_device(i) for i in sorted({0, *settings.on_device}) if i < len(blocks)}
        weights = {param.name: self._resident[0][param.span].view(param.shape) for param in blocks[0].params}
        self._wide = {p: torch.zeros(p.numel, device=settings.device) for p in blocks[0].params if p.wide}
        """What the model keeps in fp32."""
        weights |= {param.name: flat.view(param.shape) for param, flat in self._wide.items()}
        if (head := self._homeward.head) is not None:
            flat = self._resident[head.block] if head.block in self._resident else self._ring.slots[-1]
            weights |= {param.name: flat[param.span].view(param.shape) for _, param in head.params}
        self._shells = [model.shell(parts, weights, settings.device) for _ in settings.mine]
        self._layers = layer.StreamedLayers(
            model.templates(parts, self._nodes, settings.device),
            [unit.trained for unit in self._nodes],
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
        self._moment: Moment | None = None
        self._draw = 0
        self._update_s = self._refreshed_s = 0.0
        self.lanes.settle()

    def _weights_on_device(self, index: int) -> torch.Tensor:
        home = self.homes[index]
        if isinstance(home, OnDevice) and self.settings.dtype == self.settings.parameters:
            return home.p
        return torch.zeros(home.block.numel, dtype=self.settings.dtype, device=self.settings.device)

    def fill(self, values: Iterable[tuple[str, torch.Tensor]]) -> None:
        """First values of all parameters, by name; block after block needs least memory, any order will do.

        With a team those of blocks that are another rank's may be left out.
        """
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
        for block in self.parts.blocks:
            if not block.params:
                self.homes[block.index].put(torch.zeros(0))
        without = [name for name, (block, _) in places.items() if self.kept.has(block)]
        assert not without, f"no values for {', '.join(without)}"
        if self.store is not None:
            self.store.begin()

    @property
    def filled(self) -> bool:
        """Whether store or snapshots already held a state to go on from."""
        return self.kept.last is not None

    def save(self, result: Result) -> None:
        """Take a snapshot after the step that gave this result."""
        self.flush()
        self.lanes.settle()
        self.kept.save(self.steps, self.counts, (result.loss, result.grad_norm))

    # one step

    def step(self, batches: Sequence[Mapping[str, torch.Tensor]], *, lr: float, seed: int = 0) -> Result:
        """Forward, backward and the begin of the update with micro-batches `{"input_ids", "labels", ...}`.

        With a team, `batches` are those of all ranks; each computes its share and returns the same result.
        """
        settings = self.settings
        assert len(batches) == settings.accumulation
        targets = sum(int((batch["labels"][..., 1:] != packing.IGNORED).sum()) for batch in batches)
        present = Rng(settings.device)
        moments = Moments(self.lanes)
        moments.now("begin")
        self._homeward.begin()
        early = settings.clip is None and self.store is None and settings.team is None
        self._draw = seed_of(seed, self.steps, 0)
        self._moment = Moment(lr, 1.0, settings.rule, {}, self._draw) if early else None
        begin = time.perf_counter()
        self._refresh(0)
        self._refreshed_s = time.perf_counter() - begin
        if self._streamed:
            homes = [self.homes[i] for i in self._streamed]
            self._ring.trace = self.trace
            self._ring.begin(self._schedule, homes, lambda place: self._updated(self._streamed[place]))
        try:
            mine = [batches[micro] for micro in settings.mine]
            losses = self._forward(mine, targets, lambda micro: seed_of(seed, self.steps, settings.mine.start + micro))
            moments.now("forward")
            torch.autograd.backward(losses)
            self._homeward.outer(self._shells)
        except BaseException:
            self._ring.abandon()
            raise
        present.put()
        moments.now("backward")
        return self._finish(losses, lr, moments)

    def _forward(
        self, batches: Sequence[Mapping[str, torch.Tensor]], targets: int, seed: Callable[[int], int]
    ) -> list[torch.Tensor]:
        def one(micro: int) -> Callable[[lockstep.Meet], torch.Tensor]:
            def forward(meet: lockstep.Meet) -> torch.Tensor:
                shell = self._shells[micro]
                layer.hang(shell, self.parts, self._nodes, meet, self.settings.device)
                torch.manual_seed(seed(micro))
                batch = {key: value.to(self.settings.device) for key, value in batches[micro].items()}
                if not self.settings.head_tokens:
                    return loss.whole(shell, batch, targets)
                names = {id(param): name for name, param in shell.named_parameters()}

                def add(param: torch.Tensor, gradient: torch.Tensor) -> None:
                    self._homeward.piece(names[id(param)], gradient)

                head = functools.partial(self._head_comes, micro)
                return loss.in_pieces(shell, batch, targets, self.settings.head_tokens, add, head)

            return forward

        losses = lockstep.run([one(k) for k in range(len(batches))], self._together, self.lanes.enter_thread)
        if (head := self._homeward.head) is not None:  # its loss is taken, and its gradients are there
            self._leave(head, forward=True)
            self._enter(head, forward=False)
            self._leave(head, forward=False)
        return losses

    def _together(self, calls: list[layer.Call]) -> list[Any]:
        """A layer of all micro-batches, or the embedding or the head."""
        self._homeward.comes(self._nodes[calls[0].layer], [(call.args, call.kwargs) for call in calls])
        return self._layers.forward(calls)

    def _head_comes(self, micro: int) -> None:
        """Return when the weights of a head that streams are there; they stay for all micro-batches."""
        if (head := self._homeward.head) is not None and not micro:
            self._enter(head, forward=True)
            self._homeward.open(head)

    def _finish(self, losses: Sequence[torch.Tensor], lr: float, moments: Moments) -> Result:
        """The norm, and with it all updates, in the order in which the next forward needs them."""
        losses = self._homeward.agree(losses)
        norms = self._homeward.norms
        stacked = torch.stack([norms[order] for order in sorted(norms)])
        norm = float(torch.linalg.vector_norm(stacked, 2.0))
        factor = clip_factor(norm, self.settings.clip)
        total = float(functools.reduce(torch.add, [loss.detach() for loss in losses]))
        if not (math.isfinite(total) and math.isfinite(norm)):
            raise self._not_finite(total, norm)
        updating, self._update_s = self._update_s, 0.0
        self._moment = Moment(lr, factor, self.settings.rule, {}, self._draw)
        begin = time.perf_counter()
        if self.store is not None:
            seen = [name for names in self._homeward.seen.values() for name in names]
            counts = {**self.counts, **{name: self.counts.get(name, 0) + 1 for name in seen}}
            self.store.commit(self.steps + 1, self._moment, counts, seen, (total, norm))
        commit_s = time.perf_counter() - begin
        for index in range(len(self.homes)):
            if index in self._homeward.seen:
                self._apply(index, self._moment)
        seconds = {
            "forward": moments.between("begin", "forward"),
            "backward": moments.between("forward", "backward"),
            "update": updating,
            "loading": self._ring.loaded_s + self._refreshed_s,
            "writing": self._homeward.waited_s + commit_s,
            "waited": self._ring.waited_s + self._refreshed_s + self._homeward.waited_s,
        }
        result = Result(self.steps, total, norm, factor, seconds)
        self.steps += 1
        return result

    def _not_finite(self, total: float, norm: float) -> NotFinite:
        return NotFinite(
            "train/not-finite",
            f"step {self.steps} gives a loss of {total:.4g} and gradients of norm {norm:.4g}: it is not counted",
            hint="export the state before it (fairlead train export CONFIG FOLDER), and begin from that with a lower "
            "lr, a longer warmup or other rows",
            is_begun=self._moment is not None,
        )

    # updates

    def _apply(self, index: int, moment: Moment) -> None:
        """Let the home of a block do its update when its turn comes."""
        counts = {}
        for name in self._homeward.seen.pop(index):
            counts[name] = self.counts[name] = self.counts.get(name, 0) + 1
        moment = replace(moment, counts=counts)
        if isinstance(self.homes[index], OnDevice):
            self._pending[index] = moment
        else:
            self._updates[index] = self._updater.submit(self._update, index, moment, self._lying(index))
        self._stale |= {index} & self._resident.keys()

    def _lying(self, index: int) -> Lying:
        """What a step has left of a block in host memory, until the next one comes to it."""
        if self.settings.device.type != "cpu":
            return NOTHING
        weights = None
        if self.settings.dtype == self.settings.parameters:
            resident = self._resident.get(index)
            weights = self._ring.lying(self._place[index]) if resident is None else resident
        return Lying(weights, self._homeward.lying(index))

    def _update(self, index: int, moment: Moment, lying: Lying) -> None:
        begin = time.perf_counter()
        self.homes[index].update(moment, lying)
        is_now = self.store is None or self.settings.team is not None  # from a store of one host, with the next load
        if is_now:
            self.homes[index].settle()  # while other ranks update theirs: a load is waited for by all
        self._update_s += time.perf_counter() - begin
        if self.trace is not None and is_now:
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
                self._load(index, home)
            return
        self._updated(index)
        computed = self.lanes.mark()
        with self.lanes.lane("in"):
            self.lanes.after(computed)
            self._load(index, home)
            copied = self.lanes.mark()
        self.lanes.after(copied)

    def _load(self, index: int, home: Home) -> None:
        home.load(self._resident[index])
        for param, flat in self._wide.items() if not index else ():
            flat.copy_(home.read(param.span))

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
        return self._enter(self._nodes[layer], forward=forward)

    def take(self, layer: int, micro: int, gradients: dict[str, torch.Tensor | None]) -> None:
        """Add one micro-batch's gradients."""
        self._homeward.take(self._nodes[layer], gradients)

    def leave(self, layer: int, *, forward: bool) -> None:
        """Free the slot; after backward, send the gradients home."""
        self._leave(self._nodes[layer], forward=forward)

    def _enter(self, unit: model.Unit, *, forward: bool) -> dict[str, torch.Tensor]:
        index = unit.block
        if index in self._resident:
            if forward:
                self._refresh(index)
            flat = self._resident[index]
        else:
            flat = self._ring.enter(self._place[index], forward=forward)
        if not forward:
            self._homeward.open(unit)
        if self.trace is not None:
            self._entered = self.trace.now("computing")
        return {local: flat[param.span].view(param.shape) for local, param in unit.params}

    def _leave(self, unit: model.Unit, *, forward: bool) -> None:
        index = unit.block
        if self.trace is not None:
            self.trace.add("computing", f"{'forward' if forward else 'backward'} of block {index}", self._entered)
        if index not in self._resident:
            self._ring.leave()
        if not forward and self._homeward.send(unit) and self._moment is not None:
            self._apply(index, self._moment)

    def close(self) -> None:
        """Give all memory back."""
        self._updater.shutdown(wait=True)
        self._ring.close()
        self._homeward.close()
        self.kept.close()
        self._shells, self._resident, self._wide = [], {}, {}

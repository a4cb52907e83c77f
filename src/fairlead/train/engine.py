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
from dataclasses import replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from fairlead.train import layer, lockstep, loss, model
from fairlead.train.gradients import Rows, Sum, Way
from fairlead.train.homes import Home, OnDevice, Spread
from fairlead.train.kept import Kept
from fairlead.train.lanes import Lanes, Moments, Rng
from fairlead.train.layout import Block
from fairlead.train.memory import arena
from fairlead.train.optimizer import Moment, clip_factor
from fairlead.train.relay import Pile, Relay
from fairlead.train.ring import Ring
from fairlead.train.schedule import hazards, schedule_of, slot_sizes
from fairlead.train.settings import Result, Settings, seed_of
from fairlead.train.trace import Trace


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
        self._way: Way | Relay = (
            Way(self.lanes, blocks, settings.gradients)
            if settings.ranks is None
            else Relay(self.lanes, settings.ranks, blocks)
        )
        is_summed = settings.team is None or settings.head_tokens
        self._outer = arena(blocks[0].trained if is_summed else 0, torch.float32, settings.device)
        self._nodes = parts.nodes(settings.head_tokens)
        self._head = parts.units[-1] if settings.head_tokens and parts.has_head else None
        """A head that streams and computes its loss in pieces, where it is no node."""
        ends = [blocks[self._head.block].trained] if self._head is not None and settings.team is not None else [0]
        self._pieces = arena(max(ends), torch.float32, settings.device)
        self._resident = {i: self._weights_on_device(i) for i in sorted({0, *settings.on_device}) if i < len(blocks)}
        weights = {param.name: self._resident[0][param.span].view(param.shape) for param in blocks[0].params}
        self._wide = {p: torch.zeros(p.numel, device=settings.device) for p in blocks[0].params if p.wide}
        """What the model keeps in fp32."""
        weights |= {param.name: flat.view(param.shape) for param, flat in self._wide.items()}
        if self._head is not None:
            index = self._head.block
            flat = self._resident[index] if index in self._resident else self._ring.slots[-1]
            weights |= {param.name: flat[param.span].view(param.shape) for _, param in self._head.params}
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
        self._sums: dict[int, Sum | Pile] = {}
        """Of blocks that go back."""
        self._rows: Rows | None = None
        """Of the weight that embedding and head share."""
        self._seen: dict[int, set[str]] = {}
        self._norms: dict[int, torch.Tensor] = {}
        self._moment: Moment | None = None
        self._draw = 0
        self._update_s = 0.0
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
        targets = sum(int((batch["labels"][..., 1:] != loss.IGNORED).sum()) for batch in batches)
        present = Rng(settings.device)
        moments = Moments(self.lanes)
        moments.now("begin")
        self._norms, self._seen, self._sums, self._rows = {}, {}, {}, None
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
                layer.hang(shell, self.parts, self._nodes, meet, self.settings.device)
                torch.manual_seed(seed(micro))
                batch = {key: value.to(self.settings.device) for key, value in batches[micro].items()}
                if not self.settings.head_tokens:
                    return loss.whole(shell, batch, targets)
                names = {id(param): name for name, param in shell.named_parameters()}

                def add(param: torch.Tensor, gradient: torch.Tensor) -> None:
                    self._add_piece(outer, names[id(param)], gradient)

                head = functools.partial(self._head_comes, micro)
                return loss.in_pieces(shell, batch, targets, self.settings.head_tokens, add, head)

            return forward

        losses = lockstep.run([one(k) for k in range(len(batches))], self._together, self.lanes.enter_thread)
        if self._head is not None:  # whose loss is taken, and whose gradients are there
            self._leave(self._head, forward=True)
            self._enter(self._head, forward=False)
            self._leave(self._head, forward=False)
        return losses

    def _together(self, calls: list[layer.Call]) -> list[Any]:
        """A layer of all micro-batches, or the embedding or the head."""
        unit = self._nodes[calls[0].layer]
        block = self.parts.blocks[unit.block]
        if block.role == "both" and block.trained and self._rows is None and self._head is None:
            leaves = pytree.tree_leaves([(call.args, call.kwargs) for call in calls])
            ids = [leaf.reshape(-1) for leaf in leaves if isinstance(leaf, torch.Tensor)]
            self._rows = Rows(torch.cat(ids).unique() if isinstance(self._way, Way) else slice(None))
        return self._layers.forward(calls)

    def _head_comes(self, micro: int) -> None:
        """Return when the weights of a head that streams are there; they stay for all micro-batches."""
        if self._head is not None and not micro:
            self._enter(self._head, forward=True)
            self._sums[self._head.block] = self._open(self.parts.blocks[self._head.block])

    def _add_piece(self, outer: Sum, name: str, gradient: torch.Tensor) -> None:
        """Gradients of a piece of the loss, by name in the shell."""
        for local, param in self._head.params if self._head is not None else ():
            assert self._head is not None
            if name == f"{self._head.name}.{local}":
                self._sums[self._head.block].add(self.parts.blocks[self._head.block], {param.local: gradient})
                return
        outer.add(self.parts.blocks[0], {name: gradient})

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

    def _measure(self, index: int, total: Sum) -> None:
        self._norms |= total.norms(self.parts.blocks[index])
        self._seen[index] = total.seen

    def _finish(self, losses: Sequence[torch.Tensor], lr: float, moments: Moments) -> Result:
        """The norm, and with it all updates, in the order in which the next forward needs them."""
        if isinstance(self._way, Relay):
            self._norms, self._seen, losses = self._way.agree(self.parts.blocks, losses, self.settings)
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
            "loading": self._ring.loaded_s,
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
        unit = self._nodes[layer]
        block, total = self.parts.blocks[unit.block], self._sums[unit.block]
        found = {param.local: gradients.get(local) for local, param in unit.params}
        if block.role != "both" or self._rows is None:
            total.add(block, found)
            return
        (gradient,) = found.values()
        assert gradient is not None
        if unit is not self._nodes[-1]:
            self._rows.join(gradient)
            return
        self._rows.wait(gradient)
        if isinstance(total, Sum):
            total.add(block, found)

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
        if not forward and index not in self._sums:
            self._sums[index] = self._open(self.parts.blocks[index])
        if self.trace is not None:
            self._entered = self.trace.now("computing")
        return {local: flat[param.span].view(param.shape) for local, param in unit.params}

    def _open(self, block: Block) -> Sum | Pile:
        """A sum to fill; the pieces of a head's loss are one number a rank before they go on."""
        if self._head is not None and block.index == self._head.block and isinstance(self._way, Relay):
            return Sum(self._pieces)
        return self._way.open(block)

    def _leave(self, unit: model.Unit, *, forward: bool) -> None:
        index, block = unit.block, self.parts.blocks[unit.block]
        if self.trace is not None:
            self.trace.add("computing", f"{'forward' if forward else 'backward'} of block {index}", self._entered)
        if index not in self._resident:
            self._ring.leave()
        if forward or (block.role == "both" and unit is self.parts.units[-1]):  # the embedding's are still to come
            return
        total = self._sums.pop(index)
        if block.role == "both" and self._rows is not None:
            (param,) = block.params
            if isinstance(total, Sum):
                self._rows.put(total.flat[param.span].view(param.shape))
            else:
                for gradient in self._rows.whole:
                    total.add(block, {param.local: gradient})
            self._rows = None
        if isinstance(self._way, Relay):
            if isinstance(total, Sum):
                pile = self._way.open(block)
                pile.add(block, {p.local: total.flat[p.span] for p in block.trainable if p.name in total.seen})
                total = pile
            self._way.send(block, total, self._spread(index))
            return
        assert isinstance(total, Sum)
        self._measure(index, total)
        self._way.send(block, total, self.homes[index])
        if self._moment is not None:
            self._apply(index, self._moment)

    def close(self) -> None:
        """Give all memory back."""
        self._updater.shutdown(wait=True)
        self._ring.close()
        if isinstance(self._way, Relay):
            self._way.close()
        self.kept.close()
        self._shells, self._resident, self._wide = [], {}, {}

"""A decoder layer of several micro-batches as one node of autograd, whose weights are there only while it is computed.

Forward computes a graph that holds no tensors, and keeps only what came in. Backward binds the weights again, and asks
autograd for the gradients: the first tensor that is missed lets forward be computed again, from the same state of the
random generators and as far as tensors are missed, so not to its last product. Every tensor that goes in or comes out,
however deep in tuples and dicts, takes part; so does what the library's hooks record on the way, such as router logits.

Must not know: slots, copies, optimizers; it asks `Visits` for weights and hands gradients over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn
from torch.func import functional_call
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint
from transformers.utils import output_capturing

from fairlead.train.lanes import Rng
from fairlead.train.model import Parts, Unit

_SKIPPED = ("hidden_states",)  # recorded by hooks on the layer itself, which run in the shell


class Visits(Protocol):
    """What a layer is computed with."""

    def enter(self, layer: int, *, forward: bool) -> dict[str, torch.Tensor]:
        """Its weights by local name; they stay until `leave`."""

    def leave(self, layer: int, *, forward: bool) -> None:
        """Its weights are not needed any more."""

    def take(self, layer: int, micro: int, gradients: dict[str, torch.Tensor | None]) -> None:
        """The gradients of one micro-batch, of trained parameters by local name; None where nothing depends on one."""


@dataclass(slots=True)
class Call:
    """One micro-batch comes to a layer."""

    layer: int
    args: Any
    kwargs: Any
    own: dict[str, torch.Tensor]
    """Its parameters that stay on the device, by local name."""
    rng: Rng
    collector: dict[str, Any] | None


@dataclass(slots=True)
class _Saved:
    """How to put a call together again."""

    spec: Any
    leaves: list[Any]
    places: list[int]
    """Which leaves are tensors."""
    rng: Rng
    keys: tuple[str, ...]


class LayerOutput:
    """What a layer gave for one micro-batch: its output, and what hooks recorded."""

    def __init__(self, spec: Any, leaves: list[Any], places: list[int]) -> None:
        self.spec = spec
        self.leaves = leaves
        self.places = places

    def rebuild(self, tensors: Sequence[torch.Tensor]) -> tuple[Any, dict[str, list[Any]]]:
        """Output and records with these tensors."""
        leaves = list(self.leaves)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        output, recorded = pytree.tree_unflatten(leaves, self.spec)
        return output, recorded


class StreamedLayers:
    """All decoder layers of a model, computed for all micro-batches of a step at once."""

    def __init__(
        self, templates: Sequence[Any], trained: Sequence[tuple[str, ...]], visits: Visits, device: torch.device
    ) -> None:
        self.templates = templates
        self.trained = trained
        """By layer, the local names of what is trained."""
        self.visits = visits
        self.device = device
        self.anchor = torch.zeros((), device=device, requires_grad=True)
        """So that there is a node to go back through even where nothing that comes in has a gradient."""
        self.chain = self.anchor
        """What the node before gave the next: backward visits them in the order of forward turned round, also where
        two do not depend on each other."""

    def forward(self, calls: list[Call]) -> list[Any]:
        """The outputs of one layer for each micro-batch; each call's `rng` is moved on."""
        layer = calls[0].layer
        assert all(call.layer == layer for call in calls)
        saved: list[_Saved] = []
        tensors: list[torch.Tensor] = []
        for call in calls:
            leaves, spec = pytree.tree_flatten((call.args, call.kwargs, call.own))
            places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
            tensors += [leaves[place] for place in places]
            kept = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
            keys = tuple(key for key in call.collector or {} if not key.startswith("_") and key not in _SKIPPED)
            saved.append(_Saved(spec, kept, places, call.rng, keys))
        outcomes: list[LayerOutput] = []
        ends: list[Rng] = []
        if layer == 0:
            self.chain = self.anchor
        self.chain, *outputs = _Layer.apply(self, layer, saved, outcomes, ends, self.chain, *tensors)
        if layer + 1 == len(self.templates):
            self.chain = self.anchor  # what this step kept ends with the step
        results = []
        for call, outcome, end in zip(calls, outcomes, ends, strict=True):
            num = len(outcome.places)
            output, recorded = outcome.rebuild(outputs[:num])
            outputs = outputs[num:]
            for key, items in recorded.items():
                assert call.collector is not None
                call.collector[key].extend(items)
            call.rng = end
            results.append(output)
        return results

    def compute(
        self, layer: int, weights: dict[str, torch.Tensor], saved: _Saved, tensors: Sequence[torch.Tensor]
    ) -> tuple[Any, dict[str, list[Any]]]:
        """The layer's own forward with these weights."""
        leaves = list(saved.leaves)
        for place, tensor in zip(saved.places, tensors, strict=True):
            leaves[place] = tensor
        args, kwargs, own = pytree.tree_unflatten(leaves, saved.spec)
        recorded: dict[str, list[Any]] = {key: [] for key in saved.keys}
        collector = output_capturing._active_collector  # records of a layer must pass through its node
        token = collector.set(recorded or None)
        try:
            output = functional_call(self.templates[layer], weights | own, args, kwargs)
        finally:
            collector.reset(token)
        return output, recorded


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        layers: StreamedLayers,
        layer: int,
        saved: list[_Saved],
        outcomes: list[LayerOutput],
        ends: list[Rng],
        anchor: torch.Tensor,  # noqa: ARG004 - what makes this a node
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.layers, ctx.layer, ctx.saved = layers, layer, saved
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        weights = layers.visits.enter(layer, forward=True)
        needed = ctx.needs_input_grad[6:]
        ctx.inner = []
        found: list[torch.Tensor] = []
        found_in: list[torch.Tensor] = []
        for one, inputs in _by_call(saved, tensors):
            inner = _Inner(layers, layer, one, inputs, needed[len(found_in) : len(found_in) + len(inputs)], weights)
            one.rng.put()
            leaves, spec = inner.forward()
            ends.append(Rng(layers.device))
            places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
            found += [leaves[place].detach() for place in places]
            outcomes.append(LayerOutput(spec, [None if isinstance(v, torch.Tensor) else v for v in leaves], places))
            ctx.inner.append(inner)
            found_in += inputs
        layers.visits.leave(layer, forward=True)
        ctx.mark_non_differentiable(*[out for out in found if not out.is_floating_point()])
        return (torch.zeros((), device=layers.device), *found)

    @staticmethod
    def backward(ctx: Any, _chain: torch.Tensor | None, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        layers, layer = ctx.layers, ctx.layer
        present = Rng(layers.device)
        weights = layers.visits.enter(layer, forward=False)
        needed = ctx.needs_input_grad[6:]
        assert len(ctx.saved_tensors) == len(needed)  # asks, too, whether they are what came
        back: list[torch.Tensor | None] = []
        at = 0
        for micro, inner in enumerate(ctx.inner):
            num = len(inner.edges)
            inner.saved.rng.put()
            inputs, found = inner.backward(weights, grads[at : at + num])
            at += num
            back += inputs
            layers.visits.take(layer, micro, found)
            del found  # as large as the layer: the next micro-batch makes its own
        ctx.inner = []
        layers.visits.leave(layer, forward=False)
        present.put()
        return (None, None, None, None, None, None, *back)


class _Inner:
    """The graph of one micro-batch in one layer, whose tensors are computed again when they are asked for."""

    def __init__(
        self,
        layers: StreamedLayers,
        layer: int,
        saved: _Saved,
        inputs: Sequence[torch.Tensor],
        needed: Sequence[bool],
        weights: dict[str, torch.Tensor],
    ) -> None:
        self.layers, self.layer, self.saved = layers, layer, saved
        self.trained = layers.trained[layer]
        self.inputs = [
            tensor.detach().requires_grad_(need) if tensor.is_floating_point() else tensor
            for tensor, need in zip(inputs, needed, strict=True)
        ]
        self.bound: dict[str, torch.Tensor] = {}
        """The weights while they are here."""
        self._bind(weights)
        self.leaves = [self.bound[name] for name in self.trained]
        """What gradients of weights are asked of; the memory behind them is another layer's by then."""
        self.edges: list[Any] = []
        """Where each output's gradient goes in; None where none does."""

    def _bind(self, weights: dict[str, torch.Tensor]) -> None:
        self.bound |= {name: weight.detach().requires_grad_(name in self.trained) for name, weight in weights.items()}

    def forward(self) -> tuple[list[Any], Any]:
        """The leaves of what the layer gives, and their structure."""
        spec: Any = None
        layers, layer, bound, saved = self.layers, self.layer, self.bound, self.saved  # the graph must not hold `self`

        def run(*tensors: torch.Tensor) -> tuple[Any, ...]:
            nonlocal spec
            leaves, spec = pytree.tree_flatten(layers.compute(layer, bound, saved, tensors))
            return tuple(leaves)

        with torch.enable_grad():
            leaves = list(checkpoint(run, *self.inputs, use_reentrant=False, preserve_rng_state=False))
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor):
                self.edges.append(torch.autograd.graph.get_gradient_edge(leaf) if leaf.requires_grad else None)
        self.bound.clear()
        return leaves, spec

    def backward(
        self, weights: dict[str, torch.Tensor], grads: Sequence[torch.Tensor | None]
    ) -> tuple[list[torch.Tensor | None], dict[str, torch.Tensor | None]]:
        """Gradients of what came in, and of the trained weights."""
        self._bind(weights)
        pairs = [(edge, grad) for edge, grad in zip(self.edges, grads, strict=True) if edge and grad is not None]
        wanted = [tensor for tensor in self.inputs if tensor.requires_grad]
        sought = [*wanted, *self.leaves]
        found = iter(
            torch.autograd.grad([edge for edge, _ in pairs], sought, [grad for _, grad in pairs], allow_unused=True)
            if pairs and sought
            else [None] * len(sought)
        )
        inputs = [next(found) if tensor.requires_grad else None for tensor in self.inputs]
        self.bound.clear()
        return inputs, dict(zip(self.trained, found, strict=True))


def _by_call(saved: Sequence[_Saved], tensors: Sequence[torch.Tensor]) -> list[tuple[_Saved, Sequence[torch.Tensor]]]:
    """Each call with its share of the tensors."""
    pairs = []
    at = 0
    for one in saved:
        pairs.append((one, tensors[at : at + len(one.places)]))
        at += len(one.places)
    return pairs


def hang(shell: Any, parts: Parts, nodes: Sequence[Unit], come: Callable[[Call], Any], device: torch.device) -> None:
    """Let the layers of a shell, or the pieces of those that are cut, bring their calls to `come` instead of computing;
    so do embedding and head among `nodes`.

    What is left of a cut layer, as its norms, keeps what it got and computes again in backward, too.
    """
    units = [unit.name for unit in nodes]
    ends = {unit.name for unit in nodes if parts.blocks[unit.block].role}
    outer = {param.name: shell.get_parameter(param.name) for param in parts.blocks[0].params}
    for index, name in enumerate(units):
        own = {kept[len(name) + 1 :]: leaf for kept, leaf in outer.items() if kept.startswith(f"{name}.")}
        shell.get_submodule(name).forward = _Doorway(index, own, come, device)
        owner, _, last = name.rpartition(".")
        around = shell.get_submodule(owner)
        if isinstance(around, nn.ModuleList) or name in ends:
            continue
        for below, part in around.named_children():
            if below != last and not any(f"{unit}.".startswith(f"{owner}.{below}.") for unit in units):
                part.forward = _Again(type(part).forward.__get__(part))


class _Again:
    """Computes, keeps what came in, and computes again in backward. Draws nothing random."""

    def __init__(self, forward: Callable[..., Any]) -> None:
        self.forward = forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return checkpoint(self.forward, *args, use_reentrant=False, preserve_rng_state=True, **kwargs)


class _Doorway:
    def __init__(
        self, index: int, own: dict[str, torch.Tensor], come: Callable[[Call], Any], device: torch.device
    ) -> None:
        self.index = index
        self.own = own
        self.come = come
        self.device = device

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        collector = output_capturing._active_collector.get()
        call = Call(self.index, args, kwargs, self.own, Rng(self.device), collector)
        output = self.come(call)
        call.rng.put()
        return output

"""A Hugging Face model taken apart for streaming: its own classes and its own forward; no decoder layer holds weights.

    shells     the whole model, once for each micro-batch of a step, with parameters of its own outside the layers
    templates  the decoder layers on the meta device; weights are bound to one for the moment of its use
    blocks     block 0 is everything outside the layers, block i + 1 is layer i; of a layer that is cut, the modules
               below it with matrices are blocks of their own, in the order of the module tree, and what is left,
               as norms, is outside; so is what a model keeps in fp32 while it computes in bf16, as routers of experts.
               With `ends` the embedding is a block before the layers, and a head with a weight of its own one after
    units      the modules that are computed with streamed weights, in the order of forward; a block each, but where
               embedding and head are one weight, which are two units of one block

Buffers are real: they are small, and forward reads them.

Must not know: where weights come from, the order of computing.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils import output_capturing

from fairlead.errors import TrainError
from fairlead.train.layout import ALIGN, Block, Named, Param, ParamGroup, Role, block


@dataclass(frozen=True, slots=True)
class Unit:
    """A module that is computed with streamed weights."""

    name: str
    """Its path in the model."""
    block: int
    """Where they are."""
    params: tuple[tuple[str, Param], ...]
    """Each by its name seen from the module."""

    @property
    def trained(self) -> tuple[str, ...]:
        """Names of those that are trained, seen from the module."""
        return tuple(local for local, param in self.params if param.trainable)


@dataclass(frozen=True, slots=True)
class Parts:
    """A model taken apart."""

    model: Any
    """The skeleton: every parameter on the meta device."""
    layers: str
    """The path of its list of decoder layers."""
    blocks: tuple[Block, ...]
    ties: dict[str, str]
    """Other names of parameters, by name: `lm_head.weight` -> `model.embed_tokens.weight`."""
    units: tuple[Unit, ...]

    @property
    def num_layers(self) -> int:
        """What streams: decoder layers, each piece of one that is cut, embedding and head where they do."""
        return len(self.blocks) - 1

    @property
    def layer_blocks(self) -> tuple[Block, ...]:
        """Those of layers and their pieces."""
        return tuple(block for block in self.blocks[1:] if not block.role)

    @property
    def ends(self) -> tuple[Block, ...]:
        """Those of the embedding and the head, where they stream."""
        return tuple(block for block in self.blocks if block.role)

    def nodes(self, head_tokens: int) -> tuple[Unit, ...]:
        """The units that are nodes of autograd; a head that streams is none where its loss is taken in pieces."""
        return self.units[:-1] if head_tokens and self.has_head else self.units

    @property
    def has_head(self) -> bool:
        """Whether the last unit is the head."""
        return any(block.role in ("head", "both") for block in self.blocks)

    @property
    def cut(self) -> tuple[str, ...]:
        """The decoder layers that stream in pieces."""
        whole = {block.name for block in self.layer_blocks}
        names = (f"{self.layers}.{index}" for index in range(len(self.model.get_submodule(self.layers))))
        return tuple(name for name in names if name not in whole)


def skeleton(config: Any, dtype: torch.dtype) -> Any:
    """The model of a config with all parameters on the meta device and real buffers, in training mode."""
    with on_meta():
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.config.use_cache = False
    output_capturing.install_all_output_capturing_hooks(model)
    return model.train()


@contextlib.contextmanager
def on_meta() -> Iterator[None]:
    """Parameters made inside lose their memory at once; buffers keep theirs."""
    register = nn.Module.register_parameter

    def register_there(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        if param is not None and param.device.type != "meta":
            param = nn.Parameter(param.to("meta"), requires_grad=param.requires_grad)
        register(self, name, param)

    nn.Module.register_parameter = register_there
    try:
        yield
    finally:
        nn.Module.register_parameter = register


def take_apart(model: Any, groups: Sequence[ParamGroup], most: int = 0, *, ends: bool = False) -> Parts:
    """Find the decoder layers and give every parameter its block and place.

    Layers of more than `most` parameters are cut as far as needed and as their modules allow; 0: none is. With `ends`
    the embedding and the head stream, too, if the model has them as modules of their own.
    """
    path = _layers(model)
    if getattr(model.config, "layerdrop", 0.0):
        raise TrainError(
            "train/no-layers",
            f"{type(model).__name__} leaves out layers at random (layerdrop {model.config.layerdrop}): none may be",
            hint='"layerdrop": 0.0 in config.json',
        )
    order = {name: place for place, (name, _) in enumerate(model.named_parameters())}
    first = {id(param): name for name, param in model.named_parameters()}
    ties = {
        name: first[id(param)]
        for name, param in model.named_parameters(remove_duplicate=False)
        if first[id(param)] != name
    }
    layers = [(f"{path}.{index}", layer) for index, layer in enumerate(model.get_submodule(path))]
    outer = _ends(model, ties) if ends else {}
    units = [
        *[name for name, role in outer.items() if role in ("embedding", "both")],
        *[name for start, layer in layers for name in _units(start, layer, most)],
        *[name for name, role in outer.items() if role == "head"],
    ]
    by_block: dict[int, list[Named]] = {0: []}
    computed = model.get_input_embeddings().weight.dtype
    for name, param in model.named_parameters():
        wide = param.dtype == torch.float32 != computed
        index, local = (0, name) if wide else _place(name, units)
        named = Named(name, local, tuple(param.shape), order[name], param.requires_grad, wide)
        by_block.setdefault(index, []).append(named)
    for other, name in ties.items():
        if any(one.startswith(f"{path}.") for one in (other, name)):
            raise TrainError(
                "train/shared-layers",
                f"{other} and {name} are one parameter; a layer that shares weights cannot be streamed by itself",
                hint="choose a model whose decoder layers have weights of their own",
            )
    names = ["outside the layers", *units]
    blocks = tuple(block(i, n, by_block.get(i, []), groups, outer.get(n, "")) for i, n in enumerate(names))
    again = [_head(model)] if "both" in outer.values() else []
    places = {param.name: (one.index, param) for one in blocks[1:] for param in one.params}
    return Parts(model, path, blocks, ties, tuple(_unit(model, name, places, ties) for name in [*units, *again]))


def _ends(model: Any, ties: dict[str, str]) -> dict[str, Role]:
    """The names of the embedding and of the head, and what they are; of those that can stream."""
    names = {id(module): name for name, module in model.named_modules()}
    embedding, head = model.get_input_embeddings(), _head(model)
    found: dict[str, Role] = {}
    is_lookup = isinstance(embedding, nn.Embedding)
    first = names.get(id(embedding), "")
    shared = {other: name for other, name in ties.items() if head and other.startswith(f"{head}.")}
    if shared:  # with an adapter at the head, what it shares is not all that it is made of
        return {first: "both"} if is_lookup and shared == {f"{head}.weight": f"{first}.weight"} else {}
    if is_lookup and first:
        found[first] = "embedding"
    if head:
        found[head] = "head"
    return found


def _head(model: Any) -> str:
    """The name of the module that makes logits; empty where there is none."""
    head = model.get_output_embeddings()
    return next((name for name, module in model.named_modules() if module is head), "")


def _unit(model: Any, name: str, places: dict[str, tuple[int, Param]], ties: dict[str, str]) -> Unit:
    """A module with those of its parameters that stream, all of one block."""
    inside = [local for local, _ in model.get_submodule(name).named_parameters(remove_duplicate=False)]
    found = [(local, places.get(ties.get(f"{name}.{local}", f"{name}.{local}"))) for local in inside]
    (index,) = {place[0] for _, place in found if place is not None}
    return Unit(name, index, tuple((local, place[1]) for local, place in found if place is not None))


def _layers(model: Any) -> str:
    """The one list of decoder layers, by the class that the library gives layers that can be computed again."""
    found = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList)
        and len(module)
        and all(isinstance(m, GradientCheckpointingLayer) for m in module)
    ]
    outer = [name for name in found if not any(name.startswith(f"{other}.") for other in found)]
    if len(outer) != 1:
        raise TrainError(
            "train/no-layers",
            f"{type(model).__name__} has {len(outer)} lists of decoder layers; streaming needs exactly one",
            hint="choose a decoder-only language model",
        )
    return outer[0]


def _place(name: str, units: Sequence[str]) -> tuple[int, str]:
    """The block of a parameter, and its name seen from that block's module."""
    for index, unit in enumerate(units, 1):
        if name.startswith(f"{unit}."):
            return index, name[len(unit) + 1 :]
    return 0, name


def _units(name: str, module: Any, most: int) -> list[str]:
    """What streams of a module: itself, or the modules below that have matrices, cut as far as needed themselves."""
    if not most or _size(module) <= most or not _is_cuttable(module):
        return [name]
    return [
        unit
        for below, part in module.named_children()
        if any(param.dim() > 1 for param in part.parameters()) and not isinstance(part, _SHORT)
        for unit in _units(f"{name}.{below}", part, most)
    ]


_SHORT = (nn.Conv1d,)
"""Convolutions over a few tokens: small, and kernels take their weights without calling them."""


def _is_cuttable(module: Any) -> bool:
    """Not where matrices are its own, as stacked experts are, nor lists: which of their modules are called may depend
    on the data.
    """
    own = any(param.dim() > 1 for param in module.parameters(recurse=False))
    lists = any(isinstance(part, nn.ModuleList | nn.ModuleDict) for part in module.children())
    return not own and not lists and any(True for part in module.children() if _size(part))


def _size(module: Any) -> int:
    return sum(-(-param.numel() // ALIGN) * ALIGN for param in module.parameters())  # as in an arena


def templates(parts: Parts, units: Sequence[Unit], device: torch.device) -> list[Any]:
    """The modules to compute with, of each unit one: parameters on meta, buffers on the device."""
    found = []
    for unit in units:
        template = _with_buffers(copy.deepcopy(parts.model.get_submodule(unit.name)), device)
        if unit.name.rpartition(".")[0] != parts.layers:  # the shell's hooks see what comes out of others
            template._forward_hooks.clear()
            template._forward_pre_hooks.clear()
        found.append(template)
    return found


def shell(parts: Parts, weights: dict[str, torch.Tensor], device: torch.device) -> Any:
    """The whole model with these weights, by name, as leaves of its own, so that gradients stay apart: what is outside
    the layers, and of a head that streams what is given.
    """
    model = _with_buffers(copy.deepcopy(parts.model), device)
    leaves = {
        param.name: nn.Parameter(weights[param.name], requires_grad=param.trainable) for param in parts.blocks[0].params
    }
    for name, leaf in leaves.items():
        _put(model, name, leaf)
    for name, real in parts.ties.items():
        if real in leaves:
            _put(model, name, leaves[real])
    for unit in parts.units:
        for local, param in unit.params if parts.blocks[unit.block].role else ():
            place, given = f"{unit.name}.{local}", weights.get(param.name) if unit is parts.units[-1] else None
            if given is not None:
                _put(model, place, nn.Parameter(given, param.trainable))
                continue
            one = torch.zeros((), dtype=model.get_parameter(place).dtype, device=device)  # a model may ask where it is
            _put(model, place, nn.Parameter(one.expand(param.shape), requires_grad=False))
    return model


def _put(model: Any, name: str, leaf: nn.Parameter) -> None:
    owner, _, last = name.rpartition(".")
    model.get_submodule(owner)._parameters[last] = leaf  # setattr would ask what the module allows


def _with_buffers(module: Any, device: torch.device) -> Any:
    for part in module.modules():
        for name, buffer in part._buffers.items():
            if buffer is not None and buffer.device.type != "meta":
                part._buffers[name] = buffer.to(device)
    return module


def initial(parts: Parts, index: int, seed: int, device: torch.device) -> Iterator[tuple[str, torch.Tensor]]:
    """Random first weights of a block in fp32, by the model's own rules; they depend on the seed and the layer's index,
    not on how layers are cut.
    """
    names = {param.name for param in parts.blocks[index].params}
    inside = {int(name[len(parts.layers) + 1 :].partition(".")[0]) for name in names if _is_inside(parts, name)}
    if any(not _is_inside(parts, name) for name in names):
        torch.manual_seed(seed * 1_000_003)
        module = copy.deepcopy(parts.model)
        owner, _, last = parts.layers.rpartition(".")
        module.get_submodule(owner)._modules[last] = nn.ModuleList()
        yield from _drawn(parts, _real(module, device), "", names)
    for number in sorted(inside):
        torch.manual_seed(seed * 1_000_003 + number + 1)
        name = f"{parts.layers}.{number}"
        yield from _drawn(parts, _real(copy.deepcopy(parts.model.get_submodule(name)), device), f"{name}.", names)


def _is_inside(parts: Parts, name: str) -> bool:
    return name.startswith(f"{parts.layers}.")


def _drawn(parts: Parts, module: Any, prefix: str, names: set[str]) -> Iterator[tuple[str, torch.Tensor]]:
    module.apply(parts.model._init_weights)  # the library's one place for first weights
    for local, value in module.named_parameters():
        if prefix + local in names:
            yield prefix + local, value.detach()


def _real(module: Any, device: torch.device) -> Any:
    """With memory for parameters, in fp32; buffers come along."""
    memo: dict[int, nn.Parameter] = {}
    for part in module.modules():
        for name, param in part._parameters.items():
            if param is not None:
                fresh = memo.setdefault(
                    id(param), nn.Parameter(torch.zeros(param.shape, dtype=torch.float32, device=device))
                )
                part._parameters[name] = fresh
    return _with_buffers(module, device)


def random_values(
    parts: Parts, seed: int, device: torch.device, blocks: Sequence[Block] = ()
) -> Iterable[tuple[str, torch.Tensor]]:
    """First weights of every parameter, or of those of some blocks, one block at a time."""
    for part in blocks or parts.blocks:
        yield from initial(parts, part.index, seed, device)

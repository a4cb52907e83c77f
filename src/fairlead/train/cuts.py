"""Where layers may be cut: whether gradients still add in the order of plain training, and what a store says of it.

The gradient of a tensor that several readers share is added reader by reader. A piece of a layer adds those of its own
readers first. So where something else reads a piece's input, the piece may read it only once: an autograd graph of
tensors without memory tells both.

Must not know: budgets, what a plan needs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.func import functional_call
from torch.utils import _pytree as pytree

from fairlead.base.files import disk_errors, write_atomic
from fairlead.errors import TrainError
from fairlead.train import layer, loss, model
from fairlead.train.activations import Alive, kernels
from fairlead.train.model import Parts

_NAME = "pieces"
_ENDS = "ends"
_MAX = 64
_NOWHERE = torch.device("meta")
_ROWS, _LENGTH = 1, 8

Values = Iterable[tuple[int, Mapping[str, torch.Tensor]]]


def another_order(parts: Parts) -> str:
    """The first piece whose input's gradient would be added in another order than in plain training; empty if none.

    So is an embedding or a head that the model does not call as a module, once and in its place; and one of a model
    that could not be played counts as such.
    """
    try:
        return _another_order(parts)
    except (NotImplementedError, RuntimeError, TypeError):
        return (parts.cut or [unit.name for unit in parts.units])[0]


def _another_order(parts: Parts) -> str:
    names = [unit.name for unit in parts.units]
    whole = {block.name for block in parts.layer_blocks if block.name.rpartition(".")[0] == parts.layers}
    weights = {
        param.name: torch.empty(param.shape, dtype=torch.float32, device=_NOWHERE)
        for block in parts.blocks
        for param in block.params
    }
    several: list[tuple[str, Any]] = []  # pieces that read an input more than once, and where the input came from
    came: list[str] = []
    anchor = torch.zeros((), device=_NOWHERE, requires_grad=True)  # as in layer.py: what comes out has a gradient
    with Alive() as alive, kernels(alive.work, "cpu"):
        shell = model.shell(parts, weights, _NOWHERE)
        templates = model.templates(parts, parts.units, _NOWHERE)

        def come(call: layer.Call) -> Any:
            name, unit = names[call.layer], parts.units[call.layer]
            came.append(name)
            leaves, spec = pytree.tree_flatten((call.args, call.kwargs))
            into = [at for at, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
            inside = [leaf.detach().requires_grad_() if at in into else leaf for at, leaf in enumerate(leaves)]
            args, kwargs = pytree.tree_unflatten(inside, spec)
            bound = {local: weights[param.name] for local, param in unit.params} | call.own
            found = functional_call(templates[call.layer], bound, args, kwargs)
            out, kind = pytree.tree_flatten(found)
            roots = [leaf.grad_fn for leaf in out if isinstance(leaf, torch.Tensor) and leaf.grad_fn is not None]
            reads = _edges(roots)
            for at in into if name not in whole else ():
                own = inside[at].view_as(inside[at]).grad_fn.next_functions[0]
                if reads[own] > 1:
                    several.append((name, _source(leaves[at])))
            given = [leaf for leaf in out if isinstance(leaf, torch.Tensor)]
            fresh = iter(_Piece.apply(given, anchor, *(leaves[at] for at in into)))
            again = [next(fresh) if isinstance(leaf, torch.Tensor) else leaf for leaf in out]
            return pytree.tree_unflatten(again, kind)

        layer.hang(shell, parts, parts.units, come, _NOWHERE)
        ids = torch.zeros((_ROWS, _LENGTH), dtype=torch.long, device=_NOWHERE)
        total = loss.whole(shell, {"input_ids": ids, "labels": ids}, _ROWS * _LENGTH)
        reads = _edges([total.grad_fn])
    if came != names:
        return next((name for name, one in zip(names, came, strict=False) if name != one), names[-1])
    return next((name for name, source in several if reads[source] > 1), "")


class _Piece(torch.autograd.Function):
    """A node that has read each input once."""

    @staticmethod
    def forward(ctx: Any, out: list[torch.Tensor], *_: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = tuple(torch.empty_like(tensor) for tensor in out)
        ctx.mark_non_differentiable(*[tensor for tensor in found if not tensor.is_floating_point()])
        return found

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise NotImplementedError


def _source(tensor: torch.Tensor) -> Any:
    node = tensor.view_as(tensor).grad_fn
    assert node is not None
    return node.next_functions[0]


def _edges(roots: Iterable[Any]) -> Counter[Any]:
    """How often each output of a node is read in a graph."""
    found: Counter[Any] = Counter()
    known, ahead = set(), [root for root in roots if root is not None]
    while ahead:
        node = ahead.pop()
        if node in known:
            continue
        known.add(node)
        for edge in node.next_functions:
            if edge[0] is not None:
                found[edge] += 1
                ahead.append(edge[0])
    return found


def by_layer(whole: Parts, values: Values) -> Iterator[tuple[int, dict[str, torch.Tensor]]]:
    """Pieces put together again: block after block of the model that is not cut."""
    places = {param.name: block.index for block in whole.blocks for param in block.params}
    coming: dict[int, dict[str, torch.Tensor]] = {}
    for _, found in values:
        for name, value in found.items():
            index = places[name]
            coming.setdefault(index, {})[name] = value
            if len(coming[index]) == len(whole.blocks[index].params):
                yield index, coming.pop(index)


@dataclass(frozen=True, slots=True)
class Cut:
    """How the parameters of a run are shared out into blocks that stream."""

    most: int = 0
    """Parameters of a layer, or a piece, that is not cut; 0: layers are whole."""
    ends: bool = False
    """Embedding and head stream, too."""


WHOLE = Cut()
"""Layers as they are; what is outside stays on the device."""


def held(store: Path) -> Cut:
    """Of the run that a store holds."""
    path = store / _NAME
    if not path.exists():
        return WHOLE
    with disk_errors(path), path.open("rb") as file:
        number, *words = file.read(_MAX).decode("ascii", "replace").split() or [""]
    if not number.isdigit() or words not in ([], [_ENDS]):
        raise TrainError("train/damaged", f"{path} holds no number", hint="restore it from a copy of the store")
    return Cut(int(number), bool(words))


def hold(store: Path, cut: Cut) -> None:
    """Write it down for the run that begins."""
    path = store / _NAME
    if cut == WHOLE:
        path.unlink(missing_ok=True)
        return
    store.mkdir(parents=True, exist_ok=True)
    write_atomic(path, f"{cut.most} {_ENDS}\n" if cut.ends else f"{cut.most}\n")

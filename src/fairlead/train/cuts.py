"""Where layers may be cut: whether gradients still add in the order of plain training, and what a store says of it.

The gradient of a tensor that several readers share is added reader by reader. A piece of a layer adds those of its own
readers first. So where something else reads a piece's input, the piece may read it only once: an autograd graph of
tensors without memory tells both.

Must not know: budgets, what a plan needs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
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
_MAX = 64
_NOWHERE = torch.device("meta")
_ROWS, _LENGTH = 1, 8

Values = Iterable[tuple[int, Mapping[str, torch.Tensor]]]


def another_order(parts: Parts) -> str:
    """The first piece whose input's gradient would be added in another order than in plain training; empty if none.

    One of a layer that could not be played counts as such.
    """
    try:
        return _another_order(parts)
    except (NotImplementedError, RuntimeError, TypeError):
        return parts.cut[0]


def _another_order(parts: Parts) -> str:
    names = [block.name for block in parts.blocks[1:]]
    whole = {block.name for block in parts.blocks[1:] if block.name.rpartition(".")[0] == parts.layers}
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
        templates = model.templates(parts, _NOWHERE)

        def come(call: layer.Call) -> Any:
            name, block = names[call.layer], parts.blocks[call.layer + 1]
            came.append(name)
            leaves, spec = pytree.tree_flatten((call.args, call.kwargs))
            into = [at for at, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
            inside = [leaf.detach().requires_grad_() if at in into else leaf for at, leaf in enumerate(leaves)]
            args, kwargs = pytree.tree_unflatten(inside, spec)
            bound = {param.local: weights[param.name] for param in block.params} | call.own
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

        layer.hang(shell, parts.blocks, come, _NOWHERE)
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


def held(store: Path) -> int:
    """The most parameters of a piece in the run that a store holds; 0 where its layers are whole."""
    path = store / _NAME
    if not path.exists():
        return 0
    with disk_errors(path), path.open("rb") as file:
        said = file.read(_MAX).strip()
    if not said.isdigit():
        raise TrainError("train/damaged", f"{path} holds no number", hint="restore it from a copy of the store")
    return int(said)


def hold(store: Path, most: int) -> None:
    """Write it down for the run that begins."""
    path = store / _NAME
    if most:
        store.mkdir(parents=True, exist_ok=True)
        write_atomic(path, f"{most}\n")
    else:
        path.unlink(missing_ok=True)

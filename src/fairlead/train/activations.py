"""How much memory computing takes beside weights: the model's own forward and backward, played without any memory.

Tensors of the meta device know shapes and lifetimes but hold nothing, so a step can be played at any size in a moment,
while a counter follows what is alive.

Must not know: budgets, stores.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from fairlead.train import layer, loss, model
from fairlead.train.layout import Block
from fairlead.train.model import Parts

_MAX_WORDS = 200
"""Of what torch says of a layer that cannot be played."""


_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")
_NO_WORK = (
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "detach",
    "_unsafe_view",
    "_reshape_alias",
    "lift_fresh",
)


@dataclass(slots=True)
class Work:
    """What a micro-batch makes a device do."""

    products: Counter[tuple[int, int, int]] = field(default_factory=Counter)
    """Matrix products by rows, inner and columns: how many; those of a batch one by one."""
    attention_flop: float = 0.0
    moved_bytes: int = 0
    """What all other operations read and write."""
    calls: int = 0
    """Operations of any kind that compute."""

    @property
    def flop(self) -> float:
        """Floating-point operations of products and attention."""
        return self.attention_flop + sum(2.0 * m * k * n * num for (m, k, n), num in self.products.items())


@dataclass(frozen=True, slots=True)
class Activations:
    """Bytes, of one micro-batch."""

    inputs: int
    """Kept of each layer from forward to backward."""
    shared: int
    """What all layers get alike: masks, angles."""
    head: int
    """Kept outside the layers from forward to backward, logits above all."""
    computing: int
    """The most alive beside those and weights, gradients included: while a layer goes back, or the loss is taken."""
    work: Work | None = None
    """What is computed, recompute included; None where it could not be played."""
    guessed: str = ""
    """Why it could not be played and is guessed from widths; empty where it was played."""


class _Alive(TorchDispatchMode):
    """Follows storages that operations make."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self.known: set[int] = set()
        self.work = Work()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            return 1  # a question about values; for masks it says that nothing is special
        out = func(*args, **(kwargs or {}))
        self.count(func, (args, kwargs), out)
        for leaf in pytree.tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self.add(leaf)
        return out

    def count(self, func: Any, given: Any, out: Any) -> None:
        """Into the work: products by their shapes, the rest by its bytes; what only looks at memory costs nothing."""
        name = func.overloadpacket.__name__
        if name in _NO_WORK or any(
            result.alias_info and not result.alias_info.is_write for result in func._schema.returns
        ):
            return
        self.work.calls += 1
        tensors = [leaf for leaf in pytree.tree_leaves(given) if isinstance(leaf, torch.Tensor)]
        results = [leaf for leaf in pytree.tree_leaves(out) if isinstance(leaf, torch.Tensor)]
        if name in _PRODUCTS:
            left, right = tensors[-2:]
            num = left.shape[0] if left.dim() == 3 else 1
            self.work.products[left.shape[-2], left.shape[-1], right.shape[-1]] += num
        else:
            self.work.moved_bytes += sum(leaf.numel() * leaf.element_size() for leaf in (*tensors, *results))

    def add(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.known:
            return
        size = storage.nbytes()
        self.known.add(key)
        self.now += size
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self._gone, key, size)

    def _gone(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.now -= size

    def mark(self) -> int:
        """Forget the peak so far; what is alive now."""
        self.most = self.now
        return self.now


def play(parts: Parts, dtype: torch.dtype, rows: int, length: int, head_tokens: int) -> Activations:
    """One micro-batch of `rows` samples of `length` tokens; guessed from widths where a layer asks for values."""
    try:
        return _played(parts, dtype, rows, length, head_tokens)
    except (NotImplementedError, RuntimeError) as error:
        words = next(iter(str(error).splitlines()), "")[:_MAX_WORDS]
        return _guessed(parts, dtype, rows * length, f"{type(error).__name__}: {words}".rstrip(": "))


def _guessed(parts: Parts, dtype: torch.dtype, tokens: int, why: str) -> Activations:
    """Generous: what goes into and comes out of every matrix is kept, and once more as gradient."""
    config = parts.model.config
    widths = max(
        sum(sum(param.shape[-2:]) for param in block.params if len(param.shape) > 1) for block in parts.blocks[1:]
    )
    weights = max(block.trained for block in parts.blocks[1:])
    head = 4 * tokens * config.vocab_size * 2
    computing = dtype.itemsize * (2 * tokens * widths + weights) + head
    return Activations(tokens * config.hidden_size * dtype.itemsize, 0, head, computing, guessed=why)


def _played(parts: Parts, dtype: torch.dtype, rows: int, length: int, head_tokens: int) -> Activations:
    nowhere = torch.device("meta")
    seen = {"inputs": 0, "shared": 0, "layer": 0}
    with _Alive() as alive, _attention_of_kernels(alive.work):
        weights = {
            param.name: torch.empty(param.shape, dtype=dtype, device=nowhere) for param in parts.blocks[0].params
        }
        shell = model.shell(parts, weights, nowhere)
        layers = layer.StreamedLayers(
            model.templates(parts, nowhere),
            [tuple(param.local for param in block.trainable) for block in parts.blocks[1:]],
            _Nothing(parts, dtype),
            nowhere,
        )

        def come(call: layer.Call) -> Any:
            tensors = {
                id(leaf): leaf
                for leaf in pytree.tree_leaves((call.args, call.kwargs))
                if isinstance(leaf, torch.Tensor)
            }
            sizes = [leaf.untyped_storage().nbytes() for leaf in tensors.values()]
            with_gradient = [leaf.untyped_storage().nbytes() for leaf in tensors.values() if leaf.requires_grad]
            seen["inputs"] = max(seen["inputs"], sum(with_gradient))
            seen["shared"] = max(seen["shared"], sum(sizes) - sum(with_gradient))
            return layers.forward([call])[0]

        layer.hang(shell, parts.layers, come, nowhere)
        ids = torch.zeros((rows, length), dtype=torch.long, device=nowhere)
        batch = {"input_ids": ids, "labels": ids}
        begin = alive.mark()
        if head_tokens:
            value = loss.in_pieces(shell, batch, rows * length, head_tokens, lambda _p, _g: None)
        else:
            value = loss.whole(shell, batch, rows * length)
        forward = alive.most - begin
        kept = alive.mark()
        value.backward()
        back = alive.most - kept
    most = max(forward, back + kept - begin)
    widest = max(block.numel for block in parts.blocks[1:]) * dtype.itemsize
    beside = seen["inputs"] * parts.num_layers + seen["shared"] + widest
    kept_there = max(0, kept - begin - beside + widest)
    computing = max(0, most - beside - kept_there)
    return Activations(seen["inputs"], seen["shared"], kept_there, computing, alive.work)


@contextlib.contextmanager
def _attention_of_kernels(work: Work) -> Iterator[None]:
    """Attention keeps what fused kernels keep: their inputs and outputs, no matrix of scores."""
    real = nn.functional.scaled_dot_product_attention
    nn.functional.scaled_dot_product_attention = lambda q, k, v, *_args, **_more: _Attention.apply(work, q, k, v)
    try:
        yield
    finally:
        nn.functional.scaled_dot_product_attention = real


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, work: Work, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out = q.new_empty((*q.shape[:-1], v.shape[-1]))
        ctx.work, ctx.flop = work, 2.0 * q[..., 0].numel() * k.shape[-2] * (q.shape[-1] + v.shape[-1])
        work.attention_flop += ctx.flop
        ctx.save_for_backward(q, k, v, out)
        return out

    @staticmethod
    def backward(ctx: Any, _grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, k, v, _ = ctx.saved_tensors
        ctx.work.attention_flop += 2.5 * ctx.flop  # five products where forward has two
        return None, torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


class _Nothing:
    """Weights without memory."""

    def __init__(self, parts: Parts, dtype: torch.dtype) -> None:
        self.blocks: tuple[Block, ...] = parts.blocks
        self.dtype = dtype

    def enter(self, layer: int, *, forward: bool) -> dict[str, torch.Tensor]:
        return {
            param.local: torch.empty(param.shape, dtype=self.dtype, device="meta")
            for param in self.blocks[layer + 1].params
        }

    def leave(self, layer: int, *, forward: bool) -> None: ...

    def take(self, layer: int, micro: int, gradients: dict[str, torch.Tensor | None]) -> None: ...

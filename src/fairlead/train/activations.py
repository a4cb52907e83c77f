"""How much memory computing takes beside weights: the model's own forward and backward, played without any memory.

Tensors of the meta device know shapes and lifetimes but hold nothing, so a step can be played at any size in a moment,
while a counter follows what is alive.

Must not know: budgets, stores.
"""

from __future__ import annotations

import contextlib
import enum
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from fairlead.train import layer, lockstep, loss, model
from fairlead.train.layout import Param
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
    drawn: int = 0
    """Random numbers, one for each element that dropout looks at."""

    def of_one(self, num: int) -> Work:
        """The same for one of `num` that are alike."""
        products = Counter({shape: times // num for shape, times in self.products.items()})
        moved, calls, drawn = self.moved_bytes // num, self.calls // num, self.drawn // num
        return Work(products, self.attention_flop / num, moved, calls, drawn)

    @property
    def flop(self) -> float:
        """Floating-point operations of products and attention."""
        return self.attention_flop + sum(2.0 * m * k * n * num for (m, k, n), num in self.products.items())


@dataclass(frozen=True, slots=True)
class Activations:
    """Bytes that are alive beside weights when most are."""

    inputs: int
    """Of one micro-batch, kept of each layer from forward to backward."""
    shared: int
    """Of one micro-batch, what all layers get alike: masks, angles."""
    head: int
    """Of all micro-batches, kept outside the layers, logits above all; 0 where a layer takes the most, as then no
    head keeps anything any more."""
    computing: int
    """Beside those, gradients included: while a layer goes back, or the loss is taken."""
    work: Work | None = None
    """What one micro-batch computes, recompute included; None where it could not be played."""
    guessed: str = ""
    """Why it could not be played and is guessed from widths; empty where it was played."""


class Alive(TorchDispatchMode):
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

    def enter_thread(self) -> None:
        """Modes belong to threads."""
        self.__enter__()

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
            if name == "bernoulli_":
                self.work.drawn += results[0].numel()
            self.work.moved_bytes += sum(leaf.numel() * leaf.element_size() for leaf in (*tensors, *results))

    def add(self, tensor: torch.Tensor) -> None:
        """Count its memory while it lives."""
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

    def leave_out(self, tensor: torch.Tensor) -> torch.Tensor:
        """Neither it nor what looks at it counts; it must outlive the counter."""
        self.known.add(tensor.untyped_storage()._cdata)
        return tensor

    def since(self) -> int:
        """The most since this was asked last; from now on anew."""
        most, self.most = self.most, self.now
        return most


def play(
    parts: Parts, dtype: torch.dtype, rows: int, length: int, head_tokens: int, micro: int = 1, device: str = "cpu"
) -> Activations:
    """A step of `micro` micro-batches, each of `rows` samples of `length` tokens, on a kind of device; guessed where
    layers ask for values.

    From the fourth on each micro-batch adds what the fourth did: which heads go back at once has settled by then.
    """
    config = parts.model.config
    kind = repr(parts.model), config.to_json_string(), config._attn_implementation, parts.blocks
    key = (*kind, dtype, rows, length, head_tokens, micro, device)
    if key not in _FOUND:
        if len(_FOUND) == _KEPT:
            _FOUND.pop(next(iter(_FOUND)))
        _FOUND[key] = _play(parts, dtype, rows, length, head_tokens, micro, device)
    return _FOUND[key]


_KEPT = 8
_FOUND: dict[tuple[Any, ...], Activations] = {}
"""What was played last: a plan that compares places asks several times."""


def _play(
    parts: Parts, dtype: torch.dtype, rows: int, length: int, head_tokens: int, micro: int, device: str
) -> Activations:
    nums = (3, 4) if micro > 4 else (micro,)
    try:
        played = [_played(parts, dtype, rows, length, head_tokens, num, device) for num in nums]
    except (NotImplementedError, RuntimeError) as error:
        words = next(iter(str(error).splitlines()), "")[:_MAX_WORDS]
        why = f"{type(error).__name__}: {words}".rstrip(": ")
        return _guessed(parts, dtype, rows * length, micro, why)
    most = {
        phase: last + (micro - 4) * (last - played[0].most[phase]) if micro > 4 else last
        for phase, last in played[-1].most.items()
    }
    phase = max(most, key=lambda phase: most[phase])
    inputs, shared = played[-1].inputs, played[-1].shared
    beside = micro * (inputs * parts.num_layers + shared)
    head = micro * played[-1].head if phase is _Phase.LOSS else 0
    return Activations(inputs, shared, head, max(0, most[phase] - beside - head), played[0].work)


def _guessed(parts: Parts, dtype: torch.dtype, tokens: int, micro: int, why: str) -> Activations:
    """Generous: what goes into and comes out of every matrix is kept, and once more as gradient."""
    config = parts.model.config
    widths = max(
        sum(sum(param.shape[-2:]) for param in block.params if len(param.shape) > 1) for block in parts.blocks[1:]
    )
    weights = max(block.trained for block in parts.blocks[1:]) + micro * parts.blocks[0].trained
    head = 4 * tokens * config.vocab_size * 2
    computing = dtype.itemsize * (2 * tokens * widths + weights) + head
    return Activations(tokens * config.hidden_size * dtype.itemsize, 0, micro * head, computing, guessed=why)


class _Phase(enum.Enum):
    """Of a step; each has a peak of its own."""

    FORWARD = enum.auto()
    LOSS = enum.auto()
    """From the end of the last layer's forward to the begin of its backward."""
    BACKWARD = enum.auto()


@dataclass(frozen=True, slots=True)
class _Played:
    inputs: int
    shared: int
    head: int
    """Of one micro-batch."""
    most: Mapping[_Phase, int]
    work: Work
    """Of one micro-batch."""


def _played(
    parts: Parts, dtype: torch.dtype, rows: int, length: int, head_tokens: int, micro: int, device: str
) -> _Played:
    """All micro-batches as the engine computes them: in lock step, then backward over all at once."""
    nowhere = torch.device("meta")
    inputs = shared = 0
    with Alive() as alive, kernels(alive.work, device):
        weights = {
            param.name: alive.leave_out(torch.empty(param.shape, dtype=_type(param, dtype), device=nowhere))
            for block in parts.blocks
            for param in block.params
        }
        shells = [model.shell(parts, weights, nowhere) for _ in range(micro)]
        nodes = parts.nodes(head_tokens)
        stages = _Stages(nodes, alive, weights)
        layers = layer.StreamedLayers(
            model.templates(parts, nodes, nowhere),
            [unit.trained for unit in nodes],
            stages,
            nowhere,
        )

        def together(calls: list[layer.Call]) -> list[Any]:
            nonlocal inputs, shared
            leaves = pytree.tree_leaves((calls[0].args, calls[0].kwargs))
            tensors = {id(leaf): leaf for leaf in leaves if isinstance(leaf, torch.Tensor)}
            sizes = [leaf.untyped_storage().nbytes() for leaf in tensors.values()]
            with_gradient = [leaf.untyped_storage().nbytes() for leaf in tensors.values() if leaf.requires_grad]
            inputs = max(inputs, sum(with_gradient))
            shared = max(shared, sum(sizes) - sum(with_gradient))
            return layers.forward(calls)

        def one(shell: Any) -> Callable[[lockstep.Meet], torch.Tensor]:
            def forward(meet: lockstep.Meet) -> torch.Tensor:
                layer.hang(shell, parts, nodes, meet, nowhere)
                ids = torch.zeros((rows, length), dtype=torch.long, device=nowhere)
                batch = {"input_ids": ids, "labels": ids}
                if head_tokens:
                    return loss.in_pieces(shell, batch, rows * length, head_tokens, lambda _p, _g: None)
                return loss.whole(shell, batch, rows * length)

            return forward

        begin = alive.now
        losses = lockstep.run([one(shell) for shell in shells], together, alive.enter_thread)
        kept = alive.now - begin
        torch.autograd.backward(losses)
        stages.turn(_Phase.BACKWARD)
    if parts.cut or parts.ends:  # pieces of a layer get what others got, or less; an embedding keeps nothing
        inputs = min(inputs, max(0, kept // micro - shared) // parts.num_layers)
    head = max(0, kept // micro - inputs * parts.num_layers - shared)
    most = {phase: max(0, peak - begin) for phase, peak in stages.most.items()}
    return _Played(inputs, shared, head, most, alive.work.of_one(micro))


def _type(param: Param, dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if param.wide else dtype


@contextlib.contextmanager
def kernels(work: Work, device: str) -> Iterator[None]:
    """Attention keeps what fused kernels keep: their inputs and outputs, no matrix of scores. CPUs have none with
    dropout (pytorch aten/src/ATen/native/transformers/sdp_utils_cpp.cpp): scores are made, and kept for backward.
    Grouped products of experts know on meta no types but one; here they are their shapes.
    """
    real = nn.functional.scaled_dot_product_attention, nn.functional.grouped_mm

    def attention(*given: Any, **more: Any) -> Any:
        dropout = more.get("dropout_p", given[4] if len(given) > 4 else 0.0)
        if dropout and device == "cpu":
            return torch.ops.aten._scaled_dot_product_attention_math(*given, **more)[0]
        return _Attention.apply(work, *given[:3])

    nn.functional.scaled_dot_product_attention = attention
    nn.functional.grouped_mm = lambda rows, weights, *_, **_more: _Grouped.apply(work, rows, weights)
    try:
        yield
    finally:
        nn.functional.scaled_dot_product_attention, nn.functional.grouped_mm = real


class _Grouped(torch.autograd.Function):
    """Rows of several experts, each group by a matrix of its own; groups are taken to be alike."""

    @staticmethod
    def forward(ctx: Any, work: Work, rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        num, inner, columns = weights.shape
        ctx.work, ctx.each = work, max(1, rows.shape[0] // num)
        ctx.save_for_backward(rows, weights)
        work.products[ctx.each, inner, columns] += num
        work.calls += 1
        return rows.new_empty((rows.shape[0], columns))

    @staticmethod
    def backward(ctx: Any, _grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        rows, weights = ctx.saved_tensors
        num, inner, columns = weights.shape
        ctx.work.products[ctx.each, columns, inner] += num
        ctx.work.products[inner, ctx.each, columns] += num
        ctx.work.calls += 2
        return None, torch.empty_like(rows), torch.empty_like(weights)


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


class _Stages:
    """Weights without memory; notes the peak of each phase."""

    def __init__(self, nodes: Sequence[model.Unit], alive: Alive, weights: Mapping[str, torch.Tensor]) -> None:
        self.nodes = nodes
        self.alive = alive
        self.weights = weights
        self.most = dict.fromkeys(_Phase, 0)

    def turn(self, ended: _Phase) -> None:
        """What was alive at most since the last turn belongs to this phase."""
        self.most[ended] = max(self.most[ended], self.alive.since())

    def enter(self, layer: int, *, forward: bool) -> dict[str, torch.Tensor]:
        is_last = layer + 1 == len(self.nodes)
        self.turn(_Phase.FORWARD if forward else _Phase.LOSS if is_last else _Phase.BACKWARD)
        return {local: self.weights[param.name] for local, param in self.nodes[layer].params}

    def leave(self, layer: int, *, forward: bool) -> None:
        self.turn(_Phase.FORWARD if forward else _Phase.BACKWARD)

    def take(self, layer: int, micro: int, gradients: dict[str, torch.Tensor | None]) -> None: ...

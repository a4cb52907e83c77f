"""AdamW or SGD over a block's arena by torch's own fused kernels, and what decides a step: rate, norm, clip.

A parameter is updated as a whole or in pieces of `PIECE` elements: the kernel's vector and scalar parts then fall where
they fall in plain training, and results are equal to the bit.

Must not know: where arenas live beyond their device, when updates happen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from fairlead.train.layout import Block, Param
from fairlead.train.rounding import put_rounded, stream

PIECE = {"cpu": 1 << 21, "cuda": 1 << 26}
"""Elements updated at once where gradients must be widened or scaled first: 8 MiB of fp32 stay in a CPU's cache."""
NARROW_PIECE = {"cpu": 1 << 18, "cuda": 1 << 24}
"""Elements updated at once where parameters are bf16: they are widened, and a random number is made for each."""


@dataclass(frozen=True, slots=True)
class AdamW:
    """Hyper-parameters that all groups share."""

    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8


@dataclass(frozen=True, slots=True)
class SGD:
    """Hyper-parameters of `torch.optim.SGD`; the momentum is kept as `m`, and `v` stays zero."""

    momentum: float = 0.0
    nesterov: bool = False


Rule = AdamW | SGD


@dataclass(frozen=True, slots=True)
class Moment:
    """What one update is done with, beside arenas."""

    lr: float
    """The rate of this step, before a group's scale."""
    clip: float
    """Gradients are multiplied by this; exactly 1.0 where nothing is clipped."""
    rule: Rule
    counts: Mapping[str, int]
    """For each parameter that has a gradient, how many updates it has seen with this one."""
    draw: int = 0
    """What chance depends on where parameters are bf16: a number of the run's seed and this step."""


def rate(schedule: str, base: float, step: int, steps: int, warmup: int, floor: float = 0.0) -> float:
    """The learning rate of step 0, 1, ...: linear warm-up, then constant, linear or cosine to `floor` times base."""
    if step < warmup:
        return base * (step + 1) / warmup
    if schedule == "constant":
        return base
    done = min(1.0, (step - warmup) / max(1, steps - warmup))
    left = 1.0 - done if schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
    return base * (floor + (1.0 - floor) * left)


def norm(gradient: torch.Tensor) -> torch.Tensor:
    """The 2-norm of a gradient in fp32, as `torch.nn.utils.clip_grad_norm_` takes it on this device."""
    wide = gradient.float()
    if wide.device.type == "cpu":
        return torch.linalg.vector_norm(wide, 2.0)
    return torch._foreach_norm([wide], 2.0)[0]  # what torch.nn.utils calls


def clip_factor(total: float, limit: float | None) -> float:
    """What gradients of this total norm are multiplied by, computed in fp32 as torch does."""
    if limit is None:
        return 1.0
    norm = torch.tensor(total, dtype=torch.float32)
    return float(torch.clamp(limit / (norm + 1e-6), max=1.0))


def update(
    block: Block,
    p: torch.Tensor,
    m: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    moment: Moment,
    begin: int = 0,
) -> None:
    """One step on the flat arenas of a block, all on one device; `g` may be fp32 or bf16.

    `p` is fp32, or bf16: then each update is computed in fp32 and rounded by chance.

    The tensors may be a stretch of the arenas; `begin` is where it lies in them, a multiple of `layout.ALIGN`.
    Parameters without a gradient in this step are left alone, as plain training leaves them.
    """
    narrow = p.dtype != torch.float32
    whole = g.dtype == torch.float32 and moment.clip == 1.0 and not narrow
    size = min(block.trained, (NARROW_PIECE if narrow else PIECE)[p.device.type])
    scratch = None if whole else torch.empty(size, dtype=torch.float32, device=p.device)
    for param in block.trainable:
        count = moment.counts.get(param.name)
        if count is None:
            continue
        first = max(param.offset - begin, 0)
        end = min(param.offset + param.numel - begin, len(p))
        for at in range(first, end, max(1, end - first) if whole else size):
            piece = slice(at, end if whole else min(at + size, end))
            gradient = g[piece]
            if scratch is not None:
                gradient = scratch[: piece.stop - piece.start].copy_(gradient)
                if moment.clip != 1.0:
                    gradient.mul_(moment.clip)
            wide = p[piece].float()  # itself where it is fp32
            _one(moment, param, count, wide, gradient, m[piece], v[piece])
            if narrow:
                put_rounded(wide, p[piece], stream(moment.draw, param.name), at + begin - param.offset)


def _one(
    moment: Moment,
    param: Param,
    count: int,
    p: torch.Tensor,
    g: torch.Tensor,
    m: torch.Tensor,
    v: torch.Tensor,
) -> None:
    """A stretch of one parameter."""
    rule, lr = moment.rule, moment.lr * param.lr_scale
    if isinstance(rule, SGD):
        torch._fused_sgd_(  # what torch.optim.SGD(fused=True) calls
            [p],
            [g],
            [m] if rule.momentum else [],
            weight_decay=param.weight_decay,
            momentum=rule.momentum,
            lr=lr,
            dampening=0.0,
            nesterov=rule.nesterov,
            maximize=False,
            is_first_step=count == 1,
            grad_scale=None,
            found_inf=None,
        )
        return
    torch._fused_adamw_(  # what torch.optim.AdamW(fused=True) calls
        [p],
        [g],
        [m],
        [v],
        [],
        [torch.full((), float(count), device=p.device)],
        lr=lr,
        beta1=rule.beta1,
        beta2=rule.beta2,
        weight_decay=param.weight_decay,
        eps=rule.eps,
        amsgrad=False,
        maximize=False,
        grad_scale=None,
        found_inf=None,
    )

"""How the parameters of a model lie in memory: blocks that travel as one, each a flat arena of its parameters.

A block is a decoder layer or a piece of one, or everything outside the decoder layers; where the embedding and the head
stream, too, they are blocks of their own. Its trainable parameters come first, so that gradients and moments are a
prefix of the arena; each begins at a multiple of `ALIGN` elements, because the kernels that read it choose their path
by alignment, and a path of its own would round on its own.

Pure. Must not know: torch, stores, the order of computing.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

ALIGN = 256
"""Elements: 512 bytes in bf16 as torch's CUDA allocator aligns, 1,024 in fp32."""


@dataclass(frozen=True, slots=True)
class ParamGroup:
    """Hyper-parameters of the parameters whose name matches a pattern; the first match counts."""

    match: str
    weight_decay: float
    lr_scale: float = 1.0
    trainable: bool = True


@dataclass(frozen=True, slots=True)
class Param:
    """One parameter: where it lies in its block's arena, and how it is trained."""

    name: str
    """As the model's own `named_parameters` says."""
    local: str
    """Its name seen from the block's module."""
    shape: tuple[int, ...]
    offset: int
    """In elements from the begin of the arena."""
    order: int
    """Its place among all parameters of the model; norms are stacked in that order."""
    trainable: bool = True
    weight_decay: float = 0.0
    lr_scale: float = 1.0
    wide: bool = False
    """Computed with in fp32, whatever the run computes in: the model keeps it so."""

    @property
    def numel(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    @property
    def span(self) -> slice:
        """Its elements in the arena."""
        return slice(self.offset, self.offset + self.numel)


Role = Literal["", "embedding", "head", "both"]
"""Of a block outside the layers that streams; `both`: embedding and head are one weight."""


@dataclass(frozen=True, slots=True)
class Block:
    """Parameters that are moved, computed with and updated together."""

    index: int
    name: str
    params: tuple[Param, ...]
    numel: int
    """Elements of the arena, with what alignment leaves empty."""
    trained: int
    """Elements of its prefix that is trained."""
    role: Role = ""

    @property
    def trainable(self) -> tuple[Param, ...]:
        """The parameters that are trained."""
        return tuple(param for param in self.params if param.trainable)


@dataclass(frozen=True, slots=True)
class Named:
    """A parameter before it has a place."""

    name: str
    local: str
    shape: tuple[int, ...]
    order: int
    trainable: bool = True
    wide: bool = False


def block(index: int, name: str, params: Iterable[Named], groups: Sequence[ParamGroup], role: Role = "") -> Block:
    """Give each parameter its place; trainable ones first."""
    chosen = [(param, group_of(param.name, groups)) for param in params]
    chosen.sort(key=lambda pair: not (pair[0].trainable and pair[1].trainable))
    placed: list[Param] = []
    offset = trained = 0
    for param, group in chosen:
        trainable = param.trainable and group.trainable
        placed.append(
            Param(
                name=param.name,
                local=param.local,
                shape=param.shape,
                offset=offset,
                order=param.order,
                trainable=trainable,
                weight_decay=group.weight_decay,
                lr_scale=group.lr_scale,
                wide=param.wide,
            )
        )
        offset += -(-math.prod(param.shape) // ALIGN) * ALIGN
        if trainable:
            trained = offset
    return Block(index, name, tuple(placed), offset, trained, role)


def by_size(blocks: Sequence[Block]) -> tuple[list[Block], list[Block]]:
    """Those of the size of what is outside the layers, and those of the size of layers: each kind has a file of slots.

    Where the embedding and the head stream, what else is outside is small.
    """
    large = [block for block in blocks if block.role] or [block for block in blocks if not block.index]
    return large, [block for block in blocks if block not in large]


def group_of(name: str, groups: Sequence[ParamGroup]) -> ParamGroup:
    """The group of a parameter."""
    for group in groups:
        if fnmatch.fnmatchcase(name, group.match):
            return group
    return ParamGroup("*", weight_decay=0.0)

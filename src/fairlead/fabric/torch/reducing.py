"""The operations of a reduction, piece by piece as it comes."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed import ReduceOp

from fairlead.errors import FabricError
from fairlead.fabric.torch.peers import Consume

_INTO = (
    (ReduceOp.SUM, torch.add),
    (ReduceOp.AVG, torch.add),
    (ReduceOp.PRODUCT, torch.mul),
    (ReduceOp.MIN, torch.minimum),
    (ReduceOp.MAX, torch.maximum),
    (ReduceOp.BAND, torch.bitwise_and),
    (ReduceOp.BOR, torch.bitwise_or),
    (ReduceOp.BXOR, torch.bitwise_xor),
)


def combiner(into: Any, op: Any) -> Consume:
    """Combines what comes with a flat tensor, in its type."""
    function = next((f for name, f in _INTO if op == name), None)
    if function is None:
        raise FabricError("fabric/no-operation", f"mrc has no {op}", hint="use sum, avg, min, max, product or bitwise")

    def combine(at: int, data: Any) -> None:
        values = data.view(into.dtype)
        place = into[at // into.itemsize :][: len(values)]
        function(place, values, out=place)

    return combine


def finisher(tensor: Any, op: Any, size: int) -> None:
    """What is left after all is combined: an average is divided, towards zero where it is of integers."""
    if op == ReduceOp.AVG:
        tensor.div_(size, rounding_mode=None if tensor.is_floating_point() or tensor.is_complex() else "trunc")

"""fp32 becomes bf16 by chance, so that its mean is kept: an update far below half a unit in the last place is not lost.

The random bits of an element are a function of the run's seed, the step, the parameter's name and the element's place
in it, and of nothing else: no state of a generator is kept, and a run that is gone on with, another number of ranks or
another cut into pieces has the same ones. Integers only, so CPUs and GPUs agree.

Must not know: optimizers, arenas, where steps come from.
"""

from __future__ import annotations

import hashlib

import torch

GOLDEN, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""SplitMix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014."""
LANES = 4
"""Elements that share one 64-bit number, 16 bits each."""


def stream(draw: int, name: str) -> int:
    """The seed of one parameter's numbers in one step, which `draw` stands for; 64 bits."""
    return int.from_bytes(hashlib.blake2b(f"{draw} {name}".encode(), digest_size=8).digest(), "little")


def numbers(seed: int, begin: int, num: int, device: torch.device) -> torch.Tensor:
    """SplitMix64's outputs `begin` to `begin + num` (int64, the bits of unsigned ones), each computed by itself."""
    state = torch.arange(begin + 1, begin + num + 1, dtype=torch.int64, device=device)
    state.mul_(_signed(GOLDEN)).add_(_signed(seed))
    for shift, factor in ((30, FIRST), (27, SECOND)):
        _fold(state, shift).mul_(_signed(factor))
    return _fold(state, 31)


def put_rounded(wide: torch.Tensor, into: torch.Tensor, seed: int, begin: int) -> None:
    """Round fp32 `wide`, which is used up, into bf16: up with the probability of the part that is cut off.

    Both are flat; `begin`, a multiple of `LANES`, is the place of their first element in its parameter.
    """
    num = len(wide)
    drawn = numbers(seed, begin // LANES, -(-num // LANES), wide.device).view(torch.int16)[:num]
    lost = wide.isnan()
    bits = wide.view(torch.int32)
    bits.add_(drawn.to(torch.int32).bitwise_and_(0xFFFF)).bitwise_and_(-0x10000)
    into.copy_(wide)
    into.masked_fill_(lost, torch.nan)


def _fold(state: torch.Tensor, shift: int) -> torch.Tensor:
    """`state ^= state >> shift` of unsigned numbers: int64 shifts its sign in, the mask takes it off."""
    return state.bitwise_xor_((state >> shift).bitwise_and_((1 << (64 - shift)) - 1))


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number

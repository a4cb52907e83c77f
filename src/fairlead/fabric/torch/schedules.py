"""Collectives as schedules: who sends which blocks to whom, step by step. Pure; knows no tensor and no socket.

A buffer is cut into blocks. In a step a rank sends blocks as they are at its beginning, and takes blocks that others
send it in the same step: instead of its own, or combined with them. A step ends when all of that is done.

Ring: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (2009); recursive
halving and doubling: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH"
(2005).

Order of a reduction, which decides the last bits of floats. Ring: block b is summed from rank b + 1 on, each rank's own
value combined with what came before: b + 1, b + 2, ..., b. Halving: a tree over ranks that differ in one bit, the
highest first; every rank ends with the same bits in both.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Send:
    """Blocks that go to a rank: those from `begin`, up to and without `end`."""

    to: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Take:
    """Blocks that come from a rank."""

    source: int
    begin: int
    end: int
    combines: bool = False
    """With what is there, by the operation; else instead of it."""


@dataclass(frozen=True, slots=True)
class Step:
    """What one rank does at once."""

    sends: tuple[Send, ...] = ()
    takes: tuple[Take, ...] = ()


Schedule = tuple[Step, ...]


def bounds(size: int, blocks: int) -> list[int]:
    """Where each block of `size` elements begins, and the end of the last: as even as can be."""
    return [size * i // blocks for i in range(blocks + 1)]


def ring_reduce_scatter(rank: int, size: int) -> Schedule:
    """`size` blocks; at the end each rank has the block of its own number, combined."""
    return tuple(
        _ring(rank, size, out=(rank - s - 1) % size, into=(rank - s - 2) % size, combines=True) for s in range(size - 1)
    )


def ring_all_gather(rank: int, size: int) -> Schedule:
    """`size` blocks; each rank begins with its own and ends with all."""
    return tuple(
        _ring(rank, size, out=(rank - s) % size, into=(rank - s - 1) % size, combines=False) for s in range(size - 1)
    )


def ring_all_reduce(rank: int, size: int) -> Schedule:
    """`size` blocks. Each rank sends 2 (size - 1) / size of the buffer, the least there is, in 2 (size - 1) steps."""
    return ring_reduce_scatter(rank, size) + ring_all_gather(rank, size)


def _ring(rank: int, size: int, *, out: int, into: int, combines: bool) -> Step:
    sends = (Send((rank + 1) % size, out, out + 1),)
    return Step(sends, (Take((rank - 1) % size, into, into + 1, combines),))


def power_below(size: int) -> int:
    """The largest power of two that is not above `size`."""
    return 1 << (size.bit_length() - 1)


def halving_all_reduce(rank: int, size: int) -> Schedule:
    """`power_below(size)` blocks, 2 log2(size) steps; ranks above the power go through one below."""
    power = power_below(size)
    if rank >= power:
        mate = rank - power
        return (Step(sends=(Send(mate, 0, power),)), Step(takes=(Take(mate, 0, power),)))
    begin, end = 0, power
    halves: list[Step] = []
    doubles: list[Step] = []
    while end - begin > 1:
        middle = (begin + end) // 2
        mate = rank ^ ((end - begin) // 2)
        mine, other = ((begin, middle), (middle, end))[:: 1 if rank < mate else -1]
        halves.append(Step((Send(mate, *other),), (Take(mate, *mine, combines=True),)))
        doubles.append(Step((Send(mate, *mine),), (Take(mate, *other),)))
        begin, end = mine
    steps = [*halves, *reversed(doubles)]
    if rank + power < size:
        mate = rank + power
        return (Step(takes=(Take(mate, 0, power, combines=True),)), *steps, Step(sends=(Send(mate, 0, power),)))
    return tuple(steps)


def tree_broadcast(rank: int, size: int, root: int) -> Schedule:
    """One block, down a binomial tree: log2(size) steps."""
    place = (rank - root) % size
    steps = []
    for bit in range((size - 1).bit_length()):
        far = 1 << bit
        if place < far and place + far < size:
            steps.append(Step(sends=(Send((rank + far) % size, 0, 1),)))
        elif far <= place < 2 * far:
            steps.append(Step(takes=(Take((rank - far) % size, 0, 1),)))
    return tuple(steps)


def spread_broadcast(rank: int, size: int, root: int) -> Schedule:
    """`size` blocks: each rank gets its own from the root, then all pass theirs on around the ring."""
    return (scatter(rank, size, root), *ring_all_gather(rank, size))


def scatter(rank: int, size: int, root: int) -> Step:
    """`size` blocks at the root; each rank gets the one of its number."""
    if rank == root:
        return Step(sends=tuple(Send(r, r, r + 1) for r in range(size) if r != root))
    return Step(takes=(Take(root, rank, rank + 1),))


def gather(rank: int, size: int, root: int) -> Step:
    """The other way round."""
    if rank == root:
        return Step(takes=tuple(Take(r, r, r + 1) for r in range(size) if r != root))
    return Step(sends=(Send(root, rank, rank + 1),))


def reduce(rank: int, size: int, root: int) -> Schedule:
    """`size` blocks, combined at the root; other buffers hold halfway results in the end."""
    return (*ring_reduce_scatter(rank, size), gather(rank, size, root))


def all_to_all(rank: int, size: int) -> Schedule:
    """`size` blocks out and in: block r of the one goes to rank r, block r of the other comes from it."""
    ahead = [(rank + s) % size for s in range(1, size)]
    behind = [(rank - s) % size for s in range(1, size)]
    return tuple(
        Step((Send(to, to, to + 1),), (Take(source, source, source + 1),))
        for to, source in zip(ahead, behind, strict=True)
    )

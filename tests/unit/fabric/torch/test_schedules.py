"""Schedules run by an interpreter of their meaning: whatever the number of ranks, everyone ends with what MPI says."""

from __future__ import annotations

from collections import Counter, deque
from itertools import pairwise

import pytest

from fairlead.fabric.torch import schedules as plan

SIZES = [1, 2, 3, 4, 5, 7, 8, 13, 16]
Cell = Counter  # a block holds, by rank, how often its value is contained in it


def play(all_steps: list[list[plan.Step]], cells: list[list[Cell]]) -> list[list[Cell]]:
    """Ranks go on as messages come; a step's sends are what was there at its beginning. Deadlock is an error."""
    wires: dict[tuple[int, int], deque] = {}
    at = [0] * len(cells)
    begun = [False] * len(cells)
    while any(at[r] < len(steps) for r, steps in enumerate(all_steps)):
        moved = False
        for rank, steps in enumerate(all_steps):
            if at[rank] == len(steps):
                continue
            step = steps[at[rank]]
            if not begun[rank]:
                for s in step.sends:
                    wires.setdefault((rank, s.to), deque()).extend(cells[rank][s.begin : s.end])
                begun[rank] = moved = True
            if all(len(wires.get((t.source, rank), ())) >= t.end - t.begin for t in step.takes):
                for t in step.takes:
                    for block in range(t.begin, t.end):
                        came = wires[t.source, rank].popleft()
                        cells[rank][block] = cells[rank][block] + came if t.combines else came
                at[rank] += 1
                begun[rank] = False
                moved = True
        assert moved, "deadlock"
    assert not any(wires.values()), "sent and never taken"
    return cells


def own(size: int, blocks: int) -> list[list[Cell]]:
    return [[Counter({rank: 1}) for _ in range(blocks)] for rank in range(size)]


@pytest.mark.parametrize("size", SIZES)
def test_all_reduce_has_every_rank_once_in_every_block(size: int) -> None:
    whole = Counter(range(size))
    for make, blocks in ((plan.ring_all_reduce, size), (plan.halving_all_reduce, plan.power_below(size))):
        end = play([list(make(r, size)) for r in range(size)], own(size, blocks))
        assert end == [[whole] * blocks] * size


@pytest.mark.parametrize("size", SIZES)
def test_reduce_scatter_leaves_each_rank_its_own_block_and_reduce_all_of_them_at_the_root(size: int) -> None:
    whole = Counter(range(size))
    end = play([list(plan.ring_reduce_scatter(r, size)) for r in range(size)], own(size, size))
    assert [end[r][r] for r in range(size)] == [whole] * size
    for root in (0, size - 1):
        end = play([list(plan.reduce(r, size, root)) for r in range(size)], own(size, size))
        assert end[root] == [whole] * size


@pytest.mark.parametrize("size", SIZES)
def test_broadcasts_gather_and_scatter_move_what_is_the_roots(size: int) -> None:
    for root in {0, size // 2, size - 1}:
        for make, blocks in ((plan.tree_broadcast, 1), (plan.spread_broadcast, size)):
            end = play([list(make(r, size, root)) for r in range(size)], own(size, blocks))
            assert end == [[Counter({root: 1})] * blocks] * size
        end = play([[plan.gather(r, size, root)] for r in range(size)], own(size, size))
        assert end[root] == [Counter({r: 1}) for r in range(size)]
        end = play([[plan.scatter(r, size, root)] for r in range(size)], own(size, size))
        assert [end[r][r] for r in range(size)] == [Counter({root: 1})] * size
    end = play([list(plan.ring_all_gather(r, size)) for r in range(size)], own(size, size))
    assert end == [[Counter({b: 1}) for b in range(size)]] * size


@pytest.mark.parametrize("size", SIZES)
def test_all_to_all_meets_each_pair_once_and_never_two_at_a_time(size: int) -> None:
    for rank in range(size):
        steps = plan.all_to_all(rank, size)
        assert sorted(s.to for step in steps for s in step.sends) == [r for r in range(size) if r != rank]
        assert sorted(t.source for step in steps for t in step.takes) == [r for r in range(size) if r != rank]
        for number, step in enumerate(steps):
            (send,) = step.sends
            (take,) = plan.all_to_all(send.to, size)[number].takes
            assert (take.source, send.begin) == (rank, send.to)


def test_a_ring_sends_the_least_there_is_and_halving_takes_the_fewest_steps() -> None:
    for size in (4, 8, 16):
        steps = plan.ring_all_reduce(1, size)
        assert sum(s.end - s.begin for step in steps for s in step.sends) == 2 * (size - 1)
        assert len(plan.halving_all_reduce(1, size)) == 2 * (size.bit_length() - 1)


@pytest.mark.parametrize(("size", "blocks"), [(0, 3), (1, 4), (10, 3), (12, 4)])
def test_blocks_are_even_and_leave_nothing_out(size: int, blocks: int) -> None:
    edges = plan.bounds(size, blocks)
    lengths = [b - a for a, b in pairwise(edges)]
    assert sum(lengths) == size
    assert max(lengths) - min(lengths) <= 1

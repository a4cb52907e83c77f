"""Collectives: who sends what to whom, and what waits for what."""

from __future__ import annotations

import numpy as np
import pytest

from fairlead.fabric.sim.collectives import all_to_all, ring_all_reduce, training, tree_all_reduce
from fairlead.fabric.sim.workload import AFTER_PLACED, Workload

NICS = np.array([3, 7, 1, 5])


def order_of(work: Workload) -> list[int]:
    """Messages in an order that their edges allow; fails where they go round in a circle."""
    waits = (
        np.bincount(work.edges[:, 1], minlength=work.num_messages) if len(work.edges) else np.zeros(work.num_messages)
    )
    after: dict[int, list[int]] = {}
    for before, following, _ in work.edges.tolist():
        after.setdefault(before, []).append(following)
    ready, order = [i for i in range(work.num_messages) if waits[i] == 0], []
    while ready:
        message = ready.pop()
        order.append(message)
        for following in after.get(message, ()):
            waits[following] -= 1
            if waits[following] == 0:
                ready.append(following)
    assert len(order) == work.num_messages
    return order


@pytest.mark.parametrize("qps", [1, 3])
def test_a_ring_moves_two_buffers_less_two_parts_through_every_nic(qps):
    size = 4 * qps * 1000
    ring = ring_all_reduce(NICS, size, qps)
    sent = np.bincount(ring.work.src[ring.work.flow], weights=ring.work.size)[NICS]
    assert (sent == size * 2 * 3 // 4).all()
    right = dict(zip(ring.work.src.tolist(), ring.work.dst.tolist(), strict=True))
    assert [right[n] for n in NICS.tolist()] == np.roll(NICS, -1).tolist()


def test_in_a_ring_every_step_waits_for_the_left_neighbours_last():
    ring = ring_all_reduce(NICS, 4000)
    ring.work.check()
    order_of(ring.work)
    src = ring.work.src[ring.work.flow]
    for before, after, how in ring.work.edges.tolist():
        assert how == AFTER_PLACED
        assert ring.work.dst[ring.work.flow[before]] == src[after]
    # the first step waits for nothing, all others for one message
    waits = np.bincount(ring.work.edges[:, 1], minlength=ring.work.num_messages)
    assert sorted(waits.tolist()) == [0] * 4 + [1] * (4 * 5)


@pytest.mark.parametrize("num", [2, 3, 4, 7, 16])
def test_a_tree_sends_each_chunk_up_and_down_every_edge(num):
    nics = np.arange(num)
    tree = tree_all_reduce(nics, 1000, chunk_bytes=300)
    tree.work.check()
    order_of(tree.work)
    assert tree.work.num_messages == 2 * (num - 1) * 4
    assert tree.work.size.sum() == 2 * (num - 1) * 1000
    # a rank may send up only when both children have, so leaves alone begin
    begins = set(tree.first[:, 0].tolist())
    assert begins == {r for r in range(1, num) if 2 * r + 1 >= num}
    assert set(tree.last[:, 0].tolist()) == set(range(num))


def test_in_all_to_all_everyone_sends_to_everyone_else():
    work = all_to_all(NICS, 10).work
    pairs = set(zip(work.src.tolist(), work.dst.tolist(), strict=True))
    assert pairs == {(a, b) for a in NICS.tolist() for b in NICS.tolist() if a != b}


@pytest.mark.parametrize("make", [ring_all_reduce, tree_all_reduce, all_to_all])
def test_training_steps_follow_each_other_at_every_rank(make):
    one = make(NICS, 4000)
    compute = np.array([[5, 6, 7, 8], [1, 2, 3, 4], [9, 9, 9, 9]])
    work = training(one, 3, compute)
    work.check()
    order_of(work)
    assert work.num_messages == 3 * one.work.num_messages
    assert np.bincount(work.step).tolist() == [one.work.num_messages] * 3
    # messages of a flow stay in order of steps
    for flow in range(work.num_flows):
        assert (np.diff(work.step[work.flow == flow]) >= 0).all()
    # every beginning of a step carries its rank's computation, the rest none
    for step in range(3):
        starts = work.start[work.step == step]
        expected = np.zeros(one.work.num_messages)
        expected[one.first[:, 1]] = compute[step][one.first[:, 0]]
        assert sorted(starts.tolist()) == sorted(expected.tolist())

"""Collectives as messages that wait for each other: rings, trees, all-to-all, and training steps made of them.

Each is the plain algorithm that NCCL documents, at the granularity of whole chunks; reduction itself takes no time.

Knows: algorithms. Must not know: scenarios, transports.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fairlead.fabric.sim.workload import AFTER_PLACED, Workload

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Collective:
    """A workload with a beginning and an end at each NIC, so that something can come before it and after it.

    `first` holds rows (rank, message): messages by which a rank begins. `last` holds rows (rank, message, AFTER_*):
    when all of them have happened the rank has its result.
    """

    work: Workload
    ranks: Ints
    first: Ints
    last: Ints


def _rows(*columns: Ints | int) -> Ints:
    return np.stack(np.broadcast_arrays(*columns), axis=-1).reshape(-1, len(columns)).astype(np.int64)


def ring_all_reduce(nics: Ints, size_bytes: int, qps: int = 1) -> Collective:
    """2 (n - 1) steps; in each, every rank sends one n-th of the buffer to its right neighbour.

    A step waits for what came from the left in the step before. With several queue pairs each chunk is split among
    them.
    """
    n, steps = len(nics), 2 * (len(nics) - 1)
    part = max(1, -(-size_bytes // n // qps))
    rank = np.arange(n * qps) // qps
    src, dst = nics[rank], nics[(rank + 1) % n]
    flow = np.repeat(np.arange(n * qps), steps)
    message = np.arange(n * qps * steps).reshape(n, qps, steps)
    left = np.roll(message, 1, axis=0)
    edges = _rows(left[:, :, :-1].ravel(), message[:, :, 1:].ravel(), AFTER_PLACED)
    work = Workload(
        src=src, dst=dst, flow=flow, size=np.full(len(flow), part), start=np.zeros(len(flow), dtype=np.int64),
        edges=edges, group=np.zeros(n * qps, dtype=np.int64),
    )  # fmt: skip
    first = _rows(np.repeat(np.arange(n), qps), message[:, :, 0].ravel())
    last = _rows(np.repeat(np.arange(n), qps), left[:, :, -1].ravel(), AFTER_PLACED)
    return Collective(work, nics, first, last)


def tree_all_reduce(nics: Ints, size_bytes: int, chunk_bytes: int = 0, qps: int = 1) -> Collective:
    """Reduce to the root of a binary tree, then broadcast from it, chunk by chunk so that the levels overlap."""
    n = len(nics)
    chunk = chunk_bytes or max(1, -(-size_bytes // 16))
    chunks = -(-size_bytes // chunk)
    sizes = np.full(chunks, chunk)
    sizes[-1] = size_bytes - chunk * (chunks - 1)
    child = np.arange(1, n)
    parent = (child - 1) // 2
    up = np.arange((n - 1) * chunks).reshape(n - 1, chunks)  # message of child c, chunk k: up[c - 1, k]
    down = up + (n - 1) * chunks
    lanes = np.arange(chunks) % qps
    flow_up = ((child - 1)[:, None] * qps + lanes).ravel()
    flow_down = flow_up + (n - 1) * qps
    has_children = parent > 0
    # a rank sends a chunk up when both its children's have come, and down when its parent's has
    edges = [
        _rows(up[has_children].ravel(), up[parent[has_children] - 1].ravel(), AFTER_PLACED),
        _rows(down[parent[has_children] - 1].ravel(), down[has_children].ravel(), AFTER_PLACED),
    ]
    for root_child in child[parent == 0] - 1:  # the root turns round: each chunk, when all its children's have come
        edges += [_rows(up[other], down[root_child], AFTER_PLACED) for other in child[parent == 0] - 1]
    src = np.concatenate([np.repeat(nics[child], qps), np.repeat(nics[parent], qps)])
    dst = np.concatenate([np.repeat(nics[parent], qps), np.repeat(nics[child], qps)])
    flow = np.concatenate([flow_up, flow_down])
    work = Workload(
        src=src, dst=dst, flow=flow, size=np.tile(sizes, 2 * (n - 1)), start=np.zeros(len(flow), dtype=np.int64),
        edges=np.concatenate(edges), group=np.zeros(len(src), dtype=np.int64),
    )  # fmt: skip
    leaves = child[2 * child + 1 >= n]
    first = _rows(np.repeat(leaves, chunks), up[leaves - 1].ravel())
    last = np.concatenate(
        [
            _rows(child, down[:, -1], AFTER_PLACED),
            _rows(0, up[child[parent == 0] - 1, -1], AFTER_PLACED),
        ]
    )
    return Collective(work, nics, first, last)


def all_to_all(nics: Ints, size_bytes: int, qps: int = 1) -> Collective:
    """Every rank sends `size_bytes` to every other, all at once, nearest right neighbour first."""
    n = len(nics)
    part = max(1, -(-size_bytes // qps))
    rank, step, _ = (a.ravel() for a in np.meshgrid(np.arange(n), np.arange(1, n), np.arange(qps), indexing="ij"))
    to = (rank + step) % n
    num = len(rank)
    work = Workload(
        src=nics[rank], dst=nics[to], flow=np.arange(num), size=np.full(num, part), start=np.zeros(num, dtype=np.int64),
        group=np.zeros(num, dtype=np.int64),
    )  # fmt: skip
    return Collective(work, nics, _rows(rank, np.arange(num)), _rows(to, np.arange(num), AFTER_PLACED))


def _between_steps(one: Collective, steps: int) -> list[Ints]:
    """Every end of a rank's step is waited for by every beginning of its next step."""
    first_rank, first_message = one.first.T
    last = one.last[np.argsort(one.last[:, 0], kind="stable")]
    bounds = np.searchsorted(last[:, 0], np.arange(len(one.ranks) + 1))
    begin, counts = bounds[first_rank], np.diff(bounds)[first_rank]
    after = np.repeat(first_message, counts)
    within = np.arange(len(after)) - np.repeat(np.cumsum(counts) - counts, counts)
    before, how = last[np.repeat(begin, counts) + within, 1:].T
    per_step = one.work.num_messages
    return [_rows(before + k * per_step, after + (k + 1) * per_step, how) for k in range(steps - 1)]


def training(one: Collective, steps: int, compute_ps: Ints) -> Workload:
    """The collective `steps` times on the same queue pairs; before each every rank computes.

    `compute_ps[step, rank]` says how long. A rank's computation begins when it has the result of the step before.
    """
    base, per_step = one.work, one.work.num_messages
    start = np.tile(base.start, (steps, 1))
    first_rank, first_message = one.first.T
    for step in range(steps):
        start[step, first_message] += compute_ps[step, first_rank]
    edges = [base.edges + np.array([k * per_step, k * per_step, 0]) for k in range(steps)]
    if steps > 1:
        edges += _between_steps(one, steps)
    order = np.argsort(np.tile(base.flow, steps), kind="stable")
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    joined: Ints = np.concatenate(edges)
    joined[:, :2] = back[joined[:, :2]]
    return Workload(
        src=base.src, dst=base.dst, flow=np.tile(base.flow, steps)[order], size=np.tile(base.size, steps)[order],
        start=start.ravel()[order], edges=joined, group=base.group, step=np.repeat(np.arange(steps), per_step)[order],
    )  # fmt: skip

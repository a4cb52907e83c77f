"""The load of a scenario: one workload from its [[traffic]] tables.

Knows: what each kind of traffic means. Must not know: transports, engine.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fairlead.fabric.sim import collectives
from fairlead.fabric.sim.htsim_files import Matrix, read_matrix
from fairlead.fabric.sim.model import Scenario, Traffic
from fairlead.fabric.sim.workload import AFTER_PLACED, AFTER_SENT, Workload, one_message_each, together

Ints = NDArray[np.int64]
PS_PER_US = 1_000_000


def build(scenario: Scenario, num_nics: int, folder: Path) -> Workload:
    """Every part of the traffic, together."""
    parts = []
    for number, part in enumerate(scenario.traffic):
        rng = np.random.default_rng([scenario.run.seed, 2, number])
        parts.append(_KINDS[part.kind](part, num_nics, rng, folder))
    return together(parts)


def count(part: Traffic, num_nics: int, folder: Path) -> tuple[int, int]:
    """How many messages a part of the traffic is, and how many waits between them, without making them."""
    if part.kind == "file":
        return len(read_matrix(folder / part.file).connections), 0
    n, q = num_nics if part.nics.is_all else len(part.nics.every), part.qps
    if part.kind not in _COLLECTIVES:
        return n * q * part.messages, n * q * (part.messages - 1)
    kind, times = (part.collective, part.steps) if part.kind == "training" else (part.kind, part.messages)
    chunks = -(-part.size_bytes // part.chunk_bytes) if part.chunk_bytes else 16
    once, waits, between = {
        "all-to-all": (n * (n - 1) * q, 0, n * ((n - 1) * q) ** 2),
        "ring-all-reduce": (2 * n * (n - 1) * q, 2 * n * (n - 1) * q, n * q * q),
        "tree-all-reduce": (2 * (n - 1) * chunks, 3 * (n - 1) * chunks, n * chunks),
    }[kind]
    return once * times, waits * times + between * (times - 1)


_COLLECTIVES = ("all-to-all", "ring-all-reduce", "tree-all-reduce", "training")


def _start(part: Traffic) -> int:
    return round(part.start_us * PS_PER_US)


def _split(src: Ints, dst: Ints, part: Traffic) -> Workload:
    """Transfers between pairs, each shared by `qps` queue pairs and repeated `messages` times."""
    src, dst = np.repeat(src, part.qps), np.repeat(dst, part.qps)
    size = max(1, -(-part.size_bytes // part.qps))
    if part.messages == 1:
        return one_message_each(src, dst, size, _start(part))
    return _series(src, dst, size, messages=part.messages, depth=part.depth, start=_start(part))


def _series(src: Ints, dst: Ints, size: int, *, messages: int, depth: int, start: int) -> Workload:
    """Messages one after the other on each flow, `depth` of them under way."""
    flow = np.repeat(np.arange(len(src)), messages)
    number = np.arange(len(flow)).reshape(len(src), messages)
    begin = np.zeros_like(number)
    begin[:, :depth] = start
    before, after = number[:, :-depth].ravel(), number[:, depth:].ravel()
    edges = np.stack([before, after, np.full(len(before), AFTER_SENT)], axis=-1)
    return Workload(
        src=src, dst=dst, flow=flow, size=np.full(len(flow), size, dtype=np.int64), start=begin.ravel(), edges=edges,
        group=np.zeros(len(src), dtype=np.int64),
    )  # fmt: skip


def derangement(num: int, rng: np.random.Generator) -> Ints:
    """A random permutation that leaves nobody in place."""
    order = rng.permutation(num).astype(np.int64)
    fixed = np.flatnonzero(order == np.arange(num))
    if len(fixed) == 1:
        other = (fixed[0] + 1) % num
        order[[fixed[0], other]] = order[[other, fixed[0]]]
    elif len(fixed) > 1:
        order[fixed] = order[np.roll(fixed, 1)]
    return order


def _permutation(part: Traffic, num_nics: int, rng: np.random.Generator, folder: Path) -> Workload:
    nics = part.nics.numbers(num_nics)
    return _split(nics, nics[derangement(len(nics), rng)], part)


def _incast(part: Traffic, num_nics: int, rng: np.random.Generator, folder: Path) -> Workload:
    nics = part.nics.numbers(num_nics)
    src = nics[nics != part.to]
    return _split(src, np.full_like(src, part.to), part)


def _flow(part: Traffic, num_nics: int, rng: np.random.Generator, folder: Path) -> Workload:
    src = part.nics.numbers(num_nics)
    return _split(src, np.full_like(src, part.to), part)


def _send_recv(part: Traffic, num_nics: int, rng: np.random.Generator, folder: Path) -> Workload:
    """Rank i and rank i + n/2 send to each other, as in a pipeline or the NCCL sendrecv test."""
    nics = part.nics.numbers(num_nics)
    half = len(nics) // 2
    return _split(nics[: 2 * half], np.concatenate([nics[half : 2 * half], nics[:half]]), part)


def _collective(kind: str, part: Traffic, num_nics: int) -> collectives.Collective:
    nics = part.nics.numbers(num_nics)
    if kind == "ring-all-reduce":
        return collectives.ring_all_reduce(nics, part.size_bytes, part.qps)
    if kind == "tree-all-reduce":
        return collectives.tree_all_reduce(nics, part.size_bytes, part.chunk_bytes, part.qps)
    return collectives.all_to_all(nics, part.size_bytes, part.qps)


def _one_collective(part: Traffic, num_nics: int, rng: np.random.Generator, folder: Path) -> Workload:
    one = _collective(part.kind, part, num_nics)
    return collectives.training(
        one, part.messages, np.full((part.messages, len(one.ranks)), _start(part)) * _only_first(part.messages)
    )


def _only_first(num: int) -> Ints:
    """The start time delays the first repetition alone."""
    mask = np.zeros((num, 1), dtype=np.int64)
    mask[0] = 1
    return mask


def _training(part: Traffic, num_nics: int, rng: np.random.Generator, folder: Path) -> Workload:
    one = _collective(part.collective, part, num_nics)
    jitter = 1 + part.compute_jitter * (2 * rng.random((part.steps, len(one.ranks))) - 1)
    compute = np.round(part.compute_us * PS_PER_US * jitter).astype(np.int64)
    return collectives.training(one, part.steps, compute + _start(part) * _only_first(part.steps))


def _file(part: Traffic, num_nics: int, rng: np.random.Generator, folder: Path) -> Workload:
    return from_matrix(read_matrix(folder / part.file), PS_PER_US if part.start_unit == "us" else 1)


def from_matrix(matrix: Matrix, ps_per_unit: int) -> Workload:
    """A connection matrix; each line is a flow of one message, but for those that share a connection."""
    first: dict[tuple[int, int], int] = {}
    begins = [first.setdefault((c.src, c.dst), i) if c.shares_flow else i for i, c in enumerate(matrix.connections)]
    order = sorted(range(len(begins)), key=lambda i: begins[i])
    lines = [matrix.connections[i] for i in order]
    flow_begins, flow = np.unique([begins[i] for i in order], return_inverse=True)
    pairs = [matrix.connections[i] for i in flow_begins]
    fired: dict[int, list[tuple[int, int]]] = {}
    for number, line in enumerate(lines):
        if line.sent_trigger:
            fired.setdefault(line.sent_trigger, []).append((number, AFTER_SENT))
        if line.received_trigger:
            fired.setdefault(line.received_trigger, []).append((number, AFTER_PLACED))
    edges = [
        (before, after, how)
        for after, line in enumerate(lines)
        if line.trigger
        for before, how in fired.get(line.trigger, ())
    ]
    return Workload(
        src=np.array([c.src for c in pairs], dtype=np.int64),
        dst=np.array([c.dst for c in pairs], dtype=np.int64),
        flow=flow.astype(np.int64),
        size=np.array([c.size for c in lines], dtype=np.int64),
        start=np.array([round((c.start or 0.0) * ps_per_unit) for c in lines], dtype=np.int64),
        edges=np.array(edges, dtype=np.int64).reshape(-1, 3),
        group=np.zeros(len(pairs), dtype=np.int64),
    )


_KINDS: dict[str, Callable[[Traffic, int, np.random.Generator, Path], Workload]] = {
    "permutation": _permutation,
    "incast": _incast,
    "flow": _flow,
    "send-recv": _send_recv,
    "all-to-all": _one_collective,
    "ring-all-reduce": _one_collective,
    "tree-all-reduce": _one_collective,
    "training": _training,
    "file": _file,
}

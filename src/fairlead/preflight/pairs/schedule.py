"""Who tests whom, and when: rounds in which no test stands in another's way. Pure arithmetic over node numbers 0..n-1.

Three schedules, one for each question:

    all pairs     short bursts on every directed pair. Round r: node i sends to node i+r (mod n). Each node then sends
                  to exactly one node and hears from exactly one, so no port carries two bursts in a direction, and
                  n-1 rounds cover each of the n(n-1) directed pairs once, for any n, odd or even.
    log degree    rates and latencies. Rounds r = 1, 2, 4, ... < n of the same rule: ceil(log2 n) rounds in which every
                  node meets that many others as a sender and as many as a receiver, in one connected pattern.
    adaptive      tests asked for by suspicion. A round takes what fits, most urgent first, each node in one test at
                  most, so that a suspect is measured in quiet; at most ceil(log2 n) + 6 such rounds.

Rates, latencies and suspicion together thus never take more than 2 ceil(log2 n) + 6 rounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

MAX_BATCHES = 64
"""Rounds of short bursts are sent to the nodes in at most this many batches, so that a large cluster does not wait for
the control network a thousand times. Within a batch nodes go from round to round by their own clocks."""

EXTRA_ROUNDS = 6


class Test(NamedTuple):
    """One directed pair on some paths (numbers into the plan's list of paths)."""

    src: int
    dst: int
    paths: tuple[int, ...]


def all_pairs(num_nodes: int) -> list[range]:
    """The rounds 1..n-1 in batches: each batch a range of shifts r, for `i sends to i+r`."""
    num_rounds = num_nodes - 1
    if num_rounds < 1:
        return []
    per_batch = -(-num_rounds // MAX_BATCHES)
    return [range(r, min(r + per_batch, num_nodes)) for r in range(1, num_nodes, per_batch)]


def log_degree(num_nodes: int) -> list[int]:
    """The shifts 1, 2, 4, ... below n."""
    return [1 << k for k in range(log2_up(num_nodes))]


def in_round(num_nodes: int, shift: int) -> Iterator[tuple[int, int]]:
    """The directed pairs of one round."""
    for i in range(num_nodes):
        yield i, (i + shift) % num_nodes


def max_adaptive_rounds(num_nodes: int) -> int:
    """How many rounds suspicion may take."""
    return log2_up(num_nodes) + EXTRA_ROUNDS


def max_rounds(num_nodes: int) -> int:
    """The bound on rate, latency and adaptive rounds together: 2 ceil(log2 n) + 6."""
    return len(log_degree(num_nodes)) + max_adaptive_rounds(num_nodes)


def fit(wanted: Iterable[Test], *, both_ways: bool = False) -> list[Test]:
    """The tests of one adaptive round: in the order of urgency, each node in one pair at most.

    Tests of the same directed pair on several paths become one test. `both_ways`: a node may send to one and hear from
    another, as in the first pass.
    """
    chosen: dict[tuple[int, int], list[int]] = {}
    busy: set[tuple[int, bool]] = set()
    for test in wanted:
        pair = (test.src, test.dst)
        if pair in chosen:
            chosen[pair] += [p for p in test.paths if p not in chosen[pair]]
        elif busy.isdisjoint(((test.src, True), (test.dst, both_ways is False))):
            chosen[pair] = list(test.paths)
            busy.update(((test.src, True), (test.dst, both_ways is False)))
    return [Test(src, dst, tuple(sorted(paths))) for (src, dst), paths in chosen.items()]


def log2_up(number: int) -> int:
    """ceil(log2 n) for n >= 1."""
    return max(0, (number - 1).bit_length())

"""What the summary of the pair phase would claim and the facts do not hold: without it nobody knows that all is well.

A phase that ended by itself has all of this; where a part is missing, answers were lost, or the file was cut. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from fairlead.base.nodeset import fold
from fairlead.preflight.pairs.facts import PairFacts
from fairlead.preflight.pairs.naming import path_name
from fairlead.preflight.pairs.schedule import log_degree


def untold(facts: PairFacts) -> Iterator[str]:
    """Each thing that is missing, in words."""
    here = [n for n in facts.members if n not in facts.lost]
    num_pairs = len(facts.members) * (len(facts.members) - 1)
    if not facts.addresses:
        yield "the addresses of nodes"
    if facts.rounds.get("burst", 0) < len(facts.members) - 1:
        yield "that there was a burst on every pair"
    paths = [p for p in range(len(facts.paths)) if p not in facts.stopped and len(_reached(facts, here, p)) > 1]
    if unsized := [p for p in paths if not facts.full_bytes.get(p)]:
        yield f"how large full-size packets were: {_named(facts, unsized)}"
    if unrated := [p for p in paths if (p or len(facts.paths) == 1) and _unrated(facts, here, p)]:
        nodes = sorted({n for p in unrated for n in _unrated(facts, here, p)})
        yield f"any rate at which packets came to {_fold(facts, nodes)}: {_named(facts, unrated)}"
    if not facts.tcp_skipped and facts.tcp_tested < num_pairs:
        yield f"what came of {num_pairs - facts.tcp_tested} connections of {num_pairs}"
    if timeless := [n for n in here if n not in facts.clocks]:
        yield f"the clock of {_fold(facts, timeless)}"
    if idle := [n for n in here if not facts.work.get(n)]:
        yield f"the time that {_fold(facts, idle)} took for the fixed work"
    if unwatched := [n for n in here if n in facts.counters and n not in facts.watched_s]:
        yield f"what the ports of {_fold(facts, unwatched)} counted at the end"


def _reached(facts: PairFacts, nodes: Iterable[int], path: int) -> list[int]:
    """Those of some nodes that have an address on a path."""
    return [n for n in nodes if not facts.addresses or facts.addresses[n][path]]


def _unrated(facts: PairFacts, here: list[int], path: int) -> list[int]:
    """Nodes to which streams were sent on a path, by the order of the rounds, and that have the rate of none."""
    rated = {s.dst for s in (*facts.speeds, *facts.speeds_again) if s.path == path and s.rate_bps}
    there = set(_reached(facts, here, path))
    senders: defaultdict[int, set[int]] = defaultdict(set)
    for shift in log_degree(len(here)):
        for at, node in enumerate(here):
            senders[here[(at + shift) % len(here)]].add(node)
    return [n for n in here if n in there and n not in rated and senders[n] & there]


def _named(facts: PairFacts, paths: Iterable[int]) -> str:
    return ", ".join(path_name(facts, p) for p in paths)


def _fold(facts: PairFacts, nodes: Iterable[int]) -> str:
    return fold([facts.nodes[n] for n in nodes])

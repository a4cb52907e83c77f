"""Nodes first: every declared node is probed before anything waits for it. Returns answers; judging is for checks.

The fleet sets the pace: once half of the nodes have answered, the others get three times as long again, and four
seconds at least. So a hung node costs seconds where probes take one, and is not called hung where they take twenty.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from itertools import groupby

from fairlead.base.units import duration
from fairlead.cluster import Cluster, Command, NodeSet, Result, State
from fairlead.preflight.pipe import boot
from fairlead.probe import NodeAnswer, program
from fairlead.spec.model import Spec

PATIENCE = 3.0
PATIENCE_S = 4.0
_START_S = 5.0
"""Of the limit, what reaching a node and starting Python there may take; the rest is the probe's own."""

Progress = Callable[[str, int, int, str], None]


def probe_nodes(
    cluster: Cluster, spec: Spec, nodes: NodeSet, *, limit_s: float, progress: Progress
) -> list[NodeAnswer]:
    """One answer for every node, in the order of the set."""
    answers: dict[str, NodeAnswer] = {}
    pools = sorted((pool for pool in spec.pools if pool.nodes & nodes), key=lambda pool: pool.python)
    for python, same in groupby(pools, key=lambda pool: pool.python):
        members = NodeSet(node for pool in same for node in pool.nodes if node in nodes)
        answers |= _probe(cluster, python, members, limit_s, progress)
    return [answers[node] for node in nodes]


def patience_s(answered_s: Iterable[float], num_nodes: int, limit_s: float) -> float:
    """How long, counted from the start, a node may take, given when others have answered.

    >>> patience_s([1.0, 1.2], 4, 60.0), patience_s([9.0, 10.0, 11.0], 4, 60.0), patience_s([1.0], 4, 60.0)
    (5.0, 30.0, 60.0)
    """
    done = sorted(answered_s)
    half = -(-num_nodes // 2)
    if len(done) < half:
        return limit_s
    return min(limit_s, max(PATIENCE * done[half - 1], PATIENCE_S + done[0]))


def _probe(cluster: Cluster, python: str, nodes: NodeSet, limit_s: float, progress: Progress) -> dict[str, NodeAnswer]:
    source = program().encode()
    argv = (python, *boot(source, "fairlead-probe"), "--limit", f"{max(2.0, limit_s - _START_S):g}")
    started, text, took_s = time.monotonic(), dict.fromkeys(nodes, ""), dict[str, float]()
    with cluster.live(nodes, Command(argv=argv, stdin=source), limit_s=limit_s) as group:
        while len(took_s) < len(nodes) or group.has_unread:
            line = group.read(0.25)
            now = time.monotonic() - started
            if line is not None and line.stream == "stdout":
                text[line.node] += line.text + "\n"
            for node, _ in list(group.ended):
                took_s.setdefault(node, now)
            out = NodeSet(set(nodes) - took_s.keys())
            progress("nodes", len(took_s), len(nodes), f"waiting for {out}" if out else "")
            if line is None and now > patience_s(took_s.values(), len(nodes), limit_s):
                break
        waited_s = time.monotonic() - started
        results = {result.node: result for result in group.close()}
    progress("nodes", len(nodes), len(nodes), "")
    return {node: _answer(results[node], text[node], waited_s, took_s) for node in nodes}


def _answer(result: Result, text: str, waited_s: float, took_s: dict[str, float]) -> NodeAnswer:
    if result.ok and text:
        return NodeAnswer(result.node, text.encode())
    if result.node not in took_s:
        hint = f"look at its console; fairlead exec -w {result.node} -- true"
        return NodeAnswer(result.node, None, f"no answer within {duration(waited_s)}, while others answered", hint)
    why = result.error or "the probe ended without a word"
    words = result.stderr.text.strip().splitlines()
    if result.state is State.FAILED and words:
        why = f"{why}: {words[-1][:200]}"
    return NodeAnswer(result.node, None, why, result.hint)

"""Nodes first: every declared node is probed before anything waits for it. Returns answers; judging is for checks.

The fleet sets the pace: once half of the nodes have answered, the others get three times as long again, and thirteen
seconds at least: the probe itself gives nvidia-smi twelve, which it may need where the driver is not kept loaded. So a
hung node costs seconds where probes take one, and is not called hung where they take a minute.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

from fairlead.base.units import duration
from fairlead.cluster import Cluster, NodeSet, Result, State
from fairlead.probe import KEEP_BYTES, NodeAnswer, arguments, program
from fairlead.records.border import shown
from fairlead.records.log import tell

PATIENCE = 3.0
PATIENCE_S = 13.0
_TALKS_S = 1.0
_START_S = 5.0
"""Of the limit, what reaching a node and starting Python there may take; the rest is the probe's own."""

log = logging.getLogger("fairlead.preflight")
Progress = Callable[[str, int, int, str], None]


def probe_nodes(cluster: Cluster, nodes: NodeSet, *, limit_s: float, progress: Progress) -> list[NodeAnswer]:
    """One answer for every node, in the order of the set."""
    took_s: dict[str, float] = {}
    started, text = time.monotonic(), {node: _Text() for node in nodes}
    words = arguments(limit_s=max(2.0, limit_s - _START_S))
    with cluster.start(program(), nodes, limit_s=limit_s, args=words) as group:
        while len(took_s) < len(nodes) or group.has_unread:
            lines = group.read_all(0.25)
            now = time.monotonic() - started
            for line in lines:
                if line.stream == "stdout":
                    text[line.node].add(line.text)
            for (node, _), _ in group.take_ended():
                took_s[node] = now
            out = NodeSet(set(nodes) - took_s.keys())
            progress("nodes", len(took_s), len(nodes), f"waiting for {out}" if out else "")
            # one that talks without end is no reason to wait longer; words that are on their way may be
            patience = patience_s(took_s.values(), len(nodes), limit_s)
            if now > patience + (_TALKS_S if lines else 0.0):
                break
        waited_s = time.monotonic() - started
        _tell_patience(took_s, nodes, limit_s, waited_s)
        results = {result.node: result for result in group.close()}
    progress("nodes", len(nodes), len(nodes), "")
    return [_answer(results[node], text[node].whole(), waited_s, took_s) for node in nodes]


def _tell_patience(took_s: dict[str, float], nodes: NodeSet, limit_s: float, waited_s: float) -> None:
    late = NodeSet(set(nodes) - took_s.keys())
    tell(
        log,
        f"{len(took_s)} of {len(nodes)} probes ended",
        waited_s=round(waited_s, 3),
        patience_s=round(patience_s(took_s.values(), len(nodes), limit_s), 3),
        node_limit_s=limit_s,
        given_up=str(late),
        slowest=max(took_s, key=lambda node: took_s[node], default=""),
    )


def patience_s(answered_s: Iterable[float], num_nodes: int, limit_s: float) -> float:
    """How long, counted from the start, a node may take, given when others have answered.

    >>> patience_s([1.0, 1.2], 4, 60.0), patience_s([9.0, 10.0, 11.0], 4, 60.0), patience_s([1.0], 4, 60.0)
    (14.0, 30.0, 60.0)
    """
    done = sorted(answered_s)
    half = -(-num_nodes // 2)
    if len(done) < half:
        return limit_s
    return min(limit_s, max(PATIENCE * done[half - 1], PATIENCE_S + done[0]))


class _Text:
    """What a node has written, up to the largest answer that is taken whole."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._size = 0

    def add(self, line: str) -> None:
        """One more line, while there is room."""
        self._size += len(line) + 1
        if self._size <= KEEP_BYTES:
            self._lines.append(line)

    def whole(self) -> str:
        """All of it; nothing where it grew beyond the bound, for half an answer is none."""
        return "".join(f"{line}\n" for line in self._lines) if self._size <= KEEP_BYTES else ""


def _answer(result: Result, text: str, waited_s: float, took_s: dict[str, float]) -> NodeAnswer:
    if result.ok and text:
        return NodeAnswer(result.node, text.encode())
    if result.node not in took_s:
        hint = f"look at its console; fairlead exec -w {result.node} -- true"
        return NodeAnswer(result.node, None, f"no answer within {duration(waited_s)}, while others answered", hint)
    why = result.error or "the probe ended without a word"
    words = result.stderr.text.strip().splitlines()
    if result.state is State.FAILED and words:
        why = f"{why}: {shown(words[-1])}"
    return NodeAnswer(result.node, None, why, result.hint, result.code)

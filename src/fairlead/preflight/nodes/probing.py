"""Nodes first: every declared node is probed before anything waits for it. Returns answers; judging is for checks.

Who is waited for how long stands in patience.py.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from fairlead.cluster import Cluster, NodeSet, Result, State
from fairlead.preflight.nodes.patience import ProbePatience, Waiting
from fairlead.probe import KEEP_BYTES, NodeAnswer, arguments, program
from fairlead.records.border import shown
from fairlead.records.log import tell

LOOK_S, DEAF_S = 0.25, 1.0
"""How long a line is waited for; this side was late itself where it listens again only so much later."""
_TALKS_S = 1.0
_START_S = 5.0
"""Of the limit, what reaching a node and starting Python there may take; the rest is the probe's own."""

log = logging.getLogger("fairlead.preflight")
Progress = Callable[[str, int, int, str], None]


def probe_nodes(cluster: Cluster, nodes: NodeSet, *, patience: ProbePatience, progress: Progress) -> list[NodeAnswer]:
    """One answer for every node, in the order of the set."""
    waiting, limit_s = Waiting(patience, frozenset(nodes)), patience.node_limit_s
    text = {node: _Text() for node in nodes}
    words = arguments(limit_s=max(2.0, limit_s - _START_S))
    started = listened = time.monotonic()
    with cluster.start(program(), nodes, limit_s=limit_s, args=words) as group:
        while waiting.left or group.has_unread:
            lines = group.read_all(LOOK_S)
            now = time.monotonic()
            if now - listened > LOOK_S + DEAF_S:
                waiting.listened(now, now - listened - LOOK_S)
            listened = now
            for line in lines:
                if line.stream == "stdout":
                    text[line.node].add(line.text)
            waiting.hear(group.alive)
            for (node, _), _ in group.take_ended():
                waiting.ended(node, now, group.begun)
            out = waiting.left
            progress("nodes", len(nodes) - len(out), len(nodes), f"waiting for {NodeSet(out)}" if out else "")
            # one that talks without end is no reason to wait longer; words that are on their way may be
            for node in waiting.give_up(now - (_TALKS_S if lines else 0.0), group.begun):
                group.give_up(node)
        _tell(waiting, nodes, time.monotonic() - started)
        results = {result.node: result for result in group.close()}
    progress("nodes", len(nodes), len(nodes), "")
    return [_answer(results[node], text[node].whole(), waiting.gone.get(node, "")) for node in nodes]


def _tell(waiting: Waiting, nodes: NodeSet, waited_s: float) -> None:
    took_s, patience = waiting.took_s, waiting.patience
    tell(
        log,
        f"{len(took_s)} of {len(nodes)} probes ended",
        waited_s=round(waited_s, 3),
        patience_s=round(patience.after(took_s.values(), len(nodes), patience.probe_s), 3),
        node_limit_s=patience.node_limit_s,
        given_up=waiting.gone,
        slowest=max(took_s, key=lambda node: took_s[node], default=""),
        listened_late_s=round(waiting.deaf_s, 3),
    )


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


def _answer(result: Result, text: str, given_up: str) -> NodeAnswer:
    if result.ok and text:
        return NodeAnswer(result.node, text.encode())
    if given_up:
        hint = f"look at its console; fairlead exec -w {result.node} -- true"
        return NodeAnswer(result.node, None, given_up, hint)
    why = result.error or "the probe ended without a word"
    words = result.stderr.text.strip().splitlines()
    if result.state is State.FAILED and words:
        why = f"{why}: {shown(words[-1])}"
    return NodeAnswer(result.node, None, why, result.hint, result.code)

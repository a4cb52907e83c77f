"""An end is known before the last words are read: nothing that was said may be lost because of it."""

from __future__ import annotations

import json
import time
from contextlib import contextmanager

from fairlead.base.nodeset import NodeSet
from fairlead.cluster import Line, Result, State
from fairlead.preflight.nodes.patience import DEFAULT
from fairlead.preflight.nodes.probing import probe_nodes

NODES = ("n0", "n1", "n2")


class AllEnded:
    """A group whose processes have all spoken and ended before the first word is read."""

    def __init__(self, lines: list[Line], has_ranks: bool) -> None:
        self.unread: list[Line | None] = []
        keys = [(line.node, line.rank) for line in lines]
        for line in lines:
            self.unread += [line, None]  # None: the mark of an end
        self.ended = {k: Result(node=k[0], state=State.DONE, rc=0, rank=k[1] if has_ranks else None) for k in keys}

    @property
    def has_unread(self) -> bool:
        return bool(self.unread)

    def read_all(self, timeout_s: float) -> list[Line]:
        return [line for line in self.unread[:1] if self.unread.pop(0)]

    @property
    def alive(self) -> dict[str, float]:
        return {}

    @property
    def begun(self) -> dict[str, float]:
        return dict.fromkeys(NODES, time.monotonic())

    def take_ended(self):
        return list(self.ended.items())

    def send(self, text: str) -> None:
        """Nobody is left to hear it."""

    def close(self, grace_s: float = 0.0) -> list[Result]:
        return list(self.ended.values())


class Cluster:
    """One whose groups are over at once."""

    @contextmanager
    def start(self, program, nodes, *, limit_s, args):
        yield AllEnded([Line(n, None, "stdout", f'{{"node": "{n}"}}') for n in nodes], has_ranks=False)


def test_every_probe_that_answered_is_heard():
    answers = probe_nodes(Cluster(), NodeSet(NODES), patience=DEFAULT, progress=lambda *_: None)
    assert [json.loads(a.document or b"{}").get("node") for a in answers] == list(NODES)

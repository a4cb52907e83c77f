"""An end is known before the last words are read: nothing that was said may be lost because of it."""

from __future__ import annotations

import itertools
import json
from contextlib import contextmanager

from fairlead.base.nodeset import NodeSet
from fairlead.cluster import Line, Result, State
from fairlead.preflight import ranks
from fairlead.preflight.facts import RankFacts
from fairlead.preflight.nodes import probe_nodes
from fairlead.preflight.ranks import Watch, listen
from fairlead.spec.model import Access, Pool, Spec

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

    def read(self, timeout_s: float) -> Line | None:
        return self.unread.pop(0) if self.unread else None

    def send(self, text: str) -> None:
        """Nobody is left to hear it."""

    def close(self, grace_s: float = 0.0) -> list[Result]:
        return list(self.ended.values())


class Cluster:
    """One whose groups are over at once."""

    @contextmanager
    def live(self, nodes, command, *, limit_s):
        yield AllEnded([Line(n, None, "stdout", f'{{"node": "{n}"}}') for n in nodes], has_ranks=False)


def test_every_probe_that_answered_is_heard():
    spec = Spec(schema=1, pools=(Pool(name="p", size="other", nodes=NodeSet(NODES)),), access=Access(via="ssh"))
    answers = probe_nodes(Cluster(), spec, NodeSet(NODES), limit_s=10, progress=lambda *_: None)
    assert [json.loads(a.document or b"{}").get("node") for a in answers] == list(NODES)


def test_every_rank_that_came_through_is_heard():
    words = [Line(n, i, "stdout", json.dumps({"say": "phase", "phase": "done"})) for i, n in enumerate(NODES)]
    facts = RankFacts(nodes=NODES, per_node=1, wanted=3, limit_s=10, backend="tasks")
    listen(AllEnded(words, has_ranks=True), facts, Watch(3, 60), lambda _: None)
    assert [(said["rank"], said["phase"]) for said in facts.lines] == [(0, "done"), (1, "done"), (2, "done")]


def test_nobody_is_judged_before_the_last_words_are_read(monkeypatch):
    """A listener that is behind knows of all the ends at once: who failed of itself, and who only says so."""
    clock = itertools.count(step=0.3)
    monkeypatch.setattr(ranks.time, "monotonic", lambda: next(clock))
    words = [Line(n, i, "stdout", json.dumps({"say": "error", "kind": "x", "text": n})) for i, n in enumerate(NODES)]
    group = AllEnded(words, has_ranks=True)
    group.ended = {key: Result(node=key[0], state=State.FAILED, rc=1, rank=key[1]) for key in group.ended}
    facts = RankFacts(nodes=NODES, per_node=1, wanted=3, limit_s=10, backend="tasks")
    listen(group, facts, Watch(3, 60), lambda _: None)
    assert [said["text"] for said in facts.lines] == list(NODES)

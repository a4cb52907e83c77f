"""The control side of a spread, by what scripted nodes tell it."""

from __future__ import annotations

import json
from types import SimpleNamespace

from fairlead.cluster.protocol import Line
from fairlead.weights.objects import Object
from fairlead.weights.outcome import Options
from fairlead.weights.planned import plan_of
from fairlead.weights.spreading import Spread


class Scripted:
    """Nodes that say these things, a round of reading each; afterwards nothing."""

    num_starting, has_unread = 0, False

    def __init__(self, *rounds):
        self.rounds, self.sent = list(rounds), []

    def start(self, *_, **__):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def send(self, message, to=None):
        self.sent.append((to, message))

    def read_all(self, timeout_s):
        assert self.rounds, "it waits for what nobody will say"
        return [Line(node, None, "stdout", json.dumps(what)) for node, what in self.rounds.pop(0)]

    def take_ended(self):
        return []

    def close(self, grace_s=0.0):
        return None


HELLO = {"do": "hello", "has": "01", "port": 7}
DONE = {"do": "done", "root": "r"}


def test_who_is_done_before_the_others_have_looked_is_done():
    """It has everything, and says so at once; a second node needs longer to see that it has everything, too."""
    nodes = Scripted(
        [("a", {"do": "here", "blake3": True}), ("b", {"do": "here", "blake3": True})],
        [("a", HELLO), ("a", DONE)],
        [("b", HELLO), ("b", DONE)],
        [],
    )
    plan = plan_of([Object(path="f", size=10, tag="t", digest="")], source="s")
    source = SimpleNamespace(
        name="s", has_md5_tags=False, headers={}, pins=True, urls=lambda paths: dict.fromkeys(paths, "")
    )
    out = Spread(nodes, plan, source, Options(dest="/d"), {"a": "10.0.0.1", "b": "10.0.0.2"}).run()
    assert [(n.name, n.root, n.failed) for n in out.nodes] == [("a", "r", None), ("b", "r", None)]
    assert json.loads(nodes.sent[-1][1]) == {"do": "end"}

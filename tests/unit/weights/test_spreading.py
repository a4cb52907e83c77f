"""The control side of a spread, by what scripted nodes tell it."""

from __future__ import annotations

import json
from types import SimpleNamespace

from fairlead.base.nodeset import NodeSet
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


HELLO = {"do": "hello", "has": "01"}
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
        name="s", has_md5_tags=False, headers={}, pins=True, node="", urls=lambda paths: dict.fromkeys(paths, "")
    )

    def where():
        raise AssertionError("nothing moves: nobody is asked where he is")

    out = Spread(nodes, plan, source, Options(dest="/d"), nodes=NodeSet("a,b"), where=where).run()
    assert [(n.name, n.root, n.failed) for n in out.nodes] == [("a", "r", None), ("b", "r", None)]
    said = [json.loads(message) for _, message in nodes.sent if isinstance(message, str)]
    assert [what["do"] for what in said if "do" in what] == ["end"], "nobody is to open, to take or to fetch"

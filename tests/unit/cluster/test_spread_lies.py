"""A node of a push that lies: its reports reach nobody, and the others have the file."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from fairlead.base.nodeset import NodeSet
from fairlead.cluster.protocol import Line, Result, State
from fairlead.cluster.spread import Spread, source_of

NODES = NodeSet("n[1-3]")


class Group:
    """n1 and n3 take a push as they should; what n2 reports is given."""

    def __init__(self, lies: list[str]) -> None:
        honest = [{"do": "ready", "port": 4000}, {"do": "need", "chunk": 0}, {"do": "whole"}, {"do": "done"}]
        self.said = [Line("n2", None, "stdout", lie) for lie in lies]
        self.said += [Line(node, None, "stdout", json.dumps(what)) for what in honest for node in ("n1", "n3")]
        self.sent: list[tuple[object, str | None]] = []
        self.heard = SimpleNamespace(ended={})

    def send(self, message, to=None):
        self.sent.append((message, to))

    async def room(self, to=None):
        pass

    async def read_all(self, timeout_s):
        said, self.said = self.said[:1], self.said[1:]
        return said

    async def close(self, grace_s):
        return [Result(node=node, state=State.CANCELLED) for node in NODES]


@pytest.mark.parametrize(
    "lies",
    [
        ['{"do":"ready","port":70000}'], ['{"do":"ready","port":-1}'], ['{"do":"ready","port":[]}'],
        ['{"do":"open"}'], ["{"],
        ['{"do":"need","chunk":-1}'], ['{"do":"need","chunk":999}'], ['{"do":"failed","error":[]}'], ["{}"],
        ['{"do":"ready","port":9}'] * 2, ['{"do":"need"}'] * 1000, ['{"do":"whole"}'] * 1000,
        ['{"do":"ready","x":' + "[" * 100_000 + "]" * 100_000 + "}"],
    ],
)  # fmt: skip
async def test_a_lie_is_its_own_nodes_failure(lies, tmp_path):
    (tmp_path / "file").write_bytes(b"x" * 1000)
    group = Group(lies)
    addresses = {node: f"10.0.0.{i}" for i, node in enumerate(NODES, 1)}
    spread = Spread(group, source_of(tmp_path / "file", 0o644), "/a/file", addresses, fanout=4)
    results = {r.node: r for r in await spread.run(NODES)}
    assert {n: results[n].state for n in ("n1", "n3")} == {"n1": State.DONE, "n3": State.DONE}
    assert results["n2"].state is State.FAILED
    assert results["n2"].error.startswith("it sent ")
    assert len(group.sent) < 40
    for message, _ in group.sent:
        assert "70000" not in str(message)

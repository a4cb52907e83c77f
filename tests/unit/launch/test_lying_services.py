"""What a node answers about services: its own state, under its own name, or unknown."""

from __future__ import annotations

import json

import pytest

from fairlead.cluster.protocol import Output, Result, State
from fairlead.launch.service import _states


def answered(text: str):
    (state,) = _states(Result(node="n2", state=State.DONE, rc=0, stdout=Output(head=text.encode())), "logs")
    return state


def test_a_node_that_names_another_speaks_of_itself():
    state = answered(json.dumps({"services": [{"node": "n0", "name": "logs", "state": "running"}]}))
    assert (state.node, state.state) == ("n2", "running")


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"services":{}}', '{"services":[{}]}', '{"services":[{"name":"x","state":"\\u001b[2J"}]}',
     '{"services":[{"name":"x","state":"running","pid":"1"}]}', '{"services":' + "[" * 99_999 + "]" * 99_999 + "}"],
)  # fmt: skip
def test_what_is_no_answer_is_that_nodes_unknown_state(text):
    state = answered(text)
    assert (state.node, state.name, state.state) == ("n2", "logs", "unknown")
    assert state.error.isprintable()

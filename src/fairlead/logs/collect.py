"""The collectors of a cluster, from where fairlead runs: begin them on nodes, end them.

Each node has a token of its own, made of the owner's and the node's name: with it a node can send what is its own, and
nothing else. It goes there on standard input.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fairlead.base.nodeset import NodeSet
from fairlead.base.program import Program
from fairlead.cluster import Cluster, Command
from fairlead.launch.service import Service, ServiceState, deploy
from fairlead.launch.service import stop as end_service
from fairlead.logs.onnode.agent import token_for

NAME = "collect"
LIMIT_S = 60.0
_OURS = "fairlead.logs.onnode"
_PARTS = (
    "fairlead.base.trust",
    *(f"{_OURS}.{name}" for name in ("spool", "sources", "follow", "streams", "ship", "agent")),
)


def agent_source() -> str:
    """The collector as one file of Python 3.9 and its standard library; its argument is the settings, as JSON."""
    return Program.of("fairlead-collect", *_PARTS, call="sys.exit(agent_main(sys.argv[1:]))").source.decode()


def settings_of(server: str, files: tuple[str, ...], **more: Any) -> dict[str, Any]:
    """What a collector is told."""
    return {"server": server, "files": list(files), "spool_bytes": 1 << 30} | more


def start(
    cluster: Cluster, nodes: NodeSet, settings: Mapping[str, Any], secret: bytes, *, python: Mapping[str, str]
) -> list[ServiceState]:
    """Have nodes collect, as `settings` say; what runs so already is left alone."""
    program = Program.of("fairlead-collect-place", *_PARTS, f"{_OURS}.place", call="sys.exit(place_main())")
    commands = {}
    for node in nodes:
        said = {"folder": settings.get("folder", ""), "node": node, "token": token_for(secret, node).decode()}
        told = json.dumps(said).encode() + b"\n"
        commands[node] = Command(argv=program.words(python.get(node, "python3")), stdin=program.stdin + told)
    placed = {result.node: result for result in cluster.run_each(commands, limit_s=LIMIT_S)}
    service = Service(name=NAME, source=agent_source(), args=(json.dumps(dict(settings), sort_keys=True),))
    states = deploy(cluster, nodes, service, python=python)
    return [_state(state, placed[state.node].error) for state in states]


def _state(state: ServiceState, error: str) -> ServiceState:
    if not error:
        return state
    return ServiceState(node=state.node, name=NAME, state="unknown", error=f"its token could not be put there: {error}")


def stop(cluster: Cluster, nodes: NodeSet, *, python: Mapping[str, str]) -> list[ServiceState]:
    """End it. What was not sent stays on the node for the next time."""
    return end_service(cluster, nodes, NAME, python=python)

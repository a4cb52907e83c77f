"""Running things on nodes: commands, groups of ranks, file copies; every node asked has a result."""

from __future__ import annotations

from fairlead.base.nodeset import NodeSet
from fairlead.cluster.connection import connect
from fairlead.cluster.engine import check_nodes
from fairlead.cluster.face import Cluster
from fairlead.cluster.protocol import (
    AsyncCluster,
    Command,
    CommandRecord,
    Interrupted,
    Line,
    Output,
    Result,
    State,
    nodes_in,
)

__all__ = [
    "AsyncCluster",
    "Cluster",
    "Command",
    "CommandRecord",
    "Interrupted",
    "Line",
    "NodeSet",
    "Output",
    "Result",
    "State",
    "check_nodes",
    "connect",
    "nodes_in",
]

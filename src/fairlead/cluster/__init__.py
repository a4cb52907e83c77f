"""Running things on nodes: commands, groups of ranks, file copies; every node asked has a result.

Names are loaded when they are first used: who reads `[slurm]` in a cluster file needs none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.base.lazy import lazy
from fairlead.base.nodeset import NodeSet
from fairlead.base.program import Program

if TYPE_CHECKING:
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

__getattr__ = lazy(
    __name__,
    {
        "connection": ("connect",),
        "engine": ("check_nodes",),
        "face": ("Cluster",),
        "protocol": (
            "AsyncCluster",
            "Command",
            "CommandRecord",
            "Interrupted",
            "Line",
            "Output",
            "Program",
            "Result",
            "State",
            "nodes_in",
        ),
    },
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
    "Program",
    "Result",
    "State",
    "check_nodes",
    "connect",
    "nodes_in",
]

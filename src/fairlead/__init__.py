"""fairlead: an AI cluster with an RDMA-capable network, from booted machines to a running, debuggable job.

    import fairlead

    spec = fairlead.load("cluster.toml")
    with fairlead.connect(spec) as cluster:
        for result in cluster.run("h200-[000-015]", ["uname", "-r"], limit_s=10):
            print(result.node, result.stdout.text)

The names below are loaded when they are first used, so that importing fairlead costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from fairlead.base.nodeset import NodeSet
    from fairlead.cluster import connect
    from fairlead.errors import FairleadError
    from fairlead.records.finding import Finding
    from fairlead.records.verdict import Verdict
    from fairlead.spec import load

_HOMES = {
    "FairleadError": "fairlead.errors",
    "Finding": "fairlead.records.finding",
    "NodeSet": "fairlead.base.nodeset",
    "Verdict": "fairlead.records.verdict",
    "connect": "fairlead.cluster",
    "load": "fairlead.spec",
}

__all__ = ["FairleadError", "Finding", "NodeSet", "Verdict", "__version__", "connect", "load"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module `fairlead` has no attribute `{name}`")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__

"""A model on every node for one download.

    with connect(spec) as cluster:                         # fairlead.spec.load(FILE), fairlead.cluster.connect
        plan(cluster, spec, SOURCE, DEST)                  # what a spread would do: .outcome.forecast
        spread(cluster, spec, SOURCE, DEST)                # every node; a SpreadReport: .verdict, .findings, .totals
        verify(cluster, spec, DEST)                        # read again: a Finding a node
    pull(SOURCE, FOLDER)                                   # this machine alone
    ls(SOURCE)                                             # what lies there: Objects
    choose(SOURCE, include=["*.safetensors"])              # what is wanted, to be given instead of a SOURCE

Names are loaded when they are first used: who reads `[weights]` in a cluster file needs none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.base.lazy import lazy

if TYPE_CHECKING:
    from fairlead.weights.api import Chosen, How, choose, ls, plan, pull, spread, verify
    from fairlead.weights.objects import Object
    from fairlead.weights.report import SpreadReport

__getattr__ = lazy(
    __name__,
    {
        "api": ("Chosen", "How", "choose", "ls", "plan", "pull", "spread", "verify"),
        "objects": ("Object",),
        "report": ("SpreadReport",),
    },
)

__all__ = ["Chosen", "How", "Object", "SpreadReport", "choose", "ls", "plan", "pull", "spread", "verify"]

"""Ranks of a job: started as tasks of a scheduler or as processes, met at a rendezvous, watched; for every stage.

Names are loaded when they are first used: who reads `[launch]` in a cluster file needs none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.base.lazy import lazy

if TYPE_CHECKING:
    from fairlead.launch.job import BACKENDS, RankJob
    from fairlead.launch.messages import STOPPED, Beat, CannotStart, CutOff, Ended, Event, Held, Over, Said, Wrote
    from fairlead.launch.patience import Patience
    from fairlead.launch.run import Ranks, launch

__getattr__ = lazy(
    __name__,
    {
        "job": ("BACKENDS", "RankJob"),
        "messages": (
            "STOPPED",
            "Beat",
            "CannotStart",
            "CutOff",
            "Ended",
            "Event",
            "Held",
            "Lied",
            "Over",
            "Said",
            "Wrote",
        ),
        "patience": ("Patience",),
        "run": ("Ranks", "launch"),
    },
)

__all__ = [
    "BACKENDS",
    "STOPPED",
    "Beat",
    "CannotStart",
    "CutOff",
    "Ended",
    "Event",
    "Held",
    "Lied",
    "Over",
    "Patience",
    "RankJob",
    "Ranks",
    "Said",
    "Wrote",
    "launch",
]

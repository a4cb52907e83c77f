"""A rank of a training run: meets the others, then trains with the fairlead that is installed on its node.

Unlike other ranks it needs more than torch there: models are the transformers library's.
"""

from __future__ import annotations

from importlib import import_module

from fairlead.launch.onnode.me import CannotStart, Me
from fairlead.launch.onnode.meet import RankGroup


def body(me: Me) -> int:
    """Join the group and train; returns the exit status."""
    group = RankGroup(me)
    try:
        ours = import_module("fairlead.train.rank")
        there = str(import_module("fairlead").__version__)
    except ImportError as error:
        raise CannotStart("no-fairlead", f"{type(error).__name__}: {error}") from None
    if there != me.settings["version"]:
        text = f"fairlead {there} is installed, and {me.settings['version']} starts the run"
        raise CannotStart("no-fairlead", text)
    group.join()
    status = int(ours.trained(me, group))
    if status == 0:
        group.leave()
    return status

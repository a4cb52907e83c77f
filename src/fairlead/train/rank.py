"""What a rank does once the group stands: opens the run with the others, trains, and says how far it is.

    phase       open, step (again and again, so that it is heard that steps are done)
    opened      rank 0: steps done before, and of how many
    stepped     rank 0: steps done, loss, tokens a second; not after every step
    refused     code, text and hint of an error that is no fault of the node
    finished    rank 0: steps done

Runs in the Python of the node's pool. Must not know: who started it.
"""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from fairlead.errors import FairleadError, TrainError
from fairlead.train.config import load
from fairlead.train.session import Session
from fairlead.train.team import Team

if TYPE_CHECKING:
    from fairlead.launch.onnode.me import Me
    from fairlead.launch.onnode.meet import RankGroup

SHARE, MOST_S = 200, 300.0
"""A word at most every second, and the longer the run is, the rarer: each SHARE-th part of it, at least every MOST_S.
A rank may only say so much in all (launch/ears.py), and five minutes are well below what a hang is given."""


def trained(me: Me, group: RankGroup) -> int:
    """Train as `me.settings` say (config, resume, steps); the exit status."""
    try:
        _train(me, group)
    except FairleadError as error:
        me.say("refused", code=error.code, text=str(error).partition("\n")[0], hint=error.hint)
        return 1
    return 0


def _train(me: Me, group: RankGroup) -> None:
    me.enter("open")
    if not group.cuda:
        per_node = max(1, int(me.config.get("per_node", 1)))
        group.torch.set_num_threads(int(me.settings["threads"]) or max(1, len(os.sched_getaffinity(0)) // per_node))
    path = Path(me.settings["config"])
    if not path.is_file():
        hint = "configuration, model, tokens and store must lie on a file system that all nodes share"
        raise TrainError("train/not-shared", f"{path} is not there", hint=hint)
    config = load(path)
    config = msgspec.structs.replace(config, memory=msgspec.structs.replace(config.memory, device=str(group.device)))
    team = Team(timedelta(seconds=me.config["timeout_s"]), me.node)
    with Session.open(config, path.parent, resume=bool(me.settings["resume"]), team=team) as run:
        if me.rank == 0:
            me.say("opened", steps=run.done, of=config.run.steps)
        team.meet()  # who reads slowly holds nobody up from here on
        me.enter("step", step=run.done)
        began = due = time.monotonic()
        told: dict[str, float] = {}
        for progress in run.train(me.settings["steps"]):
            now = time.monotonic()
            told = {"loss": progress.result.loss, "tokens_per_s": round(progress.tokens / progress.seconds, 1)}
            if now < due:
                continue
            due = now + min(MOST_S, max(1.0, (now - began) / SHARE))
            if me.rank == 0:
                me.say("stepped", steps=run.done, **told)
            me.enter("step", step=run.done)
        if me.rank == 0:
            me.say("stepped", steps=run.done, **told)
            me.say("finished", steps=run.done)

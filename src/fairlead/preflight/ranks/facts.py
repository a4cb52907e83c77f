"""What the ranks said and how each ended, as stored in the run folder: heard, not judged. `rejudge` starts here."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

RANKS_SCHEMA = "fairlead.ranks/1"


Ranks = Annotated[int, Meta(ge=0, le=1 << 20)]
"""How many: a file of a run may say anything."""


class RankFacts(msgspec.Struct, kw_only=True):
    """Everything the ranks said and how each ended."""

    schema: str = RANKS_SCHEMA
    nodes: tuple[str, ...]
    per_node: Ranks
    """Ranks on each node."""
    wanted: Ranks
    limit_s: float
    backend: str
    lines: list[dict[str, Any]] = []
    """What ranks said, with `node`, `rank` and `at_s` (seconds since the launch, by this side's clock) added."""
    beats: dict[int, dict[str, Any]] = {}
    """The last sign of life of each rank."""
    nccl: dict[int, list[str]] = {}
    """What NCCL said about the network it chose."""
    words: dict[int, list[str]] = {}
    """Everything else a rank wrote."""
    ends: list[RankEnd] = []
    took_s: float = 0.0
    launch_only: str = ""
    """Why the ranks only started and met nobody; empty where they did everything."""
    waiting: Waiting | None = None
    """The step had not begun when it was given up; None where it had."""
    lies: list[Lie] = []
    """Ranks that sent what no rank of ours sends, and were heard no more."""
    cut: list[CutByScheduler] = []
    """What the scheduler said when it ended the step itself, or lost a node of it."""
    broken: str = ""
    """Why the group was stopped from outside: empty where it ended by itself."""


class Lie(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank sent that no rank of ours sends."""

    rank: int
    what: str
    said: str
    """Its beginning, escaped."""


class Waiting(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A job or a step of Slurm that waits."""

    job: str
    said: str
    """What srun said."""
    squeue: str = ""
    """`STATE|REASON`, as squeue says it; empty where it could not be asked."""


class CutByScheduler(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A step that the scheduler ended."""

    why: str
    said: str
    nodes: str = ""
    """Folded, of those it lays the fault to."""


class RankEnd(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one rank's process ended."""

    node: str
    rank: int
    state: str
    rc: int | None = None
    error: str = ""
    stderr: str = ""
    at_s: float = 0.0


def nodes_by_rank(facts: RankFacts) -> list[str]:
    """The node of each rank, also of those that never spoke.

    A scheduler may number its nodes in another order than ours (slurm.conf, TopologyParam=SwitchAsNodeRank). So what
    ranks said of themselves counts, and a silent node's ranks are on one of those that nobody claims.
    """
    each, known = max(1, facts.per_node), frozenset(facts.nodes)
    claimed: dict[int, str] = {}
    claims: dict[str, set[int]] = {}
    for line in facts.lines:
        rank, name = line.get("rank"), line.get("node")
        if line.get("say") == "start" and isinstance(rank, int) and isinstance(name, str) and name in known:
            claimed.setdefault(rank // each, name)
            claims.setdefault(name, set()).add(rank // each)
    # where two say that they are the same node, one lies, and nobody knows which
    claimed = {group: name for group, name in claimed.items() if len(claims[name]) == 1}
    free = known - set(claimed.values())
    ours = [claimed.get(i) or (name if name in free else "") for i, name in enumerate(facts.nodes)]
    unplaced = free - set(ours)
    left = iter([name for name in facts.nodes if name in unplaced])
    ours = [name or next(left, facts.nodes[i]) for i, name in enumerate(ours)]
    return [ours[min(rank // each, len(ours) - 1)] for rank in range(facts.wanted)] if ours else []

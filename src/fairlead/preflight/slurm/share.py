"""How much of a cluster fairlead may hold out of Slurm, and who yields where several decide at once. Pure.

The prologs of one job, the health programs of a fleet and a person at the gate may drain in the same second: each has
counted before, and found room. What they share is slurmctld. So each drains, counts again, and stays only if the count
is then within the share. Where it is not, the later ones yield at once; the earlier ones wait for that, and yield too
if no room comes.

Why those who stay are never too many: take the one whose drain slurmctld took last. The others of them were drained
before it counted, and none of them left, so it counted them all, and the count was within the share.

This relies on two things that Slurm keeps: slurmctld takes changes of nodes one after another (it holds its node lock
for writing), and what it says of all nodes is of one moment, with every change it has confirmed. It does not rely on
clocks of nodes, on a shared file system or on any process that lives on. One who is killed between its drain and its
count leaves its node drained; the others count it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from fairlead.preflight.slurm.reason import is_ours, set_at
from fairlead.preflight.slurm.scheduler import SlurmNode

MAX_SHARE = 0.1
"""Of all nodes Slurm knows, so that one wrong rule does not empty the cluster."""


def allowed_of(num_nodes: int, max_share: float) -> int:
    """How many nodes fairlead may hold; one always.

    >>> allowed_of(4, 0.1), allowed_of(100, 0.1), allowed_of(100, 0.11)
    (1, 10, 11)
    """
    return max(1, int(max_share * num_nodes + 1e-9))


def is_drained_by_us(was: SlurmNode) -> bool:
    """Whether a node is drained, and the reason is fairlead's."""
    return was.is_drained and is_ours(was.reason)


def held(states: Mapping[str, SlurmNode]) -> list[str]:
    """Nodes that fairlead holds, the first drained first: by slurmctld's time, and by name within a second."""
    ours = [node for node in states.values() if is_drained_by_us(node)]
    return [node.name for node in sorted(ours, key=lambda n: (set_at(n.reason), n.name))]


def who_yields(
    states: Mapping[str, SlurmNode], mine: Collection[str], allowed: int, *, is_last_word: bool
) -> list[str]:
    """Those of mine to give back: none while the count is right, the later ones where it is not.

    `is_last_word`: nobody else yielded in time, so all of mine do.
    """
    found = held(states)
    if len(found) <= allowed:
        return []
    return [name for name in found[0 if is_last_word else allowed :] if name in mine]

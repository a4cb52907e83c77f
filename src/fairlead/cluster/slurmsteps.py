r"""Which task of a step runs on which node, by the controller's own word. Pure, but for the questions themselves.

Slurm numbers tasks by its own order of nodes (slurm.conf, TopologyParam=SwitchAsNodeRank), and what a task says of
itself is no proof of where it runs. `sattach --layout` prints what slurmctld has laid out; the step is found by the
name that it was given, which no other has.

    >>> layout_of("Job step layout:\n\t3 tasks, 2 nodes (n[2-3])\n\n\tNode 0 (n3), 2 task(s): 0 2 \n"
    ...           "\tNode 1 (n2), 1 task(s): 1 \n")
    ['n3', 'n2', 'n3']
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from fairlead.base.nodeset import NodeSet
from fairlead.cluster.child import Captured

LIMIT_S = 10.0
"""For each of the two questions."""
_STEP = re.compile(r"[0-9]+(?:_[0-9]+|\+[0-9]+)?\.[0-9]+(?:\+[0-9]+)?")
_NODE = re.compile(r"^\s*Node [0-9]+ \(([^()\s]+)\), [0-9]+ task\(s\):((?: [0-9]{1,9})*) *$", re.MULTILINE)
MAX_TASKS = 1 << 20

Ask = Callable[[Sequence[str]], Awaitable[Captured | None]]
"""Runs a command of Slurm where the controller is; None where there is none."""


async def places(ask: Ask, name: str, nodes: NodeSet, per_node: int) -> list[str]:
    """The node of each task of the step of that name; empty where Slurm does not say, or says what cannot be."""
    listed = await ask(["squeue", "--me", "--steps", "--noheader", "--format=%i|%j"])
    step = step_of(listed.out, name) if listed is not None and listed.rc == 0 else ""
    said = await ask(["sattach", "--layout", step]) if step else None
    found = layout_of(said.out) if said is not None and said.rc == 0 else []
    return found if Counter(found) == dict.fromkeys(nodes, per_node) else []


def step_of(listed: str, name: str) -> str:
    r"""The number of the one step of a name, from `squeue --steps --format=%i|%j`; empty where there is not just one.

    >>> step_of("7.batch|batch\n7.0|a\n7.1|fairlead-1\n7.extern|extern\n", "fairlead-1")
    '7.1'
    """
    rows = [line.strip().partition("|") for line in listed.splitlines()]
    found = [number for number, _, own in rows if own == name and _STEP.fullmatch(number)]
    return found[0] if len(found) == 1 else ""


def layout_of(said: str) -> list[str]:
    """The node of each task, from `sattach --layout`; empty where it is no whole layout."""
    node_of = {int(task): node for node, tasks in _NODE.findall(said) for task in tasks.split()}
    num = len(node_of)
    return [node_of[task] for task in range(num)] if num <= MAX_TASKS and all(t < num for t in node_of) else []


def name_of(argv: Sequence[str]) -> str:
    """The name that the words of an srun give its step; empty where they give none."""
    return next((word.partition("=")[2] for word in argv if word.startswith("--job-name=")), "")

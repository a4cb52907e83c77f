"""Slurm's topology: which nodes sit below which switch (tree), or in which NVLink rack (block). Pure.

A node's place comes from a file of groups, or from the counts in `[fabric]`. Where neither says it, none is written: a
topology that is made up sends jobs across switches that are not there.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

from fairlead.base.nodeset import NodeSet
from fairlead.base.units import counted
from fairlead.errors import UsageError
from fairlead.plan.wanted import RACK_NODES, Wanted

Groups = Mapping[str, NodeSet]
MAX_LINES = 1_000_000


def parse_groups(text: str, nodes: NodeSet, *, file: str) -> Groups:
    """`NODE GROUP` a line, with a blank or a colon between: a switch, an InfiniBand torset, `ClusterUUID_CliqueId`.

    Every node of the cluster must be there once. Raises UsageError (`plan/groups`) with the line.
    """
    found: defaultdict[str, list[str]] = defaultdict(list)
    seen: dict[str, int] = {}
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.partition("#")[0].strip()
        if not line:
            continue
        parts = re.split(r"[:\s]+", line)
        if len(parts) != 2 or number > MAX_LINES:
            raise _wrong(file, number, f"`{line[:60]}` is not NODE GROUP")
        name, group = parts
        if name not in nodes:
            raise _wrong(file, number, f"the cluster has no node {name[:60]}")
        if name in seen:
            raise _wrong(file, number, f"{name} stands in line {seen[name]} already")
        seen[name] = number
        found[group].append(name)
    missing = nodes - NodeSet(seen)
    if missing:
        raise _wrong(file, 0, f"it says nothing of {missing}")
    return {group: NodeSet(names) for group, names in found.items()}


def groups_of(wanted: Wanted) -> Groups | None:
    """The nodes below each T0 by the counts in `[fabric]`; None where they do not say it.

    A node has `ports / planes` NICs, all below the same T0 in each plane; the first T0 is filled first.
    """
    if wanted.fabric.t0 is None:
        return None
    nodes = list(wanted.nodes)
    nics = {max(1, pool.ports // wanted.fabric.planes) for pool in wanted.pools}
    if wanted.fabric.hosts_per_t0 is not None and len(nics) == 1:
        below = max(1, wanted.fabric.hosts_per_t0 // nics.pop())
    else:
        below = -(-len(nodes) // wanted.fabric.t0)
    parts = [nodes[i : i + below] for i in range(0, len(nodes), below)]
    return {f"t0-{i}": NodeSet(part) for i, part in enumerate(parts)}


def tree(groups: Groups) -> str:
    """topology.conf for topology/tree: a switch for each group, and one above them where there are several."""
    lines, names = [], []
    for i, group in enumerate(_in_order(groups)):
        names.append(f"sw{i:03}")
        lines += [f"# {group}: {counted(len(groups[group]), 'node')}", f"SwitchName=sw{i:03} Nodes={groups[group]}"]
    if len(names) > 1:
        lines.append(f"SwitchName=core Switches={NodeSet(names)}")
    return "\n".join(lines) + "\n"


def block(groups: Groups, size: int) -> tuple[str, list[str]]:
    """(topology.conf for topology/block, what to know about it).

    Slurm takes no block smaller than the base size (topology.conf, BlockSizes): it is written as a comment. Raises
    UsageError (`plan/blocks`) where none is left.
    """
    lines, notes, num = [], [], 0
    for i, group in enumerate(_in_order(groups)):
        nodes = groups[group]
        line = f"BlockName=block{i:03} Nodes={nodes}"
        lines.append(f"# {group}: {counted(len(nodes), 'node')}")
        if len(nodes) < size:
            lines.append(f"#{line}")
            notes.append(f"{nodes} are fewer than a block of {size}: no job with --segment runs there")
        else:
            lines.append(line)
            num += 1
    if not num:
        largest = max((len(g) for g in groups.values()), default=0)
        raise UsageError(
            "plan/blocks",
            f"no group has the {size} nodes of a block, the largest has {largest}",
            hint=f'[plan] block_nodes = {largest or 1}, or topology = "tree"',
        )
    return "\n".join([*lines, f"BlockSizes={size}"]) + "\n", notes


def block_nodes(wanted: Wanted) -> int:
    """Nodes of one block."""
    return wanted.said.block_nodes or min(RACK_NODES, len(wanted.nodes) or 1)


def _in_order(groups: Groups) -> Sequence[str]:
    """By their first node, so that names stay when a group's own name changes."""
    return sorted(groups, key=lambda group: (str(groups[group][0]), group))


def _wrong(file: str, line: int, why: str) -> UsageError:
    where = f"{file}:{line}" if line else file
    return UsageError("plan/groups", f"{where}: {why}", hint="one line a node: h200-007 switch-3")

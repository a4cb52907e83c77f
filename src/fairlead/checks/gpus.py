"""How many GPUs of each node a job can have: by the cluster file, the VM size, or what the probe counted. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fairlead.base.nodeset import NodeSet
from fairlead.checks.rules.gpu import gpu_count, held_gpus
from fairlead.records.facts import NodeFacts, Unread
from fairlead.spec.contract import contract_of
from fairlead.spec.model import Spec


def gpus_of(spec: Spec, nodes: Iterable[str], facts: Sequence[NodeFacts]) -> dict[str, int | None]:
    """Node -> GPUs, as far as the job of Slurm that the probe ran in holds them. None: nobody could tell."""
    names, records = NodeSet(nodes), {record.node: record for record in facts}
    declared = {n: contract_of(spec, pool).gpus for pool in spec.pools for n in pool.nodes & names}
    found = {n: num if num is not None else counted_gpus(records.get(n)) for n, num in declared.items()}
    held = {n: num for n, record in records.items() if (num := held_gpus(record))}
    return {n: num if num is None else min(num, held.get(n, num)) for n, num in found.items()}


def counted_gpus(record: NodeFacts | None) -> int | None:
    """GPUs that the probe counted; None: nobody could tell."""
    try:
        return gpu_count(record) if record is not None else None
    except Unread:
        return None

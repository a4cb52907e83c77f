"""A choice with everything that belongs to it: size, network, storage, and the cluster file that follows. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from fairlead.base.nodeset import NodeSet
from fairlead.plan.choice.fabric import FabricChoice, choose_fabric
from fairlead.plan.choice.need import Need, need_of
from fairlead.plan.choice.sizes import Choice, choose
from fairlead.plan.choice.skus import Offer
from fairlead.plan.choice.storage import StorageChoice, choose_storage
from fairlead.plan.findings import choice_finding, network_finding, storage_finding
from fairlead.plan.table import PlanTable
from fairlead.records.finding import Finding
from fairlead.spec.model import Access, Cluster, Fabric, Pool, Spec
from fairlead.spec.vmsize import VmSize, size, sizes, storage
from fairlead.spec.write import write


class Advice(Struct, frozen=True, kw_only=True):
    """What came of a need."""

    need: Need
    choice: Choice
    network: FabricChoice | None
    storage: StorageChoice | None
    findings: tuple[Finding, ...]
    spec: Spec | None
    """The cluster that files are written for: the one that was given, or the one that was chosen."""
    cluster_file: str = ""
    """The new cluster file, where none was given."""


def advise(
    spec: Spec | None,
    said: Mapping[str, Any],
    *,
    nodes: int | None = None,
    via: str = "slurm",
    offers: Mapping[str, Offer] | None = None,
) -> Advice:
    """Judge a cluster file's pools, or choose what no file says. `said` maps `plan.KEY` to the flags given."""
    table = spec.table(PlanTable) if spec else PlanTable(**{k.removeprefix("plan."): v for k, v in said.items()})
    pool = max(spec.pools, key=lambda p: len(p.nodes)) if spec and spec.pools else None
    need = need_of(table, nodes=len(pool.nodes) if pool else nodes)
    choice = choose(need, sizes().values(), offers)
    chosen = choice.chosen
    declared = size(pool.size) if pool else None
    if pool is not None and declared is not None:
        count, what = len(pool.nodes), declared
    elif chosen is not None:
        count, what = chosen.nodes, chosen.size
    else:
        return Advice(need=need, choice=choice, network=None, storage=None, spec=spec,
                      findings=(choice_finding(need, choice, None, 0),))  # fmt: skip
    network = choose_fabric(need, what, count)
    found = choose_storage(need, storage(), what, count)
    findings = [choice_finding(need, choice, declared, count), network_finding(network, spec, what)]
    if found is not None:
        findings.append(storage_finding(found))
    made, text = (spec, "") if spec else _cluster(table, what, count, via)
    return Advice(
        need=need,
        choice=choice,
        network=network,
        storage=found,
        findings=tuple(findings),
        spec=made,
        cluster_file=text,
    )


def _cluster(said: PlanTable, what: VmSize, count: int, via: str) -> tuple[Spec, str]:
    """The cluster of a choice, and its file."""
    width = max(3, len(str(count - 1)))
    name = f"node-[{0:0{width}}-{count - 1:0{width}}]" if count > 1 else "node-000"
    fast = bool(what.rdma) and what.link_layer == "infiniband"
    link: dict[str, Any] = {"link": "infiniband", "rdma": "ib"} if fast else {"link": "ethernet", "rdma": "none"}
    table = {k: v for k, v in msgspec.to_builtins(said).items() if v != msgspec.to_builtins(PlanTable())[k]}
    tree: dict[str, Any] = {
        "schema": 1,
        "cluster": {"name": "planned"},
        "pool": [{"name": "nodes", "size": what.name, "nodes": name, "count": count}],
        "fabric": link,
        "access": {"via": via},
        "plan": table,
    }
    if via == "slurm":
        tree["slurm"] = {"partition": "hpc"}
    pool = Pool(name="nodes", size=what.name, nodes=NodeSet(name), count=count)
    spec = Spec(schema=1, cluster=Cluster(name="planned"), pools=(pool,), fabric=Fabric(**link), access=Access(via=via))  # type: ignore[arg-type]
    text = write(tree, title=f"{count} x {what.name}, as fairlead plan chose it.")
    return spec.with_table(said), text

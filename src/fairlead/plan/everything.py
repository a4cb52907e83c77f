"""All files of a plan. Pure, apart from YAML, which needs the extra `plan`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

from fairlead.base.rooms import brought, load
from fairlead.plan.choice.storage import StorageChoice
from fairlead.plan.slurm.topology import Groups
from fairlead.plan.wanted import Planned, Wanted
from fairlead.spec.model import Spec

Target = Literal["slurm", "kubernetes", "node", "azure", "cyclecloud"]
TARGETS: tuple[Target, ...] = ("slurm", "kubernetes", "node", "azure", "cyclecloud")


class Files(Struct, frozen=True, kw_only=True):
    """What is to be written."""

    files: tuple[Planned, ...]
    notes: tuple[str, ...] = ()
    """What to know about them, one line each."""


def targets_for(via: str) -> tuple[Target, ...]:
    """What a cluster gets where nobody chose: Kubernetes or Slurm, with what belongs to it."""
    return ("kubernetes", "azure") if via == "kubernetes" else ("slurm", "node", "azure", "cyclecloud")


def plan_files(
    wanted: Wanted,
    targets: Iterable[str],
    *,
    groups: Groups | None = None,
    storage: StorageChoice | None = None,
    cluster_file: str = "",
    spec: Spec | None = None,
) -> Files:
    """Every file of the targets, with `spec` those that other rooms have on nodes. Raises UsageError for what cannot be
    written as asked.
    """
    chosen, found, notes = set(targets), list[Planned](), list[str]()
    if cluster_file:
        found.append(Planned(path="cluster.toml", text=cluster_file, about="the cluster file of this choice"))
    if "slurm" in chosen:
        from fairlead.plan.slurm.files import slurm_files

        files, said = slurm_files(wanted, groups)
        found, notes = [*found, *files], [*notes, *said]
    if "kubernetes" in chosen:
        from fairlead.plan.kubernetes.variant import variant_of

        variant = variant_of(wanted)
        abouts = {part.path: part.about for part in variant.parts}
        found += [Planned(path=path, text=text, about=abouts[path]) for path, text in variant.files.items()]
    if "node" in chosen:
        from fairlead.plan.node.files import node_files

        found += node_files(wanted)
        found += _of_rooms(spec) if spec is not None else []
    if "azure" in chosen:
        from fairlead.plan.azure.aks import aks
        from fairlead.plan.azure.vms import scale_sets

        if "kubernetes" in chosen:
            from fairlead.plan.kubernetes.variant import variant_of

            found += aks(wanted, variant_of(wanted))
        if "slurm" in chosen or "kubernetes" not in chosen:
            found += scale_sets(wanted, storage)
    if "cyclecloud" in chosen:
        from fairlead.plan.azure.cyclecloud import cyclecloud

        found += cyclecloud(wanted)
    return Files(files=tuple(found), notes=tuple(notes))


def _of_rooms(spec: Spec) -> list[Planned]:
    """What other rooms have on a node, such as a service of theirs: below node/files, as it lies below /."""
    found = {path: text for target in brought("node_files") for path, text in load(target)(spec).items()}
    return [Planned(path=f"node/files{path}", text=text, about=path) for path, text in sorted(found.items())]

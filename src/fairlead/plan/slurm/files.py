"""slurm.conf's part, gres.conf, topology.conf. Pure.

A value that no source names is left out with a comment: `slurmd -C` on a node has the last word about a node.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from fairlead.errors import UsageError
from fairlead.plan.slurm.scripts import HEALTH_INTERVAL_S, scripts
from fairlead.plan.slurm.topology import Groups, block, block_nodes, groups_of, tree
from fairlead.plan.wanted import Planned, PoolWanted, Wanted, memory_mib


def slurm_files(wanted: Wanted, groups: Groups | None = None) -> tuple[list[Planned], list[str]]:
    """(files, what to know about them). `groups` are who sits below which switch, where somebody said it."""
    text, notes = topology(wanted, groups)
    found = [
        Planned(
            path="slurm/fairlead.conf", text=settings(wanted, has_topology=bool(text)), about="Include in slurm.conf"
        ),
        Planned(
            path="slurm/nodes.conf", text=nodes(wanted), about="nodes and partition, where nobody else writes them"
        ),
    ]
    if any(pool.gpus for pool in wanted.pools):
        found.append(Planned(path="slurm/gres.conf", text=gres(wanted), about="/etc/slurm/gres.conf, on every node"))
    if text:
        found.append(Planned(path="slurm/topology.conf", text=text, about="/etc/slurm/topology.conf"))
    return [*found, *scripts(wanted.said), *(first_job(wanted, pool) for pool in wanted.pools if pool.gpus)], notes


def settings(wanted: Wanted, *, has_topology: bool) -> str:
    """What fairlead and GPUs need of slurm.conf; everything else is the site's."""
    lines = [
        "# Include /etc/slurm/fairlead.conf        in slurm.conf; then scontrol reconfigure",
        "# A setting that stands twice is taken from its last line: remove the site's own, or the one here.",
        "",
        "# The gate: a health program that drains and gives back, a prolog that keeps jobs off bad nodes.",
        "HealthCheckProgram=/etc/slurm/health.sh",
        f"HealthCheckInterval={HEALTH_INTERVAL_S}",
        "HealthCheckNodeState=IDLE,CYCLE",
        "Prolog=/etc/slurm/prolog.sh",
        "Epilog=/etc/slurm/epilog.sh",
        "PrologFlags=Alloc",
        "# else a job that met a bad node is held until somebody releases it",
        "SchedulerParameters=nohold_on_prolog_fail",
        "",
        "# RDMA locks memory: a job has the limit of slurmd, not that of the shell it was submitted from.",
        "PropagateResourceLimitsExcept=MEMLOCK",
    ]
    if wanted.said.archive:
        lines += [
            "",
            "# With slurmdbd: the epilog keeps each job's environment too. It may hold keys, in the database as well.",
            "#AccountingStoreFlags=job_env",
        ]
    if any(pool.gpus for pool in wanted.pools):
        lines += ["", "GresTypes=gpu"]
    if has_topology:
        lines += ["", "# needs topology.conf beside slurm.conf before slurmctld starts"]
        lines += [f"TopologyPlugin=topology/{wanted.topology}"]
        lines += ["TopologyParam=BlockAsNodeRank"] if wanted.topology == "block" else []
    return "\n".join(lines) + "\n"


def nodes(wanted: Wanted) -> str:
    """NodeName and PartitionName lines."""
    lines = [
        "# Include /etc/slurm/nodes.conf        in slurm.conf, where nothing else names the nodes (CycleCloud does)",
        "# Compare with what slurmd -C prints on a node: Slurm takes no node that has less than stands here.",
    ]
    for pool in wanted.pools:
        parts = [f"NodeName={pool.nodes}"]
        lines.append(f"# {pool.name}: {pool.size.name}")
        if pool.size.vcpus is not None:
            parts.append(f"CPUs={pool.size.vcpus}")
        else:
            lines.append("# CPUs: no source names them; without, Slurm takes one")
        memory = memory_mib(pool)
        if memory is not None:
            lines.append(f"# RealMemory: {pool.size.memory_gib:g} GiB as sold, less 5 % that a guest does not see")
            parts.append(f"RealMemory={memory}")
        if pool.gpus:
            parts.append(f"Gres=gpu:{gpu_type(pool)}{pool.gpus}")
        lines.append(" ".join([*parts, "State=UNKNOWN"]))
    partition = wanted.partition or "hpc"
    lines.append(f"PartitionName={partition} Nodes={wanted.nodes} Default=YES MaxTime=INFINITE State=UP")
    return "\n".join(lines) + "\n"


def first_job(wanted: Wanted, pool: PoolWanted) -> Planned:
    """A job of two nodes that is tested before it trains: the shape that every job of the pool has."""
    num, partition = min(2, len(pool.nodes)), wanted.partition or "hpc"
    lines = [
        "#!/bin/bash",
        f"# sbatch job-{pool.name}.sbatch: a task for each GPU. Put your program where `true` stands.",
        f"#SBATCH --job-name=first-{pool.name} --partition={partition} --exclusive --mem=0 --time=30",
        f"#SBATCH --nodes={num} --ntasks-per-node={pool.gpus} --gres=gpu:{gpu_type(pool)}{pool.gpus}",
    ]
    if pool.size.vcpus is not None:
        lines.append(f"#SBATCH --cpus-per-task={pool.size.vcpus // pool.gpus}")
    lines += [
        "",
        f"srun --cpu-bind=none {wanted.said.program} preflight --inside -q --spec {wanted.said.cluster_file} || exit 1",
        "srun true",
    ]
    text = "\n".join(lines) + "\n"
    name = f"job-{pool.name}.sbatch"
    return Planned(path=f"slurm/{name}", text=text, about="a first job: the gate, then the program")


def gres(wanted: Wanted) -> str:
    """Each GPU by its device file: GPUs that are only counted leave their nodes invalid."""
    lines: list[str] = []
    for pool in wanted.pools:
        if pool.gpus:
            lines += [f"# {pool.name}: {pool.size.name}", *_gres_of(wanted, pool)]
    return "\n".join(lines) + "\n"


def _gres_of(wanted: Wanted, pool: PoolWanted) -> Iterator[str]:
    name = f"NodeName={pool.nodes}"
    if pool.size.gpu_vendor == "amd":
        yield "# needs a Slurm built with ROCm SMI; device files of AMD GPUs are not numbered alike on all images"
        yield f"{name} AutoDetect=rsmi"
        return
    if wanted.said.mig:
        yield "# MIG devices have no files of fixed names; needs a Slurm that was built with NVML"
        yield f"{name} AutoDetect=nvml"
        return
    kind = gpu_type(pool).rstrip(":")
    for first, last, cpus in gpu_ranges(pool):
        which = f"[{first}-{last}]" if last > first else f"{first}"
        cores = f" Cores={cpus[0]}-{cpus[1]}" if cpus else ""
        yield f"{name} Name=gpu Type={kind} File=/dev/nvidia{which}{cores}"
    if pool.layout is None:
        yield f"# Cores: no source says which CPUs are near which GPU of {pool.size.name}"


def gpu_type(pool: PoolWanted) -> str:
    """The type of a GPU with the colon behind it, in small letters; empty where no source names it."""
    kind = "" if pool.size.gpu_vendor == "amd" else pool.size.gpu_model.lower().replace(" ", "_")
    return f"{kind}:" if kind else ""


def gpu_ranges(pool: PoolWanted) -> list[tuple[int, int, tuple[int, int] | None]]:
    """(first, last, CPUs) of GPUs that follow each other on one NUMA node; the driver numbers them by PCI address."""
    if pool.layout is None or len(pool.layout.gpus) != pool.gpus:
        return [(0, pool.gpus - 1, None)]
    cpus_of = {gpu: node.cpus for node in pool.layout.numa for gpu in node.gpus}
    order = list(enumerate(pool.layout.gpus))
    found: list[tuple[int, int, tuple[int, int] | None]] = []
    for cpus, part in itertools.groupby(order, key=lambda item: cpus_of[item[1]]):
        numbers = [i for i, _ in part]
        found.append((numbers[0], numbers[-1], cpus))
    return found


def topology(wanted: Wanted, groups: Groups | None) -> tuple[str, list[str]]:
    """(topology.conf, what to know); no text where none is wanted, or where nobody says who sits where."""
    if wanted.topology == "none":
        return "", []
    said = groups or groups_of(wanted)
    if said is None:
        why = "no topology.conf: neither [fabric] t0 nor a file of groups says which nodes sit below which switch"
        return "", [why + "; fairlead plan --groups FILE"]
    if wanted.topology == "tree":
        return tree(said), []
    try:
        return block(said, block_nodes(wanted))
    except UsageError as error:
        if groups is None:  # counts of switches, not of racks: nothing to refuse
            return "", [f"no topology.conf: {error}"]
        raise

"""CycleCloud's Slurm cluster: parameters of its template, and what an operator types. Pure.

Names of parameters and commands are those of Azure/cyclecloud-slurm (templates/slurm.txt, azslurm), 2026-07-15.
"""

from __future__ import annotations

import json

from fairlead.plan.slurm.scripts import HEALTH_INTERVAL_S
from fairlead.plan.wanted import Planned, PoolWanted, Wanted

_TOPOLOGY_LATER = """`TopologyPlugin` is left out of the parameters on purpose: `slurmctld` does not start
without the topology file, which is made once nodes are there. When they are: write it, then add the lines to
`/etc/slurm/site_specific.conf` and run `scontrol reconfigure`.
"""


def cyclecloud(wanted: Wanted) -> list[Planned]:
    """Parameters for `cyclecloud import_cluster`, and a page of commands."""
    if not wanted.pools:
        return []
    text = json.dumps(parameters(wanted), indent=2) + "\n"
    return [
        Planned(path="cyclecloud/parameters.json", text=text, about="cyclecloud import_cluster -p"),
        Planned(
            path="cyclecloud/README.md", text=page(wanted), about="events, health checks, arrays, nodes under repair"
        ),
    ]


def array_of(pool: PoolWanted) -> str:
    """The node array that a pool is: hpc for what runs tightly coupled, gpu where its nodes have GPUs."""
    return "GPU" if pool.gpus else "HPC"


def parameters(wanted: Wanted) -> dict[str, object]:
    """The template's parameters that follow from a cluster; storage, identities and networks are the site's."""
    found: dict[str, object] = {
        "Autoscale": True,
        "EnableNodeHealthChecks": True,
        "EnableTerminateNotification": True,
        "HPCMaxScalesetSize": min(100, max(len(pool.nodes) for pool in wanted.pools)),
        "NodeNameIsHostname": True,
        "additional_slurm_config": "\n".join(_settings()),
    }
    if wanted.said.region:
        found["Region"] = wanted.said.region
    for pool in wanted.pools:
        array = array_of(pool)
        found[f"{array}MachineType"] = pool.size.name
        found[f"Max{array}ExecuteNodeCount"] = len(pool.nodes)
        found[f"{array}ImageName"] = wanted.said.image
        if array == "GPU":
            found["GPUUseLowPrio"] = False
    return found


def _settings() -> list[str]:
    """CycleCloud has a health program, a prolog and an epilog of its own: those stay, fairlead's runs beside them."""
    return [
        "SchedulerParameters=nohold_on_prolog_fail,max_switch_wait=24:00:00",
        "PropagateResourceLimitsExcept=MEMLOCK",
    ]


def page(wanted: Wanted) -> str:
    """What an operator types."""
    arrays = "\n".join(
        f"| {pool.name} | {array_of(pool).lower()} | {pool.size.name} | {len(pool.nodes)} |" for pool in wanted.pools
    )
    topology = "" if wanted.topology == "none" else f"\n## Topology\n\n{_TOPOLOGY_LATER}{_topology_command(wanted)}"
    return f"""# {wanted.cluster} on CycleCloud

    cyclecloud import_cluster {wanted.cluster} -c Slurm -f slurm.txt -p parameters.json
    cyclecloud start_cluster {wanted.cluster}

| pool | array | VM size | most nodes |
|---|---|---|---|
{arrays}

The arrays scale by themselves: a job powers nodes up (`ResumeProgram`), idle ones go after `SuspendTime`.
`HPCMaxScalesetSize` keeps the nodes of a job in one scale set, so in one placement group: VMs of two groups share no
InfiniBand.

## Scheduled events

`EnableTerminateNotification` gives a node ten minutes to unmount Lustre before it is taken away. What the platform
plans for a node (reboot, redeployment, preemption) each node's health program reads: `fairlead preflight --here` fails
a node whose event falls into the job's time, and drains it.

## Node health checks

`EnableNodeHealthChecks` runs CycleCloud's healthagent before a node joins. Slurm has one `HealthCheckProgram`, which is
healthagent's: fairlead's runs beside it by a timer of systemd every {HEALTH_INTERVAL_S} s, or in its place where
`/etc/slurm/site_specific.conf` names `/etc/slurm/health.sh`. Two programs that drain leave each other's nodes alone, as
each gives back only what it drained itself.

## A node under repair

    azslurm keep_alive --node-list NODE            # never powered down, whatever is idle
    scontrol update nodename=NODE state=drain reason="repair: ticket 1234"
    azslurm keep_alive --remove --node-list NODE   # when it is well

A node that scales down loses its machine: the next one is another, and what was to be repaired is somebody else's.
{topology}"""


def _topology_command(wanted: Wanted) -> str:
    partition = wanted.partition or "gpu"
    if wanted.topology == "block":
        from fairlead.plan.slurm.topology import block_nodes

        flags = f"-n --block --block_size {block_nodes(wanted)}"
    else:
        flags = "-f"
    lines = f"TopologyPlugin=topology/{wanted.topology}"
    command = f"azslurm topology {flags} -p {partition} > topology.conf    # or fairlead plan --groups FILE"
    return f"\n    {command}\n    {lines}\n"

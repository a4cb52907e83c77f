"""A real Slurm in the lab: slurmctld on a host of its own, `head`, and a slurmd on every other.

Knows: the files and programs of Debian's slurm-wlm 22.05 and of munge. Must not know: how hosts are made.

Every host has its own /run, /etc and /var/log, so each Slurm finds its files in the places the packages chose, and labs
run side by side. GPUs are the device files the host shows: Slurm wants character devices, and these are.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fairlead.errors import LabError
from fairlead.lab import inside
from fairlead.lab.shape import LabShape
from fairlead.records.labstate import HostState, LabState, SlurmState

TOOLS = {"slurmctld": "slurm-wlm", "slurmd": "slurm-wlm", "munged": "munge"}
PRIVATE = ("run/munge/munge.key",)
HEAD = "head"
GPU_TYPE = "lab"
CPUS_PER_GPU = 2
MEMORY_MB = 4000
READY_LIMIT_S = 60.0

COMMANDS = ("srun", "sbatch", "salloc", "sinfo", "squeue", "scancel", "scontrol", "sattach")

_SBATCH = """# the last word, if it is a file here, is the script
for last; do :; done
if [ -f "$last" ]; then
    count=$#
    exec <"$last"
    while [ "$count" -gt 1 ]; do set -- "$@" "$1"; shift; count=$((count - 1)); done
    shift
fi
"""

_CONF = """ClusterName={name}
SlurmctldHost=head({head})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CryptoType=crypto/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=20
KillWait=5
UnkillableStepTimeout=30
InactiveLimit=0
MinJobAge=3600
PrologFlags=Alloc
SlurmctldPidFile=/run/slurm/slurmctld.pid
SlurmdPidFile=/run/slurm/slurmd.pid
StateSaveLocation=/run/slurm/state
SlurmdSpoolDir=/run/slurm/spool
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/slurmd.log
JobCompType=jobcomp/filetxt
JobCompLoc=/var/log/slurm/jobcomp.log
AccountingStorageType=accounting_storage/none
TopologyPlugin=topology/tree
GresTypes=gpu
"""


def make_key(folder: Path) -> None:
    """The lab's munge key."""
    place = folder / "munge.key"
    place.touch(mode=0o600)
    place.write_text(secrets.token_hex(64))


def files(shape: LabShape, state: LabState, folder: Path) -> dict[str, str]:
    """What every host and the head need."""
    files: dict[str, str] = {
        "run/munge/munge.key": (folder / "munge.key").read_text(),
        "run/slurm/state/": "",
        "run/slurm/spool/": "",
        "var/log/slurm/": "",
        "etc/slurm/slurm.conf": conf(shape, state),
        "etc/slurm/topology.conf": topology(shape),
        "etc/slurm/cgroup.conf": "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n",
    }
    if shape.gpus:
        devices = f"/dev/nvidia[0-{shape.gpus - 1}]" if shape.gpus > 1 else "/dev/nvidia0"
        nodes = ",".join(shape.nodes)
        files["etc/slurm/gres.conf"] = f"AutoDetect=off\nNodeName={nodes} Name=gpu Type={GPU_TYPE} File={devices}\n"
    return files


def conf(shape: LabShape, state: LabState) -> str:
    """slurm.conf."""
    head = state.host(HEAD)
    assert head is not None
    cpus = max(1, shape.gpus) * CPUS_PER_GPU
    gres = f" Gres=gpu:{GPU_TYPE}:{shape.gpus}" if shape.gpus else ""
    nodes = "".join(
        f"NodeName={host.name} NodeAddr={host.management} NodeHostname={host.name} "
        f"CPUs={cpus} RealMemory={MEMORY_MB}{gres}\n"
        for host in state.hosts
        if host.name != HEAD
    )
    common = _CONF.format(name=f"lab-{shape.name}", head=head.management)
    partition = f"PartitionName={shape.partition} Nodes={','.join(shape.nodes)} Default=YES MaxTime=INFINITE State=UP\n"
    return common + nodes + partition


def topology(shape: LabShape) -> str:
    """topology.conf: Slurm's switches are the T0s, which all planes share."""
    per_t0 = shape.topology.hosts_per_t0
    lines = [
        f"SwitchName=t0-{t0} Nodes={','.join(shape.nodes[t0 * per_t0 : (t0 + 1) * per_t0])}\n" for t0 in range(shape.t0)
    ]
    return "".join([*lines, f"SwitchName=core Switches={','.join(f't0-{t0}' for t0 in range(shape.t0))}\n"])


def start(shape: LabShape, state: LabState, folder: Path) -> SlurmState:
    """Start every daemon, wait until each node is idle. Raises LabError `lab/service` with a daemon's last words."""
    head = state.host(HEAD)
    assert head is not None
    start_host(state, head)
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        list(pool.map(lambda host: start_host(state, host), [h for h in state.hosts if h.name != HEAD]))
    _await_idle(state, head, len(shape.nodes))
    return SlurmState(head=HEAD, bin=str(write_commands(state, head, folder / "slurm")), partition=shape.partition)


def write_commands(state: LabState, head: HostState, place: Path) -> Path:
    """Slurm's commands as programs of the machine that run on the lab's head; returns their directory.

    With it first in PATH, whoever uses a Slurm uses this one. The head has files of its own, so sbatch reads its script
    from standard input.
    """
    place.mkdir(exist_ok=True)
    for command in COMMANDS:
        real = shutil.which(command)
        if real:
            words = shlex.join(inside.bound(state, head, [real]))
            script = _SBATCH if command == "sbatch" else ""
            path = place / command
            path.write_text(f'#!/bin/sh\nPATH=${{PATH#{place}:}}\n{script}exec {words} "$@"\n')
            path.chmod(0o755)
    return place


def start_host(state: LabState, host: HostState) -> None:
    """munged, and then slurmctld on the head, slurmd elsewhere; each goes into the background once it is ready."""
    munged = (
        "munged", "--num-threads=2", "--key-file=/run/munge/munge.key", "--seed-file=/run/munge/munged.seed",
        "--log-file=/run/munge/munged.log", "--pid-file=/run/munge/munged.pid",
    )  # fmt: skip
    daemon = ("slurmctld",) if host.name == HEAD else ("slurmd",)
    for argv in (munged, daemon):
        done = inside.run_on(state, host, argv)
        if done.returncode:
            words = (done.stderr or done.stdout).strip().splitlines()
            raise LabError(
                "lab/service",
                f"{argv[0]} does not start on {host.name}: {words[-1] if words else f'exit {done.returncode}'}",
                hint="fairlead doctor",
            )


def _await_idle(state: LabState, head: HostState, num_nodes: int) -> None:
    deadline, states = time.monotonic() + READY_LIMIT_S, {}
    while time.monotonic() < deadline:
        done = inside.run_on(state, head, ["sinfo", "--json"])
        if done.returncode == 0:
            states = {node["name"]: node["state"] for node in json.loads(done.stdout)["nodes"]}
            if sum(s == "idle" for s in states.values()) == num_nodes:
                return
        time.sleep(0.1)
    raise LabError(
        "lab/service", f"Slurm is not ready after {READY_LIMIT_S:g} s: {states}", hint="see /var/log/slurm on head"
    )
